//! Recovery: another node does the work of a node that is gone or late, and it counts once.

use std::fs;

use downbeat_testbed::eventually;
use downbeat_testbed::processes::is_alive;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{name_of, parallel, rows, site};
use crate::site::Site;

/// Bytes of results that an agent has and no server has acknowledged.
fn outbox(site: &Site, agent: &str) -> u64 {
    let files =
        fs::read_dir(site.directory.path().join(agent).join("outbox")).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|data| data.len()).sum()
}

/// Waits until the second attempt of the run has begun, and returns its execution.
async fn second_attempt(site: &Site, run: &str) -> Value {
    eventually("the second attempt runs", || async {
        let executions = site.executions(run).await;
        executions.into_iter().find(|each| each["attempt"] == 2 && each["status"] == "running")
    })
    .await
}

#[tokio::test]
async fn all_leases_of_a_node_that_fell_silent_are_recovered() {
    let mut site = site(&["web-1"]).await;
    let tasks = vec![site.gated("a", "gate"), site.gated("b", "gate")];
    let run = site.submit(&parallel(tasks), "k").await;
    site.have_begun(2).await;
    site.agent("web-1").signal(Signal::SIGSTOP);
    site.start_agent("web-2");
    site.have_begun(4).await;
    site.open("gate");
    assert_eq!(site.ended(&run).await["status"], "completed");
    let expected = [
        (1, 1, "lost", "web-1"),
        (1, 2, "succeeded", "web-2"),
        (2, 1, "lost", "web-1"),
        (2, 2, "succeeded", "web-2"),
    ];
    assert_eq!(rows(&site.executions(&run).await), expected);
    assert_eq!(site.figure(r#"downbeat_node_leases_expired_total{cluster="default",node="web-1"}"#).await, 2);
    assert_eq!(site.figure(r#"downbeat_node_leases_expired_total{cluster="default",node="web-2"}"#).await, 0);
    // Its own results come too late, and change nothing.
    site.agent("web-1").signal(Signal::SIGCONT);
    site.nodes_online(2).await;
    eventually("it has let go of them", || async { (outbox(&site, "web-1") == 0).then_some(()) }).await;
    assert_eq!(rows(&site.executions(&run).await), expected);
    assert_eq!(site.work("web-1").await["expired_leases"], 2);
}

#[tokio::test]
async fn a_crashed_nodes_work_goes_to_a_healthy_one_with_the_next_attempt() {
    let mut site = site(&["web-1"]).await;
    let run = site.submit(&json!({"tasks": [site.gated("a", "gate")]}), "k").await;
    site.have_begun(1).await;
    site.agent("web-1").kill();
    site.start_agent("web-2");
    let second = second_attempt(&site, &run).await;
    assert_eq!(second["node"], "web-2");
    site.open("gate");
    assert_eq!(site.ended(&run).await["status"], "completed");
    let executions = site.executions(&run).await;
    assert_eq!(rows(&executions), [(0, 1, "lost", "web-1"), (0, 2, "succeeded", "web-2")]);
    assert_eq!(
        site.begun(),
        executions.iter().map(name_of).collect::<Vec<_>>(),
        "names are never used twice"
    );
}

#[tokio::test]
async fn a_late_nodes_process_is_killed_while_the_next_attempt_goes_on() {
    let mut site = site(&["web-1"]).await;
    let run = site.submit(&json!({"tasks": [site.gated("a", "gate")]}), "k").await;
    let first = site.have_begun(1).await.remove(0);
    site.agent("web-1").signal(Signal::SIGSTOP);
    site.start_agent("web-2");
    let second = name_of(&second_attempt(&site, &run).await);
    let (old, new) = (site.pid_of(&first), site.pid_of(&second));
    assert!(is_alive(old) && is_alive(new), "the old attempt's process does not stand in the new one's way");
    site.agent("web-1").signal(Signal::SIGCONT);
    eventually("the late process is killed", || async { (!is_alive(old)).then_some(()) }).await;
    assert!(is_alive(new));
    site.open("gate");
    assert_eq!(site.ended(&run).await["status"], "completed");
    let executions = site.executions(&run).await;
    assert_eq!(rows(&executions), [(0, 1, "lost", "web-1"), (0, 2, "succeeded", "web-2")]);
    let work = site.work_until("web-1", |work| work["status"] == "online").await;
    assert_eq!((&work["held"], &work["slots"]["free"]), (&json!([]), &json!(2)));
}

#[tokio::test]
async fn a_result_whose_agent_was_away_for_too_long_is_refused_when_it_is_back() {
    let mut site = site(&["web-1"]).await;
    let run = site.submit(&json!({"tasks": [site.gated("a", "gate")]}), "k").await;
    let first = site.have_begun(1).await.remove(0);
    site.server.kill();
    site.open("gate");
    eventually("its process has ended", || async { (!is_alive(site.pid_of(&first))).then_some(()) }).await;
    eventually("the result is on disk", || async { (outbox(&site, "web-1") > 100).then_some(()) }).await;
    site.agent("web-1").kill();
    site.server.serve();
    site.start_agent("web-2");
    assert_eq!(site.ended(&run).await["status"], "completed");
    let expected = [(0, 1, "lost", "web-1"), (0, 2, "succeeded", "web-2")];
    assert_eq!(rows(&site.executions(&run).await), expected);
    site.start_agent("web-1");
    site.nodes_online(2).await;
    eventually("it has let go of its result", || async { (outbox(&site, "web-1") == 0).then_some(()) }).await;
    assert_eq!(rows(&site.executions(&run).await), expected, "a late result changes nothing");
    assert_eq!(site.begun().len(), 2);
}

#[tokio::test]
async fn a_result_that_was_on_its_way_when_its_agent_died_counts_once() {
    let mut site = site(&["web-1"]).await;
    let run = site.submit(&json!({"tasks": [site.gated("a", "gate")]}), "k").await;
    let first = site.have_begun(1).await.remove(0);
    // Requests to a frozen server wait on the way: it may process them when their client is gone.
    site.server.signal(Signal::SIGSTOP);
    site.open("gate");
    eventually("its process has ended", || async { (!is_alive(site.pid_of(&first))).then_some(()) }).await;
    eventually("the result is on disk", || async { (outbox(&site, "web-1") > 100).then_some(()) }).await;
    site.agent("web-1").kill();
    site.server.signal(Signal::SIGCONT);
    site.start_agent("web-1");
    assert_eq!(site.ended(&run).await["status"], "completed");
    assert_eq!(rows(&site.executions(&run).await), [(0, 1, "succeeded", "web-1")]);
    eventually("it is acknowledged", || async { (outbox(&site, "web-1") == 0).then_some(()) }).await;
    assert_eq!((site.begun(), site.check(&[run]).await.lost), (vec![first], 0));
}
