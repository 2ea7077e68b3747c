//! A read replica as a process: it shows what its primary shows, changes nothing, and survives being killed.

use std::path::Path;

use serde_json::Value;

use crate::cluster::{Dev, Done, Process, downbeat, ready, until};

fn start(dir: &Path, primary: &str) -> (Process, String) {
    let _ = std::fs::remove_file(dir.join("replica.json"));
    let mut command = downbeat(dir);
    command.args(["server", "--replica-of", primary, "--store", "sqlite:copy.db", "--name", "copy"]);
    command.args(["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--ready-file", "replica.json"]);
    let process = Process::spawn(command);
    let ready = ready(dir, "replica.json");
    (process, ready["url"].as_str().unwrap().to_owned())
}

fn ask(dir: &Path, url: &str, args: &[&str]) -> Done {
    let mut command = downbeat(dir);
    command.args(["--server", url]).args(args);
    Done::of(command.output().unwrap())
}

/// What the replica says of itself once it has the primary's events up to now.
fn caught_up(dev: &Dev, url: &str) -> Value {
    let last = dev.run(&["event", "list", "-o", "json"]).json()["pagination"]["next"].as_u64().unwrap();
    until("the replica to catch up", || {
        let done = ask(dev.dir.path(), url, &["status", "-o", "json"]);
        let status: Value = serde_json::from_str(&done.stdout).ok()?;
        (status["replica"]["seq"].as_u64()? >= last && status["replica"]["connected"] == true)
            .then_some(status)
    })
}

#[test]
fn a_replica_shows_what_its_primary_shows_and_changes_nothing() {
    let dev = Dev::start_with(&["--nodes", "2"]);
    let dir = dev.dir.path();
    let before = dev.submit(&["--target", "all", "exec", "run", "--command", "echo before"]);
    assert_eq!(dev.run(&["run", "watch", &before]).code, 0);

    let (replica, url) = start(dir, dev.url());
    let status = caught_up(&dev, &url);
    assert_eq!((&status["role"], &status["replica"]["copies"]), (&"replica".into(), &1.into()));
    for args in [
        &["run", "show", &before, "-o", "json"][..],
        &["run", "list", "-o", "json"],
        &["run", "logs", &before],
        &["run", "events", &before],
        &["event", "list", "-o", "json"],
        &["node", "show", "node-1", "-o", "json"],
        &["node", "work", "node-1", "-o", "json"],
    ] {
        let there = dev.run(args).ok();
        until("the same answer", || (ask(dir, &url, args).stdout == there).then_some(()));
    }
    let page = ask(dir, &url, &["status"]).ok();
    assert!(page.contains("replica of") && page.contains(dev.url()) && page.contains("behind"), "{page}");
    let servers = ask(dir, &url, &["server-list", "-o", "json"]).json();
    assert!(
        servers["data"]
            .as_array()
            .unwrap()
            .iter()
            .any(|one| one["name"] == "copy" && one["role"] == "replica")
    );

    let refused = ask(dir, &url, &["job", "run", "--target", "all", "test", "noop"]);
    assert_eq!(refused.code, 5, "{refused:?}");
    assert!(refused.stderr.contains(&format!("--server {}", dev.url())), "{refused:?}");
    assert_eq!(ask(dir, &url, &["run", "cancel", &before]).code, 5);
    assert_eq!(ask(dir, &url, &["node", "drain", "node-1"]).code, 5);

    // Watched at the replica from its beginning to its end, with all that it wrote.
    let run =
        dev.submit(&["--target", "all", "exec", "run", "--command", "sh -c 'echo one; sleep 1; echo two'"]);
    caught_up(&dev, &url);
    let logs = ask(dir, &url, &["run", "logs", &run, "-f"]).ok();
    assert_eq!((logs.matches("one").count(), logs.matches("two").count()), (2, 2), "{logs}");
    assert_eq!(ask(dir, &url, &["run", "watch", &run]).code, 0);

    // kill -9, and the primary goes on without it.
    drop(replica);
    let missed = dev.submit(&["--target", "all", "exec", "run", "--command", "echo missed"]);
    assert_eq!(dev.run(&["run", "watch", &missed]).code, 0);
    let (again, url) = start(dir, dev.url());
    let status = caught_up(&dev, &url);
    assert_eq!(status["replica"]["copies"], 0, "it went on with the copy that it had");
    assert_eq!(ask(dir, &url, &["run", "logs", &missed]).ok(), dev.run(&["run", "logs", &missed]).ok());

    // Without its primary it still answers, and says how it stands.
    let Dev { process, dir: kept, .. } = dev;
    drop(process);
    until("the loss to be noticed", || {
        let status = ask(kept.path(), &url, &["status", "-o", "json"]).json();
        (status["replica"]["connected"] == false && status["replica"]["error"].is_string()).then_some(())
    });
    assert!(ask(kept.path(), &url, &["run", "show", &missed]).ok().contains("completed"));
    drop(again);
    // Neither is the copy a server's store, nor the other way round.
    for (store, more) in
        [("sqlite:copy.db", &[][..]), ("sqlite:data/downbeat.db", &["--replica-of", "http://127.0.0.1:1"])]
    {
        let mut command = downbeat(kept.path());
        command
            .args(["server", "--store", store, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"])
            .args(more);
        let refused = Done::of(command.output().unwrap());
        assert_eq!(refused.code, 5, "{refused:?}");
        assert!(refused.stderr.contains("name another store"), "{refused:?}");
    }
}
