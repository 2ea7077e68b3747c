//! Graphs as people see them: drawn, fanned out, failed in part, retried from a task, and with cached results.

use std::fs;

use downbeat_testbed::{Dev, Done, example, until};
use serde_json::{Value, json};

fn show(dev: &Dev, id: &str) -> Value {
    dev.whole_run(id)
}

/// Runs a file to its end. Returns the client's output and the run.
fn done(dev: &Dev, file: &str, more: &[&str]) -> (Done, Value) {
    let done = dev.run(&[&["job", "run", "-f", file, "--wait", "-o", "json"], more].concat());
    let run: Value = serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done:?}"));
    let run = show(dev, run["id"].as_str().unwrap());
    (done, run)
}

/// A task that writes its name into one file, and then does `work`.
fn task(dev: &Dev, name: &str, after: &[&str], work: &str) -> Value {
    let command = format!("echo {name} >>did; {work}");
    json!({"name": name, "depends_on": after, "backend": "exec", "action": "shell",
           "params": {"command": command, "working_dir": dev.dir.path()}})
}

/// Returns the tasks that ran since the last call, sorted.
fn did(dev: &Dev) -> Vec<String> {
    let path = dev.dir.path().join("did");
    let text = fs::read_to_string(&path).unwrap_or_default();
    let _ = fs::remove_file(path);
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn a_graph_is_drawn_with_what_waits_for_what() {
    let dev = Dev::start();
    let text = dev.run(&["job", "plan", "-f", &example("graph.yaml")]).ok();
    let drawing: Vec<&str> = text.lines().skip_while(|line| !line.contains("TASK")).skip(1).take(6).collect();
    let begins = [
        "●      build ",
        "├─┏    unit ",
        "│ ┗    lint ",
        "│ ├─●  publish ",
        "○─│─┘  clean-up ",
        "  ○    alarm ",
    ];
    for (line, begin) in drawing.iter().zip(begins) {
        assert!(line.starts_with(begin), "`{begin}` in\n{text}");
    }
    assert!(drawing[3].contains("all 3 nodes") && drawing[1].contains("2 retries"), "{text}");
    let text = dev.run(&["job", "plan", "-f", &example("fan_out.yaml")]).ok();
    assert!(text.contains("for each of steps.list.outputs.shards, 2 at once"), "{text}");
    assert!(text.contains("10 executions at once"), "{text}");
}

#[test]
fn a_fan_out_shows_every_item_and_its_join_has_what_they_said() {
    let dev = Dev::start();
    let (ended, run) = done(&dev, &example("fan_out.yaml"), &[]);
    assert_eq!(ended.code, 0, "{ended:?}");
    let id = run["id"].as_str().unwrap();
    let shards = run["results"]["1"].as_object().unwrap();
    assert_eq!(shards.keys().collect::<Vec<_>>(), ["[0]", "[1]", "[2]"]);
    assert_eq!(shards["[1]"]["outputs"]["done"], "us:5");
    let page = dev.run(&["run", "show", id]).ok();
    for words in ["shard[0]", "shard[2]", "done=asia:2"] {
        assert!(page.contains(words), "{page}");
    }
    let joined = dev.run(&["run", "logs", id, "--step", "join"]).ok();
    assert!(joined.contains(r#"["eu:3","us:5","asia:2"]"#), "{joined}");
    let second = dev.run(&["run", "logs", id, "--item", "1"]).ok();
    assert_eq!(second, "us is number 1\n");
    let all = dev.run(&["run", "logs", id]).ok();
    assert!(
        all.lines().any(|line| line.starts_with("shard[2] node-") && line.ends_with("| asia is number 2")),
        "{all}"
    );
    let events = dev.run(&["run", "events", id]).ok();
    assert!(events.contains("step 1[2] on node-"), "{events}");
    let watched = dev.run(&["job", "run", "-f", &example("fan_out.yaml"), "--watch"]).ok();
    assert!(watched.contains("step 1 shard: 3/3 succeeded"), "{watched}");
}

#[test]
fn an_empty_list_and_an_invalid_one_are_reported() {
    let dev = Dev::start_with(&["--nodes", "1"]);
    let list = |text: &str| {
        json!({"name": "list", "backend": "exec", "action": "run", "outputs": ["all"],
                                   "params": {"command": ["echo", text]}})
    };
    let each = json!({"name": "each", "depends_on": ["list"], "for_each": "{{ steps.list.outputs.all }}", "backend": "test",
                      "action": "noop"});
    let job = |text: &str| json!({"tasks": [list(text), each]}).to_string();
    dev.write("job.json", &job(r#"{"all": []}"#));
    let (ended, run) = done(&dev, "job.json", &[]);
    assert_eq!(ended.code, 0, "{ended:?}");
    let page = dev.run(&["run", "show", run["id"].as_str().unwrap()]).ok();
    assert!(page.contains("no items"), "{page}");
    dev.write("job.json", &job(r#"{"all": {"a": 1}}"#));
    let (ended, run) = done(&dev, "job.json", &[]);
    assert_eq!(ended.code, 1, "{ended:?}");
    let error = run["results"]["1"]["-"]["error"].as_str().unwrap();
    assert!(error.contains("map"), "{run}");
}

#[test]
fn what_depends_on_a_failure_is_skipped_with_its_reason_and_the_rest_goes_on() {
    let dev = Dev::start();
    let job = json!({"strategy": "continue", "tasks": [
        task(&dev, "bad", &[], "exit 3"), task(&dev, "good", &[], "true"), task(&dev, "after-bad", &["bad"], "true"),
        task(&dev, "far", &["after-bad", "good"], "true"), task(&dev, "after-good", &["good"], "true"),
    ]});
    dev.write("job.json", &job.to_string());
    let (ended, run) = done(&dev, "job.json", &[]);
    assert_eq!((ended.code, &run["partial"]), (1, &json!(true)), "{run}");
    assert_eq!(did(&dev), ["after-good", "bad", "good"]);
    let page = dev.run(&["run", "show", "last"]).ok();
    assert!(page.contains("failed, partial"), "{page}");
    let line = |task: &str| page.lines().find(|line| line.contains(task)).unwrap().to_owned();
    assert!(line(" after-bad ").contains("skipped") && line(" after-bad ").contains("bad"), "{page}");
    assert!(line(" far ").contains("skipped") && line(" far ").contains("after-bad"), "{page}");
    assert!(dev.run(&["run", "list"]).ok().contains("failed, partial"));
}

#[test]
fn a_run_is_tried_again_from_a_task_on() {
    let dev = Dev::start();
    let job = json!({"tasks": [
        task(&dev, "a", &[], "true"), task(&dev, "b", &["a"], "true"), task(&dev, "side", &["a"], "true"),
        task(&dev, "c", &["b"], "true"),
    ]});
    dev.write("job.json", &job.to_string());
    let (ended, run) = done(&dev, "job.json", &[]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(did(&dev), ["a", "b", "c", "side"]);
    let id = run["id"].as_str().unwrap();
    let again = dev.run(&["run", "retry", id, "--from", "b", "--wait"]);
    assert_eq!(again.code, 0, "{again:?}");
    assert_eq!(did(&dev), ["b", "c"]);
    assert!(
        again.stdout.contains("reused") && again.stdout.contains(&format!("retry of  {id}")),
        "{again:?}"
    );
    let unknown = dev.run(&["run", "retry", id, "--from", "sied"]);
    assert_eq!(unknown.code, 4, "{unknown:?}");
    assert!(unknown.stderr.contains("has no task `sied`; did you mean `side`?"), "{unknown:?}");
    assert_eq!(dev.run(&["run", "retry", id, "--from", "b", "--failed-only"]).code, 2);
    assert_eq!(did(&dev), [""; 0]);
}

#[test]
fn a_second_run_takes_what_was_cached_and_no_cache_does_it_again() {
    let dev = Dev::start();
    let mut compile = task(&dev, "compile", &[], r#"echo "archive=a.tar" >> "$DOWNBEAT_OUTPUT""#);
    (compile["cache"], compile["outputs"]) = (json!(true), json!(["archive"]));
    let mut test = task(&dev, "test", &["compile"], "test $ARCHIVE = a.tar");
    test["params"]["env"] = json!({"ARCHIVE": "{{ steps.compile.outputs.archive }}"});
    dev.write("job.json", &json!({"tasks": [compile, test]}).to_string());
    let (first, run) = done(&dev, "job.json", &[]);
    assert_eq!(first.code, 0, "{first:?}");
    assert_eq!(did(&dev), ["compile", "test"]);
    let original = run["results"]["0"].as_object().unwrap().values().next().unwrap()["execution"].clone();

    let second = dev.run(&["job", "run", "-f", "job.json", "--wait"]);
    assert_eq!(second.code, 0, "{second:?}");
    assert_eq!(did(&dev), ["test"]);
    let line = second.stdout.lines().find(|line| line.contains("compile")).unwrap();
    let from = format!("from execution {}", original.as_str().unwrap());
    assert!(
        line.contains(" cached ") && line.contains(&from) && line.contains("archive=a.tar"),
        "{second:?}"
    );
    let events = dev.run(&["run", "events", "last"]).ok();
    assert!(events.contains("cached"), "{events}");
    let watched = dev.run(&["job", "run", "-f", "job.json", "--watch"]).ok();
    assert!(watched.contains("step 0 compile: 1/1 succeeded (1 cached)"), "{watched}");
    assert_eq!(did(&dev), ["test"]);

    let third = dev.run(&["job", "run", "-f", "job.json", "--no-cache", "--wait"]);
    assert_eq!(third.code, 0, "{third:?}");
    assert_eq!(did(&dev), ["compile", "test"]);
    assert!(third.stdout.contains("not used (--no-cache)"), "{third:?}");
}

#[test]
fn what_no_node_fits_fails_when_its_time_is_over_and_says_why() {
    let dev = Dev::start();
    let job = json!({"placement": {"requires": {"gpu": "nvidia"}, "forbid": ["node-3"]}, "placement_timeout": "1s", "tasks": [
        {"name": "train", "backend": "test", "action": "noop"}]});
    dev.write("job.json", &job.to_string());
    let (done, run) = done(&dev, "job.json", &[]);
    assert_eq!((done.code, &run["status"]), (1, &json!("failed")));
    let page = dev.run(&["run", "show", "last"]).ok();
    let why = "no node fitted it for 1s: no node fits: 2 lack capability gpu; 1 is forbidden";
    assert!(page.contains(why), "{page}");
}

#[test]
fn many_items_that_fit_nowhere_say_why_once() {
    let dev = Dev::start();
    let items: Vec<u32> = (0..30).collect();
    let job = json!({"placement": {"labels": ["gpu"]}, "tasks": [
        {"name": "train", "for_each": items, "backend": "test", "action": "noop"}]});
    dev.write("job.json", &job.to_string());
    let id = dev.submit(&["-f", "job.json"]);
    until("the reasons", || show(&dev, &id)["waiting"].is_array().then_some(()));
    let page = dev.run(&["run", "show", &id]).ok();
    assert!(page.contains("step 0 (train[0] and 29 others) wait for a node:"), "{page}");
    for node in ["node-1", "node-2", "node-3"] {
        assert!(page.contains(&format!("  {node}: ")), "{page}");
    }
    assert!(page.contains("train[0-29]") && page.contains("30 pending"), "{page}");
    dev.run(&["run", "cancel", &id]).ok();
}
