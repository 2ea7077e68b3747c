//! `dev`, `server` and `agent` as processes: how they stop, and what a client sees when a server is away.

use downbeat_testbed::{Dev, processes, until};
use nix::sys::signal::Signal;
use serde_json::Value;

#[test]
fn dev_stops_on_a_signal_and_continues_with_its_data() {
    let dev = Dev::start_with(&["--nodes", "1", "--groups", "web,db"]);
    let id = dev.submit(&["--target", "group:db", "test", "noop"]);
    assert_eq!(dev.run(&["run", "watch", &id]).code, 0);
    let done = dev.stop();
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.stdout.contains("continue in another terminal"), "{done:?}");
    dev.serve();
    assert_eq!(dev.run_status(&id), "completed");
}

#[test]
fn a_second_signal_kills_what_runs_and_ends_it_at_once() {
    let dev = Dev::start_with(&["--nodes", "1"]);
    let script = "trap '' TERM; (setsid sleep 1000 &); touch began; sleep 1000; sleep 1000";
    let dir = dev.dir.path().to_str().unwrap().to_owned();
    dev.submit(&["--target", "all", "exec", "shell", "--command", script, "--working-dir", &dir]);
    until("the work to begin", || dev.dir.path().join("began").exists().then_some(()));
    let work = dev.run(&["node", "work", "node-1", "-o", "json"]).json();
    let name = work["held"][0]["name"].as_str().unwrap().to_owned();
    assert!(processes::of_attempt(&name) >= 3);
    let logs = |words: &str| until(words, || dev.log().contains(words).then_some(()));
    dev.signal(Signal::SIGTERM);
    logs("stopping");
    // The same signal again within a second is not a second request.
    dev.signal(Signal::SIGINT);
    logs("stopped at once");
    assert_eq!(dev.wait().code, 1);
    assert_eq!(processes::of_attempt(&name), 0, "nothing of the work still runs");
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

#[test]
fn watching_survives_a_server_that_is_killed_and_started_again() {
    let server = Dev::server(|server| server.with(&["--log-format", "json"]));
    let agent = server.agent("web-01").with(&["--groups", "web", "--label", "disk=ssd"]);
    agent.start();
    until("the node", || {
        (server.json(&["node", "list"])["data"][0]["labels"]["disk"] == "ssd").then_some(())
    });
    // Without --allow exec the node does not offer it.
    let refused = server.run(&["job", "run", "--target", "all", "exec", "run", "--command", "id"]);
    assert_eq!(refused.code, 5, "{refused:?}");
    assert!(refused.stderr.contains("web-01"), "{refused:?}");

    let watching = server.spawn(&[
        "job",
        "run",
        "--target",
        "group:web",
        "--watch",
        "test",
        "sleep",
        "--duration",
        "3s",
    ]);
    until("the run", || {
        let runs = server.json(&["run", "list", "--status", "running"]);
        (runs["pagination"]["total"] == 1).then_some(())
    });
    server.kill();
    server.serve();
    let done = watching.wait();
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.stdout.contains("step 0 test sleep: 1/1 succeeded"), "{done:?}");

    assert_eq!(agent.stop().code, 0);
    server.signal(Signal::SIGINT);
    let done = server.wait();
    assert_eq!(done.code, 0, "{done:?}");
    for line in done.stderr.lines() {
        serde_json::from_str::<Value>(line).expect("each line of the log is a JSON document");
    }
}
