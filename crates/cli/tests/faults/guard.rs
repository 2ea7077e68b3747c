//! Work that must never overlap with another attempt ends even when its agent cannot end it.

use downbeat_testbed::eventually;
use downbeat_testbed::processes::{children, is_alive, is_frozen};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::site::Site;

/// A placed task that must never overlap, and is sent again when it is lost.
fn guarded(site: &Site, gate: &str) -> Value {
    let mut task = site.gated("guarded", gate);
    task["on_disconnect"] = json!("stop");
    task["delivery"] = json!("at_least_once");
    task
}

async fn gone(pid: i32) {
    eventually("the work is gone", || async { (!is_alive(pid)).then_some(()) }).await;
}

#[tokio::test]
async fn work_that_must_never_overlap_ends_with_an_agent_that_is_killed_and_other_work_does_not() {
    let site = Site::with_agents(&["web-1"]).await;
    site.submit(&json!({"placement": {}, "tasks": [site.gated("other", "gate")]}), "other").await;
    let other = site.pid_of(&site.have_begun(1).await[0]);
    site.submit(&json!({"placement": {}, "tasks": [guarded(&site, "gate")]}), "guarded").await;
    let pid = site.pid_of(&site.have_begun(2).await[1]);
    site.agent("web-1").kill();
    gone(pid).await;
    assert!(is_alive(other), "a guard ends only its own work");
}

#[tokio::test]
async fn work_that_must_never_overlap_ends_while_its_agent_is_frozen() {
    let site = Site::with_agents(&["web-1"]).await;
    site.submit(&json!({"placement": {}, "tasks": [guarded(&site, "gate")]}), "k").await;
    let pid = site.pid_of(&site.have_begun(1).await[0]);
    site.agent("web-1").signal(Signal::SIGSTOP);
    gone(pid).await;
    assert!(is_frozen(site.agent("web-1").pid()), "nobody woke the agent");
}

#[tokio::test]
async fn two_attempts_of_such_work_never_run_at_once() {
    for signal in [Signal::SIGSTOP, Signal::SIGKILL] {
        let site = Site::with_agents(&["web-1", "web-2"]).await;
        let run = site.submit(&json!({"placement": {}, "tasks": [guarded(&site, "gate")]}), "k").await;
        let first = site.pid_of(&site.have_begun(1).await[0]);
        let node = site.executions(&run).await[0]["node"].as_str().unwrap().to_owned();
        site.agent(&node).signal(signal);
        site.have_begun(2).await;
        assert!(!is_alive(first), "{signal}: the first attempt still runs when the second begins");
        site.open("gate");
        assert_eq!(site.ended(&run).await["status"], "completed", "{signal}");
    }
}

#[tokio::test]
async fn a_guard_leaves_with_its_work() {
    let site = Site::with_agents(&["web-1"]).await;
    let run = site.submit(&json!({"placement": {}, "tasks": [guarded(&site, "gate")]}), "k").await;
    let pid = site.pid_of(&site.have_begun(1).await[0]);
    let agent = site.agent("web-1").pid();
    assert_eq!(guards(agent).len(), 1);
    // Longer than the lease: it is renewed, and the guard learns of it.
    let mut renewed = site.work("web-1").await["held"][0]["expires_at"].clone();
    for _ in 0..8 {
        let work = site.work_until("web-1", |work| work["held"][0]["expires_at"] != renewed).await;
        renewed = work["held"][0]["expires_at"].clone();
    }
    assert!(is_alive(pid), "a guard does not end work whose lease is renewed");
    site.open("gate");
    assert_eq!(site.ended(&run).await["status"], "completed");
    eventually("the guard is gone", || async { guards(agent).is_empty().then_some(()) }).await;
}

/// The guards that an agent started.
fn guards(agent: i32) -> Vec<i32> {
    let mut children = children(agent);
    children.retain(|pid| {
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| words == b"downbeat\0guard\0")
    });
    children
}
