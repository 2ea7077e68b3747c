//! Results are kept until a server has them, whatever crashes in between.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use downbeat_agent::{Agent, Error};
use downbeat_core::execution::Verdict;

use crate::fake::{Dial, Seen, Server, eventually, held, last_held, noop, settings, start, unique};

pub(crate) fn outbox_bytes(data: &Path) -> u64 {
    files(data).iter().map(|file| fs::metadata(file).map(|metadata| metadata.len()).unwrap_or(0)).sum()
}

fn files(data: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(data.join("outbox")) else { return Vec::new() };
    entries.flatten().map(|entry| entry.path()).collect()
}

async fn died_with_a_result(server: &Arc<Server>, data: &Path, number: u128) {
    died_with_results(server, data, &[number]).await;
}

/// An agent that has finished this work and crashed before it could report it.
pub(crate) async fn died_with_results(server: &Arc<Server>, data: &Path, numbers: &[u128]) {
    let agent = start(server, data);
    server.until("registered", |state| state.registered.last().cloned()).await;
    server.change(|state| state.deaf = true);
    for number in numbers {
        let before = outbox_bytes(data);
        server.give([noop(*number)]);
        eventually("the result is on disk", || outbox_bytes(data) > before).await;
    }
    agent.abandon().await;
    assert!(server.state.lock().unwrap().finished.is_empty());
    server.change(|state| {
        state.deaf = false;
        state.seen.clear();
    });
}

#[tokio::test]
async fn a_result_that_no_server_has_is_announced_by_the_next_start_held_and_delivered() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let number = unique();
    died_with_a_result(&server, data.path(), number).await;
    server.change(|state| state.deaf = true);
    let agent = start(&server, data.path());
    let register = server.until("registered again", |state| state.registered.get(1).cloned()).await;
    assert_eq!(register.undelivered, [held(number)]);
    server.until("it is held", |state| last_held(state).contains(&held(number)).then_some(())).await;
    server.change(|state| {
        state.deaf = false;
        // A server that is behind assigns it once more.
        state.work.push(noop(number));
    });
    assert_eq!(server.result(number).await.outcome.verdict, Verdict::Succeeded);
    server.until("it is let go of", |state| last_held(state).is_empty().then_some(())).await;
    eventually("the outbox is empty", || outbox_bytes(data.path()) == 0).await;
    agent.drain_and_stop().await.unwrap();
    assert_eq!(server.state.lock().unwrap().finished.len(), 1, "it is neither done nor reported again");
}

#[tokio::test]
async fn a_node_with_much_to_deliver_is_back_before_it_has_delivered_it() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let number = unique();
    died_with_a_result(&server, data.path(), number).await;
    server.change(|state| state.deaf = true);
    let agent = start(&server, data.path());
    server
        .until("it asks for work", |state| state.polls.last().filter(|poll| poll.free.placed == 4).cloned())
        .await;
    let next = unique();
    server.give([crate::fake::sleep(next, "1h")]);
    server.until("it works", |state| last_held(state).contains(&held(next)).then_some(())).await;
    server.change(|state| {
        state.deaf = false;
        state.stop.push(held(next));
    });
    server.result(number).await;
    server.result(next).await;
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn to_a_server_of_the_release_before_results_are_delivered_before_the_registration() {
    let (server, data) = (Server::with(|server| server.is_old = true), tempfile::tempdir().unwrap());
    let number = unique();
    died_with_a_result(&server, data.path(), number).await;
    let agent = start(&server, data.path());
    server.until("registered again", |state| (state.registered.len() == 2).then_some(())).await;
    {
        let state = server.state.lock().unwrap();
        let report = Seen::Report(vec![number]);
        assert_eq!(state.seen, [Seen::Hello, report, Seen::Hello, Seen::Register]);
        assert_eq!(state.registered[1].undelivered, []);
        assert_eq!(state.finished[0].outcome.verdict, Verdict::Succeeded);
        assert_ne!(state.registered[0].session, state.registered[1].session);
        assert_eq!(state.reports[0].session, state.registered[0].session, "the old session speaks for it");
    }
    eventually("the outbox is empty", || outbox_bytes(data.path()) == 0).await;
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn a_torn_tail_of_the_outbox_costs_only_itself() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let number = unique();
    died_with_a_result(&server, data.path(), number).await;
    let file = files(data.path()).pop().unwrap();
    let mut bytes = fs::read(&file).unwrap();
    let torn = bytes[..bytes.len() - 3].to_vec();
    bytes.extend(torn);
    fs::write(&file, bytes).unwrap();
    let agent = start(&server, data.path());
    server.result(number).await;
    server.until("registered again", |state| (state.registered.len() == 2).then_some(())).await;
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn a_result_is_held_and_sent_until_it_is_acknowledged_and_then_cleared_away() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let agent = start(&server, data.path());
    let number = unique();
    server.change(|state| {
        state.deaf = true;
        state.work.push(noop(number));
    });
    eventually("the result is on disk", || outbox_bytes(data.path()) > 0).await;
    let beats = server.state.lock().unwrap().heartbeats.len();
    server
        .until("heartbeats hold it", |state| {
            (state.heartbeats.len() > beats + 2 && last_held(state).contains(&held(number))).then_some(())
        })
        .await;
    server.change(|state| state.deaf = false);
    server.result(number).await;
    server.until("it is let go of", |state| last_held(state).is_empty().then_some(())).await;
    eventually("the outbox is empty", || outbox_bytes(data.path()) == 0).await;
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn a_refused_result_is_dropped() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let number = unique();
    server.change(|state| state.refuse.push(held(number)));
    let agent = start(&server, data.path());
    server.give([noop(number)]);
    server.result(number).await;
    eventually("the outbox is empty", || outbox_bytes(data.path()) == 0).await;
    agent.drain_and_stop().await.unwrap();
    let state = server.state.lock().unwrap();
    assert_eq!(state.finished.len(), 1, "a refused result is not sent again");
}

#[tokio::test]
async fn results_that_cannot_be_kept_on_disk_are_reported_all_the_same() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let agent = start(&server, data.path());
    server.until("registered", |state| state.registered.last().cloned()).await;
    // No file can be created where the directory is missing.
    fs::remove_dir_all(data.path().join("outbox")).unwrap();
    let numbers = [unique(), unique()];
    server.give(numbers.map(noop));
    for number in numbers {
        assert_eq!(server.result(number).await.outcome.verdict, Verdict::Succeeded);
    }
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn a_data_directory_that_cannot_be_used_stops_the_start() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let file = data.path().join("file");
    fs::write(&file, "").unwrap();
    let mut agent = Agent::start(settings(&file), Arc::new(Dial(server)));
    assert!(matches!(agent.wait().await, Err(Error::Data { .. })));
}
