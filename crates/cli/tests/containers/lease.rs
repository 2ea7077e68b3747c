//! Agents that die, freeze and come back while their containers run.

use downbeat_testbed::eventually;
use nix::sys::signal::Signal;
use serde_json::json;

use crate::engine::Yard;

/// The node of the first attempt, and the other one.
async fn first_and_other(yard: &Yard, run: &str) -> (String, String) {
    let first = eventually("the first attempt is somewhere", || async {
        let (_, node, _) = yard.attempts(run).await.into_iter().next()?;
        (!node.is_empty()).then_some(node)
    })
    .await;
    let other = if first == "web-1" { "web-2" } else { "web-1" };
    (first, other.to_owned())
}

#[tokio::test]
async fn what_a_killed_agent_ran_goes_on_while_the_next_attempt_runs_elsewhere() {
    let mut yard = Yard::with_agents(&["web-1", "web-2"]).await;
    let run = yard.submit(&json!({"placement": {}, "tasks": [yard.task()]}), "k").await;
    yard.begun(1).await;
    let (first, other) = first_and_other(&yard, &run).await;
    yard.agent(&first).kill();
    let names = yard.begun(2).await;
    assert_ne!(names[0], names[1]);
    // The old attempt's container still runs.
    yard.runs(&first, &names[..1]).await;
    yard.runs(&other, &names[1..]).await;
    yard.go();
    let view = yard.ended(&run).await;
    assert_eq!(view["status"], "completed", "{view:#}");
    let expected = [(1, first.clone(), "lost".to_owned()), (2, other.clone(), "succeeded".to_owned())];
    assert_eq!(yard.attempts(&run).await, expected);
    yard.none_left(&other).await;
    assert_eq!(yard.containers(&first).len(), 1, "nobody else touches it");
    yard.start_agent(&first);
    yard.none_left(&first).await;
    assert_eq!(yard.book().len(), 2);
}

#[tokio::test]
async fn a_frozen_agents_late_attempt_is_refused_and_its_container_removed() {
    let yard = Yard::with_agents(&["web-1", "web-2"]).await;
    let run = yard.submit(&json!({"placement": {}, "tasks": [yard.task()]}), "k").await;
    yard.begun(1).await;
    let (first, other) = first_and_other(&yard, &run).await;
    yard.agent(&first).signal(Signal::SIGSTOP);
    let names = yard.begun(2).await;
    yard.runs(&first, &names[..1]).await;
    yard.agent(&first).signal(Signal::SIGCONT);
    yard.none_left(&first).await;
    // The current attempt is left alone.
    yard.runs(&other, &names[1..]).await;
    yard.go();
    let view = yard.ended(&run).await;
    assert_eq!(view["status"], "completed", "{view:#}");
    let expected = [(1, first, "lost".to_owned()), (2, other, "succeeded".to_owned())];
    assert_eq!(yard.attempts(&run).await, expected);
}

#[tokio::test]
async fn a_late_result_of_a_container_that_ended_meanwhile_is_refused() {
    let yard = Yard::with_agents(&["web-1", "web-2"]).await;
    // The first attempt ends after `first` exists, the second after `go` exists.
    let script = "if [ $(wc -l < /m/book) = 1 ]; then while [ ! -e /m/first ]; do sleep 0.05; done; \
                  else while [ ! -e /m/go ]; do sleep 0.05; done; fi";
    let run = yard.submit(&json!({"placement": {}, "tasks": [yard.script(script)]}), "k").await;
    yard.begun(1).await;
    let (first, other) = first_and_other(&yard, &run).await;
    yard.agent(&first).signal(Signal::SIGSTOP);
    yard.begun(2).await;
    std::fs::write(yard.shared().join("first"), "").unwrap();
    eventually("the old container ended", || async { yard.running(&first).is_empty().then_some(()) }).await;
    yard.agent(&first).signal(Signal::SIGCONT);
    yard.none_left(&first).await;
    assert_eq!(yard.attempts(&run).await[0].2, "lost", "its result was late");
    yard.go();
    assert_eq!(yard.ended(&run).await["status"], "completed");
    let expected = [(1, first, "lost".to_owned()), (2, other, "succeeded".to_owned())];
    assert_eq!(yard.attempts(&run).await, expected);
}

#[tokio::test]
async fn a_killed_agents_restart_removes_its_containers_before_it_runs_new_ones() {
    let mut yard = Yard::with_agents(&["web-1"]).await;
    let run = yard.submit(&json!({"target": "all", "tasks": [yard.task()]}), "k").await;
    let names = yard.begun(1).await;
    yard.agent("web-1").kill();
    // The container outlives its agent.
    yard.runs("web-1", &names).await;
    // Waits for the node.
    let next = yard.submit(&json!({"target": "all", "tasks": [yard.task()]}), "l").await;
    yard.start_agent("web-1");
    assert_eq!(yard.ended(&run).await["status"], "failed");
    assert_eq!(yard.attempts(&run).await[0].2, "lost", "at once, and not sent again");
    let both = yard.begun(2).await;
    yard.runs("web-1", &both[1..]).await;
    assert_eq!(yard.containers("web-1").len(), 1, "the old one was removed before");
    yard.go();
    assert_eq!(yard.ended(&next).await["status"], "completed");
    yard.none_left("web-1").await;
}

#[tokio::test]
async fn a_result_that_was_not_reported_is_delivered_by_the_next_life_and_nothing_runs_twice() {
    let mut yard = Yard::with_agents(&["web-1"]).await;
    let run = yard.submit(&json!({"placement": {}, "tasks": [yard.task()]}), "k").await;
    yard.begun(1).await;
    yard.server.kill();
    yard.go();
    yard.none_left("web-1").await;
    let outbox = yard.directory.path().join("web-1/outbox");
    eventually("the result is on the agent's disk", || async {
        let files = std::fs::read_dir(&outbox).ok()?.flatten();
        let bytes: u64 = files.filter_map(|file| file.metadata().ok()).map(|data| data.len()).sum();
        (bytes > 100).then_some(())
    })
    .await;
    yard.agent("web-1").kill();
    yard.server.serve();
    yard.start_agent("web-1");
    let view = yard.ended(&run).await;
    assert_eq!(view["status"], "completed", "{view:#}");
    assert_eq!(yard.attempts(&run).await, [(1, "web-1".to_owned(), "succeeded".to_owned())]);
    assert_eq!(yard.book().len(), 1);
}

#[tokio::test]
async fn a_container_that_must_never_overlap_ends_though_its_agent_is_frozen_or_killed() {
    for signal in [Signal::SIGSTOP, Signal::SIGKILL] {
        let yard = Yard::with_agents(&["web-1", "web-2"]).await;
        let mut task = yard.task();
        task["on_disconnect"] = json!("stop");
        let run = yard.submit(&json!({"placement": {}, "tasks": [task]}), "k").await;
        yard.begun(1).await;
        let (first, _) = first_and_other(&yard, &run).await;
        yard.agent(&first).signal(signal);
        yard.begun(2).await;
        assert!(
            yard.running(&first).is_empty(),
            "{signal}: the first container still runs beside the second"
        );
        yard.go();
        assert_eq!(yard.ended(&run).await["status"], "completed", "{signal}");
    }
}
