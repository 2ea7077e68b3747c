//! `downbeat debug`: output while the command runs, and the exit code of the command.

use downbeat_testbed::{Dev, Process, until};
use nix::sys::signal::Signal;

use crate::waiting::until_it_handles_ctrl_c;

fn dev() -> Dev {
    Dev::start_with(&["--nodes", "2"])
}

#[test]
fn output_comes_while_the_command_runs_and_each_stream_stays_apart() {
    let dev = dev();
    let go = dev.dir.path().join("go");
    let script =
        format!("echo out; echo err >&2; while [ ! -e {} ]; do sleep 0.05; done; printf end", go.display());
    let mut process: Process = dev.spawn(&["debug", "node-1", "--", &script]);
    process.stdout().find("out");
    std::fs::write(&go, "").unwrap();
    let done = process.wait();
    assert_eq!(done.code, 0, "{done:?}");
    let done = dev.run(&["debug", "node-1", "--", "echo out; echo err >&2; printf end"]);
    assert_eq!((done.stdout.as_str(), done.stderr.as_str(), done.code), ("out\nend", "err\n", 0));
}

#[test]
fn the_exit_code_of_the_command_is_passed_on() {
    let dev = dev();
    for code in [0, 1, 3, 70, 255] {
        let done = dev.run(&["debug", "node-1", "--", &format!("exit {code}")]);
        assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (code, "", ""), "{code}");
    }
    let quoted = dev.run(&["debug", "node-1", "--", "printf", "%s|", "a b", "$HOME", "it's", "{{x}}"]);
    assert_eq!(quoted.ok(), "a b|$HOME|it's|{{x}}|");
}

#[test]
fn a_command_that_does_not_exit_by_itself_says_why() {
    let dev = dev();
    let done = dev.run(&["debug", "node-1", "--timeout", "1s", "--", "echo begun; sleep 600"]);
    assert_eq!((done.code, done.stdout.as_str()), (1, "begun\n"), "{done:?}");
    assert!(done.stderr.starts_with("node-1: ") && done.stderr.contains("timed out"), "{done:?}");
    let killed = dev.run(&["debug", "node-1", "--", "kill -9 $$"]);
    assert_ne!(killed.code, 0, "{killed:?}");
}

#[test]
fn mistakes_have_the_usual_exit_codes() {
    let dev = dev();
    for (args, code, text) in [
        (&["debug", "node-1"][..], 2, "missing"),
        (&["debug", "node-1", "--", ""][..], 2, "the command is empty"),
        (&["debug", "node-1", "--", "  "][..], 2, "the command is empty"),
        (&["debug", "--", "uptime"][..], 2, "missing"),
        (&["debug", "node-1", "--timeout", "2d", "--", "uptime"][..], 2, "is not a valid timeout"),
        (&["debug", "nobody", "--", "uptime"][..], 4, "there is no node `nobody`"),
        (&["debug", "--selector", "group:nobody", "--", "uptime"][..], 5, "nobody"),
    ] {
        let done = dev.run(args);
        assert_eq!(done.code, code, "{args:?}: {done:?}");
        assert!(done.stderr.contains(text), "{args:?}: {done:?}");
    }
}

#[test]
fn a_node_whose_agent_does_not_allow_exec_is_refused() {
    let dev = Dev::server(|server| server);
    let agent = dev.agent("web-01");
    agent.start();
    until("the node to be online", || {
        let nodes = dev.run(&["node", "list", "-o", "json"]).json();
        (nodes["data"][0]["status"] == "online").then_some(())
    });
    let done = dev.run(&["debug", "web-01", "--", "uptime"]);
    assert_eq!(done.code, 5, "{done:?}");
    assert!(done.stderr.contains("web-01: ") && done.stderr.contains("--allow exec"), "{done:?}");
}

#[test]
fn a_selector_runs_the_command_on_each_node() {
    let dev = dev();
    let done = dev.run(&["debug", "--selector", "all", "--", "echo here; echo there >&2"]);
    assert_eq!(done.code, 0, "{done:?}");
    let mut lines: Vec<&str> = done.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["node-1 | here", "node-2 | here"]);
    assert!(
        done.stderr.contains("node-1 err| there") && done.stderr.contains("2 nodes: 2 succeeded"),
        "{done:?}"
    );

    let script = format!("mkdir {} || exit 3", dev.dir.path().join("once").display());
    let done = dev.run(&["debug", "--selector", "all", "--", &script]);
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.stderr.contains("2 nodes: 1 succeeded, 1 failed"), "{done:?}");

    let document = dev.run(&["debug", "--selector", "all", "-o", "json", "--", "echo here"]).json();
    assert_eq!(document["status"], "completed", "{document}");
    let results = document["data"].as_array().unwrap();
    assert_eq!(results.len(), 2);
    assert!(
        results.iter().all(|result| result["output"] == "here\n" && result["exit_code"] == 0),
        "{document}"
    );
}

#[test]
fn ctrl_c_cancels_the_command() {
    let dev = dev();
    let mut process = dev.spawn(&["debug", "node-1", "--", "echo begun; sleep 600"]);
    until_it_handles_ctrl_c(&process);
    process.stdout().find("begun");
    process.signal(Signal::SIGINT);
    let done = process.wait();
    assert_eq!(done.code, 130, "{done:?}");
    assert!(done.stderr.contains("cancelling the command"), "{done:?}");
    let runs = dev.run(&["run", "list", "-o", "json"]).json();
    assert_eq!(runs["data"], serde_json::json!([]), "it is not a run of a job");
    until("the node to hold nothing", || {
        let work = dev.run(&["node", "work", "node-1", "-o", "json"]).json();
        (work["held"] == serde_json::json!([])).then_some(())
    });
}

#[test]
fn a_command_runs_while_its_node_is_busy() {
    let dev = dev();
    let run = dev.submit(&["--target", "all", "exec", "run", "--command", "sleep 600"]);
    until("the run to be busy on its nodes", || (dev.run_status(&run) == "running").then_some(()));
    assert_eq!(dev.run(&["debug", "node-1", "--", "echo examined"]).ok(), "examined\n");
    assert_eq!(dev.run_status(&run), "running");
}
