//! A read replica as a process: it shows what its primary shows, changes nothing, and survives being killed.

use downbeat_testbed::{Dev, Server, run_in, until};
use serde_json::Value;

/// Returns the replica's status after it has the primary's events up to now.
fn caught_up(dev: &Dev, replica: &Server) -> Value {
    let last = dev.run(&["event", "list", "-o", "json"]).json()["pagination"]["next"].as_u64().unwrap();
    until("the replica to catch up", || {
        let done = replica.run(&["status", "-o", "json"]);
        let status: Value = serde_json::from_str(&done.stdout).ok()?;
        (status["replica"]["seq"].as_u64()? >= last && status["replica"]["connected"] == true)
            .then_some(status)
    })
}

#[test]
fn a_replica_shows_what_its_primary_shows_and_changes_nothing() {
    let dev = Dev::start_with(&["--nodes", "2"]);
    let before = dev.submit(&["--target", "all", "exec", "run", "--command", "echo before"]);
    assert_eq!(dev.run(&["run", "watch", &before]).code, 0);

    let replica = Server::new(dev.dir.path(), "copy", "sqlite:copy.db").with(&["--replica-of", &dev.url()]);
    replica.serve();
    let status = caught_up(&dev, &replica);
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
        until("the same answer", || (replica.run(args).stdout == there).then_some(()));
    }
    let page = replica.run(&["status"]).ok();
    assert!(page.contains("replica of") && page.contains(&dev.url()) && page.contains("behind"), "{page}");
    let servers = replica.run(&["server-list", "-o", "json"]).json();
    assert!(
        servers["data"]
            .as_array()
            .unwrap()
            .iter()
            .any(|one| one["name"] == "copy" && one["role"] == "replica")
    );

    let refused = replica.run(&["job", "run", "--target", "all", "test", "noop"]);
    assert_eq!(refused.code, 5, "{refused:?}");
    assert!(refused.stderr.contains(&format!("--server {}", dev.url())), "{refused:?}");
    assert_eq!(replica.run(&["run", "cancel", &before]).code, 5);
    assert_eq!(replica.run(&["node", "drain", "node-1"]).code, 5);

    // Watched at the replica from its beginning to its end, with all that it wrote.
    let run =
        dev.submit(&["--target", "all", "exec", "run", "--command", "sh -c 'echo one; sleep 1; echo two'"]);
    caught_up(&dev, &replica);
    let logs = replica.run(&["run", "logs", &run, "-f"]).ok();
    assert_eq!((logs.matches("one").count(), logs.matches("two").count()), (2, 2), "{logs}");
    assert_eq!(replica.run(&["run", "watch", &run]).code, 0);

    // kill -9, and the primary goes on without it.
    replica.kill();
    let missed = dev.submit(&["--target", "all", "exec", "run", "--command", "echo missed"]);
    assert_eq!(dev.run(&["run", "watch", &missed]).code, 0);
    replica.serve();
    let status = caught_up(&dev, &replica);
    assert_eq!(status["replica"]["copies"], 0, "it went on with the copy that it had");
    assert_eq!(replica.run(&["run", "logs", &missed]).ok(), dev.run(&["run", "logs", &missed]).ok());

    // Without its primary it still responds, with its status.
    dev.kill();
    until("the loss to be noticed", || {
        let status = replica.run(&["status", "-o", "json"]).json();
        (status["replica"]["connected"] == false && status["replica"]["error"].is_string()).then_some(())
    });
    assert!(replica.run(&["run", "show", &missed]).ok().contains("completed"));
    replica.kill();
    // Neither is the copy a server's store, nor the other way round.
    for (store, more) in
        [("sqlite:copy.db", &[][..]), ("sqlite:data/downbeat.db", &["--replica-of", "http://127.0.0.1:1"])]
    {
        let server = ["server", "--store", store, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"];
        let refused = run_in(dev.dir.path(), &[&server, more].concat());
        assert_eq!(refused.code, 5, "{refused:?}");
        assert!(refused.stderr.contains("use another --store"), "{refused:?}");
    }
}
