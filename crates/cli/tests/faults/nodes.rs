//! Nodes that are forgotten, cloned, deleted and stopped: an agent ends only after a deletion, and lost work is retried soon.

use downbeat_testbed::eventually;
use downbeat_testbed::processes::is_alive;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::site::Site;

/// A placed task that says where it runs and then runs for long, or ends when it was tried before.
fn placed(site: &Site) -> (Value, std::path::PathBuf) {
    let pid = site.directory.path().join("pid");
    let script =
        format!("[ -e {0} ] && exit 0; echo $$ > {0}.part; mv {0}.part {0}; sleep 600", pid.display());
    let task = json!({"backend": "exec", "action": "shell", "params": {"command": script}, "placement": {}});
    (json!({"tasks": [task]}), pid)
}

async fn pid_in(file: &std::path::Path) -> i32 {
    eventually("the process began", || async { std::fs::read_to_string(file).ok()?.trim().parse().ok() })
        .await
}

/// The node that has the first execution of a run.
async fn taker(site: &Site, run: &str) -> String {
    eventually("it is taken", || async {
        site.executions(run).await.first()?["node"].as_str().map(str::to_owned)
    })
    .await
}

#[tokio::test]
async fn a_server_that_starts_with_an_empty_store_ends_no_agent() {
    let mut site = Site::with_agents(&["web-1"]).await;
    let first = site.get("nodes/web-1").await.unwrap();
    site.server.kill();
    let former = site.use_store("other.db");
    site.server.serve();
    site.nodes_online(1).await;
    let known = site.get("nodes/web-1").await.unwrap();
    assert_eq!(known["session"], first["session"], "the same agent in the same session");
    let run = site.submit(&json!({"target": "all", "tasks": [site.entry("a", "0")]}), "k").await;
    assert_eq!(site.ended(&run).await["status"], "completed");
    // The operator notices, and uses the former store again.
    site.server.kill();
    site.use_store(&former);
    site.server.serve();
    site.nodes_online(1).await;
    assert!(site.agent("web-1").is_running(), "it kept running");
}

#[tokio::test]
async fn work_and_results_outlast_a_server_that_starts_with_an_empty_store_for_a_while() {
    let mut site = Site::start(Site::build().lease_ttl("60s").agents(&["web-1"])).await;
    let mut runs = Vec::new();
    for gate in ["first", "second"] {
        let mut task = site.gated(gate, gate);
        task["placement"] = json!({});
        runs.push(site.submit(&json!({"tasks": [task]}), gate).await);
        site.have_begun(runs.len()).await;
    }
    let begun = site.begun();
    let pids: Vec<i32> = begun.iter().map(|name| site.pid_of(name)).collect();
    site.server.kill();
    site.open("first");
    eventually("the first one ends while there is no server", || async {
        (!is_alive(pids[0])).then_some(())
    })
    .await;
    let former = site.use_store("other.db");
    site.server.serve();
    site.nodes_online(1).await;
    eventually("it has been asked about all of it, more than once", || async {
        let node = site.get("nodes/web-1").await?;
        let time = |name: &str| node[name].as_str()?.parse::<jiff::Timestamp>().ok();
        (time("seen_at")?.duration_since(time("registered_at")?).as_secs() > 6).then_some(())
    })
    .await;
    assert!(is_alive(pids[1]), "nobody has ended it");
    site.server.kill();
    site.use_store(&former);
    site.server.serve();
    assert_eq!(site.ended(&runs[0]).await["status"], "completed");
    assert!(is_alive(pids[1]), "nobody has ended it");
    site.open("second");
    assert_eq!(site.ended(&runs[1]).await["status"], "completed");
    assert_eq!(site.begun(), begun, "each was carried out once");
    let checked = site.check(&runs).await;
    assert_eq!((checked.executions, checked.lost), (2, 0));
}

#[tokio::test]
async fn an_agent_outlives_a_store_from_a_backup_that_does_not_know_it() {
    let mut site = Site::with_agents(&["web-1"]).await;
    site.server.stop();
    let file = site.directory.path().join("downbeat.db");
    let backup = std::fs::read(&file).unwrap();
    site.server.serve();
    site.start_agent("web-2");
    site.nodes_online(2).await;
    site.server.stop();
    for name in ["downbeat.db-wal", "downbeat.db-shm"] {
        let _ = std::fs::remove_file(site.directory.path().join(name));
    }
    std::fs::write(&file, backup).unwrap();
    site.server.serve();
    site.nodes_online(2).await;
    assert!(site.agent("web-1").is_running() && site.agent("web-2").is_running());
}

