//! Agents that die with undelivered results, or freeze until their lease has expired.

use downbeat_testbed::eventually;
use downbeat_testbed::processes::is_alive;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::site::Site;

async fn one_node(name: &str) -> Site {
    Site::with_agents(&[name]).await
}

#[tokio::test]
async fn an_agent_killed_with_unacknowledged_results_delivers_them_after_its_restart() {
    let mut site = one_node("web-1").await;
    let mut task = site.entry("a", "0.3");
    task["params"]["command"] = json!(format!("{}; echo done", task["params"]["command"].as_str().unwrap()));
    let run = site.submit(&json!({"target": "all", "tasks": [task]}), "k").await;
    eventually("it began", || async { (!site.done().is_empty()).then_some(()) }).await;
    site.server.kill();
    let outbox = site.directory.path().join("web-1/outbox");
    eventually("the result is on the agent's disk", || async {
        let files = std::fs::read_dir(&outbox).ok()?.flatten();
        let bytes: u64 = files.filter_map(|file| file.metadata().ok()).map(|data| data.len()).sum();
        (bytes > 100).then_some(())
    })
    .await;
    site.agent("web-1").kill();
    site.server.serve();
    site.start_agent("web-1");
    let view = site.ended(&run).await;
    assert_eq!(view["status"], "completed", "{view:#}");
    let checked = site.check(&[run]).await;
    assert_eq!((checked.executions, checked.lost), (1, 0), "the first attempt's result was delivered");
}

/// A task that writes its pid and then runs for long.
fn long(site: &Site) -> (Value, std::path::PathBuf) {
    let pid = site.directory.path().join("pid");
    let script = format!("echo $$ > {0}.part; mv {0}.part {0}; sleep 600", pid.display());
    (json!({"name": "long", "backend": "exec", "action": "shell", "params": {"command": script}}), pid)
}

async fn pid_in(file: &std::path::Path) -> i32 {
    eventually("the process began", || async { std::fs::read_to_string(file).ok()?.trim().parse().ok() })
        .await
}

#[tokio::test]
async fn a_frozen_agents_execution_is_lost_and_its_process_killed_when_it_wakes() {
    let site = one_node("web-1").await;
    let (task, file) = long(&site);
    let run = site.submit(&json!({"target": "all", "tasks": [task]}), "k").await;
    let pid = pid_in(&file).await;
    site.agent("web-1").signal(Signal::SIGSTOP);
    let view = site.ended(&run).await;
    assert_eq!(view["status"], "failed", "not idempotent: it is not sent again: {view:#}");
    let executions = site.executions(&run).await;
    assert_eq!(executions.len(), 1);
    assert_eq!(executions[0]["status"], "lost", "{executions:#?}");
    assert!(is_alive(pid), "the frozen agent's work goes on until it wakes");
    site.agent("web-1").signal(Signal::SIGCONT);
    eventually("the process is killed", || async { (!is_alive(pid)).then_some(()) }).await;
    site.nodes_online(1).await;
    let executions = site.executions(&run).await;
    assert_eq!(
        (executions.len(), &executions[0]["status"]),
        (1, &json!("lost")),
        "a late report changes nothing"
    );
}

#[tokio::test]
async fn a_killed_agents_restart_ends_what_its_former_life_left_running() {
    let mut site = one_node("web-1").await;
    let (task, file) = long(&site);
    let run = site.submit(&json!({"target": "all", "tasks": [task]}), "k").await;
    let pid = pid_in(&file).await;
    site.agent("web-1").kill();
    assert!(is_alive(pid), "the process outlives its agent");
    site.start_agent("web-1");
    eventually("the process is ended", || async { (!is_alive(pid)).then_some(()) }).await;
    let view = site.ended(&run).await;
    assert_eq!(view["status"], "failed");
    assert_eq!(site.executions(&run).await[0]["status"], "lost", "at once, not after the lease's term");
}

#[tokio::test]
async fn what_ran_on_a_node_that_went_offline_is_lost_however_long_its_lease() {
    let site = Site::start(Site::build().lease_ttl("1h").agents(&["web-1"])).await;
    let (task, file) = long(&site);
    let run = site.submit(&json!({"target": "all", "tasks": [task]}), "k").await;
    let pid = pid_in(&file).await;
    site.agent("web-1").kill();
    let view = site.ended(&run).await;
    assert_eq!(view["status"], "failed", "{view:#}");
    assert_eq!(site.executions(&run).await[0]["status"], "lost");
    // The agent does not come back, so nothing else ends its processes.
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(-pid), Signal::SIGKILL).unwrap();
}

#[tokio::test]
async fn cancel_reaches_a_running_process_and_its_whole_tree() {
    let site = one_node("web-1").await;
    let pid = site.directory.path().join("pid");
    let child = site.directory.path().join("child");
    let script = format!(
        "setsid sh -c 'echo $$ > {1}.part; mv {1}.part {1}; exec sleep 600' & echo $$ > {0}.part; mv {0}.part {0}; sleep 600",
        pid.display(),
        child.display()
    );
    let task = json!({"backend": "exec", "action": "shell", "params": {"command": script}});
    let run = site.submit(&json!({"target": "all", "tasks": [task]}), "k").await;
    let (pid, child) = (pid_in(&pid).await, pid_in(&child).await);
    let (status, answer) = site.post(&format!("runs/{run}/cancel"), &json!({}), None).await.unwrap();
    assert!(status < 300, "{answer}");
    let view = site.ended(&run).await;
    assert_eq!(view["status"], "cancelled", "{view:#}");
    eventually("both processes are gone", || async { (!is_alive(pid) && !is_alive(child)).then_some(()) })
        .await;
}

#[tokio::test]
async fn an_agent_that_gets_a_stop_signal_finishes_its_work() {
    let site = one_node("web-1").await;
    let task = site.entry("a", "0.5");
    let run = site.submit(&json!({"target": "all", "tasks": [task]}), "k").await;
    eventually("it began", || async { (!site.done().is_empty()).then_some(()) }).await;
    site.agent("web-1").signal(Signal::SIGTERM);
    let view = site.ended(&run).await;
    assert_eq!(view["status"], "completed", "{view:#}");
}
