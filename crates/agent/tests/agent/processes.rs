//! Real processes: all of them end when they must.

use std::time::{Duration, Instant};

use downbeat_core::execution::Verdict;

use crate::fake::{Server, alive, eventually, held, shell, start, unique};

/// Starts a child that forks twice and leaves its session, and one that ignores TERM.
const STUBBORN: &str =
    "(setsid bash -c 'sleep 1000 & sleep 1000' &) ; bash -c 'trap \"\" TERM; sleep 1000 & wait; sleep 1000'";

#[tokio::test]
async fn a_refused_lease_kills_the_whole_tree_and_its_result_is_dropped() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let agent = start(&server, data.path());
    let number = unique();
    server.give([shell(number, STUBBORN)]);
    eventually("the tree stands", || alive(number).len() >= 5).await;
    server.change(|state| state.refuse.push(held(number)));
    eventually("the tree is gone", || alive(number).is_empty()).await;
    server
        .until("it is no longer held", |state| {
            state.heartbeats.last().is_some_and(|beat| beat.held.is_empty()).then_some(())
        })
        .await;
    agent.drain_and_stop().await.unwrap();
    assert!(server.state.lock().unwrap().finished.is_empty());
}

#[tokio::test]
async fn cancelling_ends_a_process_within_a_second() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let agent = start(&server, data.path());
    let number = unique();
    server.give([shell(number, "echo ready; sleep 1000")]);
    server.until("it began", |state| (!state.started.is_empty()).then_some(())).await;
    let asked = Instant::now();
    server.change(|state| state.stop.push(held(number)));
    let finished = server.result(number).await;
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    assert_eq!(finished.outcome.verdict, Verdict::Cancelled);
    assert_eq!(alive(number), Vec::<i32>::new());
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn work_that_takes_too_long_is_killed_and_says_so() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let agent = start(&server, data.path());
    let number = unique();
    let mut work = shell(number, "echo before; sleep 1000");
    work.timeout = Duration::from_millis(300);
    server.give([work]);
    let outcome = server.result(number).await.outcome;
    assert_eq!(outcome.verdict, Verdict::Failed);
    assert_eq!(outcome.error.as_deref(), Some("timed out after 300ms"));
    assert_eq!(crate::fake::text_of(&server.output_of(number).await), "before\n");
    assert_eq!(alive(number), Vec::<i32>::new());
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn a_restarted_agent_ends_what_its_former_life_left_running_before_it_registers() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let agent = start(&server, data.path());
    let number = unique();
    server.give([shell(number, STUBBORN)]);
    eventually("the tree stands", || alive(number).len() >= 5).await;
    agent.abandon().await;
    assert!(alive(number).len() >= 5, "a crash leaves it running");
    let agent = start(&server, data.path());
    server.until("registered again", |state| (state.registered.len() == 2).then_some(())).await;
    assert_eq!(alive(number), Vec::<i32>::new());
    agent.drain_and_stop().await.unwrap();
}
