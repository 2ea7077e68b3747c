//! Watching and following runs.

use downbeat_testbed::{Dev, until};

#[test]
fn logs_are_followed_to_the_end_with_whose_they_are() {
    let dev = Dev::start();
    let id = dev.submit(&[
        "--target",
        "node:node-1 or node:node-2",
        "exec",
        "shell",
        "--command",
        "echo begin; sleep 1; printf end",
    ]);
    let logs = dev.run(&["run", "logs", &id, "-f"]).ok();
    let mut lines: Vec<&str> = logs.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["node-1 | begin", "node-1 | end", "node-2 | begin", "node-2 | end"]);
    assert_eq!(dev.run(&["run", "logs", &id, "--node", "node-1"]).ok(), "begin\nend");
    assert_eq!(dev.run(&["run", "logs", &id, "--node", "node-1", "--step", "exec shell"]).ok(), "begin\nend");
}

#[test]
fn logs_of_a_server_that_is_killed_go_on_without_a_lost_or_repeated_line() {
    let server = Dev::server(|server| server);
    let agent = server.agent("web-01").with(&["--allow", "exec"]);
    agent.start();
    until("the node", || (server.json(&["node", "list"])["data"][0]["status"] == "online").then_some(()));
    let (count, stop) = (server.dir.path().join("count"), server.dir.path().join("stop"));
    let script = format!(
        "i=0; while [ ! -e {stop} ]; do i=$((i+1)); echo line $i; echo $i > {count}.new; mv {count}.new {count}; \
         sleep 0.01; done",
        stop = stop.display(),
        count = count.display()
    );
    // The first step has ended when the server is killed, and the second has not.
    let file = server.write(
        "lines.yaml",
        &format!(
            "target: all\ntasks:\n  - {{backend: exec, action: shell, params: {{command: echo first}}}}\n  \
             - {{backend: exec, action: shell, params: {{command: '{script}'}}}}\n"
        ),
    );
    let id = server.submit(&["-f", file.to_str().unwrap()]);
    let mut following = server.spawn(&["run", "logs", &id, "-f"]);
    let lines = following.stdout();
    assert_eq!(lines.next().as_deref(), Some("first"));
    let mut number = 0;
    let mut read_to = |least: u64| {
        while number < least {
            number += 1;
            assert_eq!(lines.next(), Some(format!("line {number}")));
        }
    };
    for _ in 0..2 {
        read_to(20);
        server.kill();
        let counted = || std::fs::read_to_string(&count).unwrap().trim().parse::<u64>().unwrap();
        let before = counted();
        let more = until("more lines", || Some(counted()).filter(|counted| *counted >= before + 20));
        server.serve();
        read_to(more + 20);
    }
    std::fs::write(&stop, "").unwrap();
    let rest: Vec<String> = std::iter::from_fn(|| lines.next()).collect();
    assert_eq!(following.wait().code, 0);
    let last = std::fs::read_to_string(&count).unwrap().trim().parse::<u64>().unwrap();
    let shown = last - rest.len() as u64;
    assert_eq!(rest, (shown + 1..=last).map(|number| format!("line {number}")).collect::<Vec<_>>());
}

#[test]
fn events_are_followed_from_a_number_on() {
    let dev = Dev::start();
    let id = dev.submit(&["--target", "all", "test", "noop"]);
    assert_eq!(dev.run(&["run", "watch", &id]).code, 0);
    let run_events = dev.run(&["run", "events", &id, "-f", "-o", "json"]).ok();
    let kinds: Vec<String> = run_events
        .lines()
        .map(|line| {
            serde_json::from_str::<serde_json::Value>(line).unwrap()["kind"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(
        (kinds.first().unwrap().as_str(), kinds.last().unwrap().as_str()),
        ("run_created", "run_moved")
    );
    for args in [&["run", "events", &id][..], &["event", "list", "--since", "0"]] {
        let lines = dev.run(args).ok();
        let finished = lines.lines().filter(|line| line.contains("execution_finished"));
        let about = format!("(run {id}, step 0 on node-2)");
        assert_eq!(finished.filter(|line| line.ends_with(&about)).count(), 1, "{lines}");
    }

    let mut following = dev.spawn(&["event", "list", "-f", "--since", "0"]);
    let lines = following.stdout();
    lines.find("node-3 registered");
    dev.run(&["node", "drain", "node-3"]).ok();
    lines.find("node is drained");
}

#[test]
fn a_cancelled_run_ends_its_processes() {
    let dev = Dev::start();
    let id = dev.submit(&["--target", "node:node-1", "exec", "run", "--command", "sleep 1000"]);
    until("the run to be running", || {
        let run = dev.run(&["run", "show", &id, "-o", "json"]).json();
        (run["counts"]["running"] == 1).then_some(())
    });
    dev.run(&["run", "cancel", &id]).ok();
    let done = dev.run(&["run", "watch", &id]);
    assert_eq!(done.code, 1);
    assert!(done.stdout.contains("1 cancelled"), "{done:?}");
}

#[test]
fn watching_a_placed_task_that_fits_nowhere_says_so_once() {
    let dev = Dev::start_with(&["--nodes", "2"]);
    let file = dev.write(
        "gpu.yaml",
        "placement: {labels: [gpu]}\ntasks: [{name: train, backend: test, action: noop}]\n",
    );
    let id = dev.submit(&["-f", file.to_str().unwrap()]);
    let mut watching = dev.spawn(&["run", "watch", &id]);
    let lines = watching.stdout();
    let line = lines.find("step 0 train waits: ");
    assert_eq!(
        line,
        "step 0 train waits: no node fits now (node-1: lacks label `gpu`; node-2: lacks label `gpu`)"
    );
    dev.run(&["run", "cancel", &id]).ok();
    assert!(lines.find("").starts_with("step 0 train: "), "the next line is of its end");
}
