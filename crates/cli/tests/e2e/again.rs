//! Params, pauses, printed roll-outs, and retries, checked by the lines that the nodes wrote.

use std::fs;

use downbeat_testbed::{Daemon, Dev, Done, until};
use serde_json::{Value, json};

/// A step that writes its name and its node into one file and then does `work`. `$1` is the node's name.
fn step(name: &str, work: &str) -> Value {
    json!({
        "name": name,
        "backend": "exec",
        "action": "run",
        "params": {
            "command": ["sh", "-c", format!("echo {name} $1 >>did; {work}"), "sh", "{{ node.hostname }}"],
            "working_dir": "{{ params.dir }}",
        },
    })
}

/// A file that the job asks for: `{{ params.dir }}` has to be given.
fn write(dev: &Dev, mut job: Value) -> String {
    job["params"] = json!({"dir": null});
    dev.write("job.json", &job.to_string());
    format!("dir={}", dev.dir.path().display())
}

/// Returns the lines that the nodes wrote since the last call, sorted.
fn did(dev: &Dev) -> Vec<String> {
    let path = dev.dir.path().join("did");
    let text = fs::read_to_string(&path).unwrap_or_default();
    let _ = fs::remove_file(path);
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

fn show(dev: &Dev, id: &str) -> Value {
    dev.whole_run(id)
}

#[test]
fn a_paused_run_begins_nothing_more_until_it_is_resumed() {
    let dev = Dev::start_with(&["--nodes", "1"]);
    let first = step("first", "while ! test -e go; do sleep 0.01; done");
    let dir = write(&dev, json!({"target": "all", "tasks": [first, step("second", "true")]}));
    let id = dev.submit(&["-f", "job.json", "--param", &dir]);
    until("the first step", || dev.dir.path().join("did").exists().then_some(()));
    let paused = dev.run(&["run", "pause", &id]).ok();
    assert!(paused.contains(&format!("`downbeat run resume {id}`")), "{paused}");
    let again = dev.run(&["run", "pause", &id]);
    assert_eq!(again.code, 5, "{again:?}");
    assert!(again.stderr.contains("is already paused"), "{again:?}");
    dev.write("go", "");
    let run = until("the first step's end", || {
        let run = show(&dev, &id);
        (run["counts"]["succeeded"] == 1).then_some(run)
    });
    assert_eq!((&run["paused"], &run["status"]), (&json!(true), &json!("running")));
    assert_eq!(run["results"].get("1"), None, "nothing of the second step is begun: {run}");
    let page = dev.run(&["run", "show", &id]).ok();
    assert!(page.contains("running, paused") && page.contains("continues it"), "{page}");
    assert!(dev.run(&["run", "list"]).ok().contains("running, paused"));
    assert_eq!(did(&dev), ["first node-1"]);
    let resumed: Value = dev.run(&["run", "resume", &id, "-o", "json"]).json();
    assert_eq!(resumed["paused"], false);
    assert_eq!(dev.run(&["run", "watch", &id]).code, 0);
    assert_eq!(did(&dev), ["second node-1"]);
    assert_eq!(dev.run(&["run", "resume", &id]).code, 5);
    assert_eq!(dev.run(&["run", "pause", "00000000-0000-7000-8000-000000000000"]).code, 4);
}

#[test]
fn a_paused_run_can_be_cancelled() {
    let dev = Dev::start_with(&["--nodes", "1"]);
    let dir =
        write(&dev, json!({"target": "all", "tasks": [step("first", "sleep 1000"), step("second", "true")]}));
    let id = dev.submit(&["-f", "job.json", "--param", &dir]);
    until("the first step", || dev.dir.path().join("did").exists().then_some(()));
    dev.run(&["run", "pause", &id]).ok();
    dev.run(&["run", "cancel", &id]).ok();
    until("the end", || (dev.run_status(&id) == "cancelled").then_some(()));
    assert_eq!(did(&dev), ["first node-1"]);
}

/// Five nodes in three waves; node-2 fails until it is mended, and nothing may fail. It waits for its turn, as a job that
/// holds its nodes does, and so do its retries.
fn stopped_rollout(dev: &Dev) -> String {
    let start = step("start", "test $1 != node-2 || test -e mended");
    let job = json!({
        "name": "deploy", "target": "all", "exclusive": true, "rollout": {"batch": [1, 2]},
        "tasks": [step("install", "true"), start, step("check", "true")],
    });
    let dir = write(dev, job);
    let done = dev.run(&["job", "run", "-f", "job.json", "--param", &dir, "--watch"]);
    assert_eq!(done.code, 1, "{done:?}");
    let lines = [
        "wave 1 of 3 starts: node-1",
        "wave 1 of 3 ended without failures",
        "wave 2 of 3 starts: node-2, node-3",
        "wave 2 of 3 ended, 1 of 2 failed",
        "1 node failed, none was allowed; no further wave starts",
    ];
    let mut rest = done.stdout.lines();
    for line in lines {
        assert!(rest.any(|seen| seen == line), "no `{line}` in its place: {done:?}");
    }
    let mut expected =
        vec!["install node-1", "install node-2", "install node-3", "start node-1", "start node-2"];
    expected.extend(["start node-3", "check node-1"]);
    expected.sort_unstable();
    assert_eq!(did(dev), expected);
    dev.run(&["run", "show", "last", "-o", "json"]).json()["id"].as_str().unwrap().to_owned()
}

#[test]
fn retry_of_the_failed_nodes_does_nothing_anywhere_else_and_nothing_twice() {
    let dev = Dev::start_with(&["--nodes", "5"]);
    let first = stopped_rollout(&dev);
    let run = show(&dev, &first);
    let untouched = json!({"count": 2, "nodes": ["node-4", "node-5"]});
    assert_eq!(run["rollout"]["untouched"], untouched, "{run}");
    assert_eq!((&run["rollout"]["wave"], &run["rollout"]["failed"]), (&json!(2), &json!(1)));
    let page = dev.run(&["run", "show", &first]).ok();
    for words in [
        "wave 2 of 3, 1 node failed, none was allowed",
        "not reached: node-4, node-5",
        &format!("downbeat run retry {first} --failed-only"),
    ] {
        assert!(page.contains(words), "no `{words}` in {page}");
    }

    // Not mended: it fails again, and only there.
    let done = dev.run(&["run", "retry", &first, "--failed-only", "--wait"]);
    assert_eq!(done.code, 1, "{done:?}");
    assert_eq!(did(&dev), ["start node-2"]);

    dev.write("mended", "");
    let done = dev.run(&["run", "retry", "last", "--failed-only", "--wait", "-o", "json"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(did(&dev), ["check node-2", "start node-2"]);
    let run: Value = serde_json::from_str(&done.stdout).unwrap();
    let run = show(&dev, run["id"].as_str().unwrap());
    assert_eq!(run["nodes"], 1);
    assert!(run["retry_of"].is_string());
    assert_eq!(
        run["results"]["0"]["node-2"]["reused"],
        show(&dev, &first)["results"]["0"]["node-2"]["execution"],
        "what was taken over twice leads to where it was done"
    );

    let nothing = dev.run(&["run", "retry", "last"]);
    assert_eq!(nothing.code, 5, "{nothing:?}");
    assert!(nothing.stderr.contains("nothing failed in it"), "{nothing:?}");
}

#[test]
fn retry_goes_on_with_the_nodes_that_were_never_touched() {
    let dev = Dev::start_with(&["--nodes", "5"]);
    let first = stopped_rollout(&dev);
    dev.write("mended", "");
    let done = dev.run(&["run", "retry", &first, "--watch"]);
    assert_eq!(done.code, 0, "{done:?}");
    let mut expected: Vec<String> = ["install", "start", "check"]
        .into_iter()
        .flat_map(|name| ["node-4", "node-5"].map(|node| format!("{name} {node}")))
        .chain(["start node-2", "check node-2", "check node-3"].map(str::to_owned))
        .collect();
    expected.sort();
    assert_eq!(did(&dev), expected);
    let id = show(&dev, "last")["id"].as_str().unwrap().to_owned();
    assert!(dev.run(&["run", "show", &id]).ok().contains("reused"));

    // The same after a restart of everything: the record is whole.
    let run = show(&dev, &id);
    assert_eq!((&run["status"], &run["counts"]["succeeded"]), (&json!("completed"), &json!(15)), "{run}");
}

#[test]
fn a_run_on_a_drained_node_is_not_tried_again() {
    let dev = Dev::start_with(&["--nodes", "5"]);
    let first = stopped_rollout(&dev);
    dev.run(&["node", "drain", "node-2"]).ok();
    let refused = dev.run(&["run", "retry", &first, "--failed-only"]);
    assert_eq!(refused.code, 5, "{refused:?}");
    assert!(refused.stderr.contains("node-2: is drained"), "{refused:?}");
    assert!(did(&dev).is_empty());
}

#[test]
fn params_are_given_and_shown_and_what_is_wrong_with_them_is_named() {
    let dev = Dev::start_with(&["--nodes", "1"]);
    let job = json!({
        "target": "all", "params": {"version": null, "count": 3},
        "tasks": [{"backend": "test", "action": "echo", "params": {"message": "{{ params.version }}/{{ params.count }}"}}],
    });
    dev.write("job.json", &job.to_string());
    let id = dev.submit(&["-f", "job.json", "--param", "version=1.4", "--param", "count=5"]);
    assert_eq!(dev.run(&["run", "watch", &id]).code, 0);
    assert_eq!(dev.run(&["run", "logs", &id]).ok().trim_end(), "1.4/5");
    assert_eq!(show(&dev, &id)["params"], json!({"version": "1.4", "count": 5}));
    assert!(dev.run(&["run", "show", &id]).ok().contains("count=5 version=1.4"));
    for verb in ["run", "plan", "validate"] {
        for (params, words) in [
            (
                &["--param", "verison=1"][..],
                "verison: the job has no param `verison`; did you mean `version`?",
            ),
            (&["--param", "version=1", "--param", "count=many"], "count: must be a number"),
            (&["--param", "count=1"], "version: has no default and must be given"),
            (&["--param", "version"], "--param `version` is not valid; write NAME=VALUE"),
        ] {
            let done = dev.run(&[&["job", verb, "-f", "job.json"], params].concat());
            assert_eq!(done.code, 2, "{verb} {params:?}: {done:?}");
            assert!(done.stderr.contains(words), "{verb} {params:?}: {done:?}");
        }
    }
    let missing = dev.run(&["job", "run", "-f", "job.json"]);
    assert_eq!(missing.code, 2, "{missing:?}");
    assert!(missing.stderr.contains("version: has no default"), "{missing:?}");
    dev.run(&["job", "validate", "-f", "job.json"]).ok();
    let inline = dev.run(&["job", "run", "--param", "a=1", "test", "noop"]);
    assert_eq!(inline.code, 2, "{inline:?}");
    // A mistake in the file keeps its place, also when params come along.
    dev.write("wrong.yaml", "target: all\ntasks:\n  - {backend: test, action: nope}\n");
    let wrong = dev.run(&["job", "plan", "-f", "wrong.yaml", "--param", "a=1"]);
    assert_eq!(wrong.code, 2, "{wrong:?}");
    assert!(wrong.stderr.contains("wrong.yaml:3:"), "{wrong:?}");
}

#[test]
fn a_plan_that_is_refused_names_every_node_and_everything_that_it_lacks() {
    let dev = Dev::start_with(&["--nodes", "1"]);
    let agents = ["odd-1", "odd-2"].map(|name| dev.agent(name).with(&["--only", "ping"]));
    agents.iter().for_each(Daemon::start);
    dev.nodes_online(3);
    let job = json!({"target": "all", "tasks": [
        {"backend": "ping", "action": "ping"}, {"backend": "test", "action": "noop"},
        {"backend": "exec", "action": "run", "params": {"command": "true"}}]});
    dev.write("job.json", &job.to_string());
    for verb in ["plan", "run"] {
        let Done { code, stderr, .. } = dev.run(&["job", verb, "-f", "job.json"]);
        assert_eq!(code, 5, "{stderr}");
        for node in ["odd-1", "odd-2"] {
            let line = format!(
                "{node}: lacks backend `test`, lacks backend `exec` (its agent runs without --allow exec)"
            );
            assert!(stderr.contains(&line), "{stderr}");
        }
        assert!(!stderr.contains("node-1"), "{stderr}");
    }
    assert_eq!(dev.run(&["run", "list", "-o", "json"]).json()["pagination"]["total"], 0);
}
