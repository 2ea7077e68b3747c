//! `dev`, `server` and `agent` as processes: how they stop, and what a client sees when a server is away.

use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::cluster::{Dev, Done, Process, downbeat, ready, until};

#[test]
fn dev_stops_when_it_is_told_to_and_goes_on_with_its_data() {
    let dev = Dev::start_with(&["--nodes", "1", "--groups", "web,db"]);
    let id = dev.submit(&["--target", "group:db", "test", "noop"]);
    assert_eq!(dev.run(&["run", "watch", &id]).code, 0);
    let Dev { process, dir, .. } = dev;
    process.signal(Signal::SIGTERM);
    let done = process.wait();
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.stdout.contains("go on in another terminal"), "{done:?}");

    std::fs::remove_file(dir.path().join("ready.json")).unwrap();
    let mut command = downbeat(dir.path());
    command.args([
        "dev",
        "--data",
        "data",
        "--http",
        "127.0.0.1:0",
        "--grpc",
        "127.0.0.1:0",
        "--ready-file",
        "ready.json",
        "--nodes",
        "1",
    ]);
    let process = Process::spawn(command);
    let ready = ready(dir.path(), "ready.json");
    let dev = Dev { process, dir, ready };
    assert_eq!(dev.run_status(&id), "completed");
}

/// Processes that say of themselves that they belong to this attempt.
fn processes_of(name: &str) -> usize {
    let marker = format!("DOWNBEAT_EXECUTION={name}");
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let environments = processes.filter_map(|process| std::fs::read(process.path().join("environ")).ok());
    environments.filter(|all| all.split(|byte| *byte == 0).any(|one| one == marker.as_bytes())).count()
}

#[test]
fn a_second_signal_kills_what_runs_and_ends_it_at_once() {
    let mut dev = Dev::start_with(&["--nodes", "1"]);
    let script = "trap '' TERM; (setsid sleep 1000 &); touch began; sleep 1000; sleep 1000";
    let dir = dev.dir.path().to_str().unwrap().to_owned();
    dev.submit(&["--target", "all", "exec", "shell", "--command", script, "--working-dir", &dir]);
    until("the work to begin", || dev.dir.path().join("began").exists().then_some(()));
    let work = dev.run(&["node", "work", "node-1", "-o", "json"]).json();
    let name = work["held"][0]["name"].as_str().unwrap().to_owned();
    assert!(processes_of(&name) >= 3);
    let stderr = dev.process.stderr();
    dev.process.signal(Signal::SIGTERM);
    stderr.find("stopping");
    // The same signal again within a second is no second request.
    dev.process.signal(Signal::SIGINT);
    stderr.find("ended at once");
    assert_eq!(dev.process.wait().code, 1);
    assert_eq!(processes_of(&name), 0, "nothing of the work still runs");
}

#[test]
fn the_first_process_of_a_container_waits_for_orphans() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let dev = Dev::start_as_first_process();
    // A process that nobody has waited for can still be signalled, also after its end.
    let script = "pid=$( (sleep 0.01 >/dev/null & echo $!) ); while kill -0 $pid; do sleep 0.05; done";
    let done = dev.run(&["job", "run", "--wait", "--target", "all", "exec", "shell", "--command", script]);
    assert_eq!(done.code, 0, "{done:?}");
}

fn server(dir: &Path, http: &str, grpc: &str) -> (Process, Value) {
    let _ = std::fs::remove_file(dir.join("server.json"));
    let mut command = downbeat(dir);
    command.args([
        "server",
        "--store",
        "sqlite:store.db",
        "--http",
        http,
        "--grpc",
        grpc,
        "--ready-file",
        "server.json",
        "--log-format",
        "json",
    ]);
    let process = Process::spawn(command);
    (process, ready(dir, "server.json"))
}

fn client(dir: &Path, url: &str, args: &[&str]) -> Command {
    let mut command = downbeat(dir);
    command.args(["--server", url]).args(args);
    command
}

#[test]
fn watching_survives_a_server_that_is_killed_and_started_again() {
    let dir = tempfile::tempdir().unwrap();
    let (first, addresses) = server(dir.path(), "127.0.0.1:0", "127.0.0.1:0");
    let address = |key: &str| addresses[key].as_str().unwrap().to_owned();
    let (http, grpc, url) = (address("http"), address("grpc"), address("url"));
    let mut agent = downbeat(dir.path());
    agent.args([
        "agent",
        "--server",
        &grpc,
        "--hostname",
        "web-01",
        "--groups",
        "web",
        "--label",
        "disk=ssd",
        "--data",
        "agent",
    ]);
    let agent = Process::spawn(agent);
    until("the node", || {
        let nodes =
            Done::of(client(dir.path(), &url, &["node", "list", "-o", "json"]).output().unwrap()).json();
        (nodes["data"][0]["labels"]["disk"] == "ssd").then_some(())
    });
    // Without --allow exec the node does not offer it.
    let refused = Done::of(
        client(dir.path(), &url, &["job", "run", "--target", "all", "exec", "run", "--command", "id"])
            .output()
            .unwrap(),
    );
    assert_eq!(refused.code, 5, "{refused:?}");
    assert!(refused.stderr.contains("web-01"), "{refused:?}");

    let watching = Process::spawn(client(
        dir.path(),
        &url,
        &["job", "run", "--target", "group:web", "--watch", "test", "sleep", "--duration", "3s"],
    ));
    until("the run", || {
        let runs = Done::of(
            client(dir.path(), &url, &["run", "list", "--status", "running", "-o", "json"]).output().unwrap(),
        )
        .json();
        (runs["pagination"]["total"] == 1).then_some(())
    });
    drop(first);
    let (second, _) = server(dir.path(), &http, &grpc);
    let done = watching.wait();
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.stdout.contains("step 0 test sleep: 1/1 succeeded"), "{done:?}");

    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.wait().code, 0);
    second.signal(Signal::SIGINT);
    let done = second.wait();
    assert_eq!(done.code, 0, "{done:?}");
    for line in done.stderr.lines() {
        serde_json::from_str::<Value>(line).expect("each line of the log is a JSON document");
    }
}