#[tokio::test]
async fn a_second_machine_with_the_same_hostname_does_not_take_a_living_node() {
    let mut site = Site::with_agents(&["web-1"]).await;
    let (definition, file) = placed(&site);
    let run = site.submit(&definition, "k").await;
    let pid = pid_in(&file).await;
    let session = site.get("nodes/web-1").await.unwrap()["session"].clone();
    let mut twin = site.server.agent("twin").with(&["--allow", "exec"]);
    twin.replace("--hostname", "web-1".to_owned());
    site.add_agent(twin);
    eventually("the twin is refused", || async {
        site.agent("twin").log().contains("web-1 is online as installation").then_some(())
    })
    .await;
    assert_eq!(site.get("nodes/web-1").await.unwrap()["session"], session);
    assert!(is_alive(pid), "its work goes on");
    // When the first one is gone, the node is the twin's.
    site.agent("web-1").kill();
    eventually("the twin has the node", || async {
        (site.get("nodes/web-1").await?["session"] != session).then_some(())
    })
    .await;
    assert_eq!(site.ended(&run).await["status"], "completed");
}

#[tokio::test]
async fn an_agent_of_a_cluster_that_does_not_exist_ends_with_4_and_names_it() {
    let mut site = Site::with_agents(&[]).await;
    let agent = site.server.agent("web-1").with(&["--cluster", "east"]);
    site.add_agent(agent);
    let done = site.agent("web-1").wait();
    assert_eq!(done.code, 4);
    let log = std::fs::read_to_string(site.directory.path().join("web-1.log")).unwrap();
    assert!(log.contains("cluster `east` does not exist; create it"), "{log}");
    assert_eq!(site.get("nodes").await.unwrap()["data"], json!([]));
}

#[tokio::test]
async fn a_node_whose_agent_was_stopped_is_deleted_without_force_and_one_that_is_online_is_not() {
    let mut site = Site::with_agents(&["web-1"]).await;
    let refused = site.server.run(&["node", "delete", "web-1"]);
    assert_eq!(refused.code, 5, "{}", refused.stderr);
    assert!(refused.stderr.contains("--force"), "it says what to do: {}", refused.stderr);
    assert_eq!(site.agent("web-1").stop().code, 0);
    // The goodbye is recorded before the agent ends.
    let deleted = site.server.run(&["node", "delete", "web-1"]);
    assert_eq!(deleted.code, 0, "{}", deleted.stderr);
    assert_eq!(site.get("nodes").await.unwrap()["data"], json!([]));
    site.start_agent("web-1");
    site.nodes_online(1).await;
}

#[tokio::test]
async fn a_deleted_nodes_agent_ends_with_4_and_its_work_goes_to_another() {
    let mut site = Site::start(Site::build().lease_ttl("60s").agents(&["web-1", "web-2"])).await;
    let (definition, file) = placed(&site);
    let run = site.submit(&definition, "k").await;
    let (pid, name) = (pid_in(&file).await, taker(&site, &run).await);
    assert_eq!(site.delete(&format!("nodes/{name}")).await, Some(409), "it is online");
    assert_eq!(site.delete(&format!("nodes/{name}?force=1")).await, Some(200));
    // Killed right after: the next start derives from the store what follows.
    site.server.kill();
    site.server.serve();
    let view = site.ended(&run).await;
    assert_eq!(view["status"], "completed", "{view:#}");
    let executions = site.executions(&run).await;
    assert_eq!((&executions[0]["status"], &executions[0]["node"]), (&json!("lost"), &json!(name)));
    assert_ne!(executions[1]["node"], json!(name));
    assert_eq!(site.agent(&name).wait().code, 4);
    assert!(!is_alive(pid), "with its work");
    // Started again, it is a node again.
    site.start_agent(&name);
    site.nodes_online(2).await;
}

#[tokio::test]
async fn a_graceful_stop_sends_placed_work_that_outlasts_it_to_another_node_at_once() {
    // The term is longer than the test's patience.
    let build = Site::build().lease_ttl("10m").agents(&["web-1", "web-2"]);
    let site = Site::start(build.agent_flags(&["--drain-timeout", "100ms"])).await;
    let (definition, file) = placed(&site);
    let run = site.submit(&definition, "k").await;
    let (pid, name) = (pid_in(&file).await, taker(&site, &run).await);
    site.agent(&name).signal(Signal::SIGTERM);
    let view = site.ended(&run).await;
    assert_eq!(view["status"], "completed", "{view:#}");
    let executions = site.executions(&run).await;
    assert_eq!(
        (&executions[0]["status"], &executions[0]["error"]),
        (&json!("lost"), &json!("the agent stopped"))
    );
    assert_ne!(executions[1]["node"], json!(name));
    assert!(!is_alive(pid));
    assert_eq!(site.agent(&name).wait().code, 0);
}
