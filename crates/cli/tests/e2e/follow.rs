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
