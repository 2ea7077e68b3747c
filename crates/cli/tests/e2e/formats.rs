//! JSON, YAML and pipes.

use std::process::Stdio;

use downbeat_testbed::{Dev, Process, example, run_in};
use serde_json::Value;

#[test]
fn json_is_one_document_and_one_per_line_while_watching() {
    let dev = Dev::start();
    let id = dev.submit(&["--target", "all", "exec", "run", "--command", "echo one two"]);
    let watched = dev.run(&["run", "watch", &id, "-o", "json"]).ok();
    let last: Value = serde_json::from_str(watched.lines().last().unwrap()).unwrap();
    assert_eq!((&last["id"], &last["status"]), (&Value::from(id.as_str()), &Value::from("completed")));
    for args in [
        &["status"][..],
        &["server-list"],
        &["run", "list"],
        &["run", "show", "last"],
        &["run", "results", "last"],
        &["run", "events", "last"],
        &["run", "logs", "last"],
        &["node", "list"],
        &["node", "show", "node-1"],
        &["event", "list"],
        &["job", "plan", "-f", &example("graph.yaml")],
        &["job", "schema"],
    ] {
        let json = dev.run(&[args, &["-o", "json"]].concat()).json();
        assert!(json.is_object(), "{args:?}");
        let yaml = dev.run(&[&["-o", "yaml"], args].concat()).ok();
        assert!(yaml.lines().next().unwrap().contains(':'), "{args:?}: {yaml}");
        assert!(!yaml.contains('\u{1b}'));
    }
    assert_eq!(dev.run(&["run", "logs", "last", "-o", "json"]).json()["data"][0]["text"], "one two\n");
}

#[test]
fn text_reaches_the_node_as_it_was_written() {
    let dev = Dev::start();
    let id = dev.submit(&["--target", "all", "test", "echo", "--message", "tricky: \"text\" # no\tcomment"]);
    assert_eq!(dev.run(&["run", "watch", &id]).code, 0);
    let logs = dev.run(&["run", "logs", &id, "--node", "node-1"]).ok();
    assert_eq!(logs.trim_end(), "tricky: \"text\" # no\tcomment");
}

#[test]
fn a_job_file_is_read_from_standard_input() {
    let dev = Dev::start();
    let mut command =
        dev.command(&["job", "run", "-f", "-", "--target", "node:node-2", "--wait", "-o", "json"]);
    command.stdin(Stdio::piped());
    let mut process = Process::spawn(command);
    process.write("tasks: [{backend: test, action: noop}]\ntarget: all\n");
    let run = process.wait().json();
    let results = dev.json(&["run", "results", run["id"].as_str().unwrap()]);
    assert_eq!((&run["nodes"], &results["data"][0]["node"]), (&Value::from(1), &Value::from("node-2")));
}

#[test]
fn a_reader_that_leaves_is_not_a_failure() {
    let dev = Dev::start();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = dev.command(&["node", "list"]);
    command.stdout(writer);
    let done = Process::spawn(command).wait();
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
}

#[test]
fn the_same_idempotency_key_returns_the_first_run() {
    let dev = Dev::start();
    let submit = || dev.submit(&["--idempotency-key", "deploy-7", "--target", "all", "test", "noop"]);
    assert_eq!(submit(), submit());
    assert_eq!(dev.run(&["run", "list", "-o", "json"]).json()["pagination"]["total"], 1);
}

#[test]
fn a_beginning_of_an_id_is_enough() {
    let dev = Dev::start();
    let id = dev.submit(&["--target", "all", "test", "noop"]);
    assert_eq!(dev.run(&["run", "show", &id[..8], "-o", "json"]).json()["id"], id);
}

#[test]
fn completions_are_made_for_every_shell() {
    let dir = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(run_in(dir.path(), &["completions", shell]).ok().contains("server-list"), "{shell}");
    }
}
