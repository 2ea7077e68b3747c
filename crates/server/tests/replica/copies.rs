//! When a replica continues its copy, and when it replaces it.

use std::time::Duration;

use downbeat_core::Timestamp;
use downbeat_server::Settings;
use downbeat_testbed::eventually;
use downbeat_testbed::in_process::{Setup, noop, settings};
use serde_json::json;

use crate::load::Load;
use crate::site::{alike, caught_up, replica, replica_settings, sqlite, standing, url};

/// A replica on its own runtime, which can be killed at any moment.
struct Victim {
    runtime: tokio::runtime::Runtime,
    setup: Setup,
}

impl Victim {
    async fn start(settings: &Settings) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        // The threads of the former replica may still have the file open.
        let server = eventually("the copy to be free", || async {
            let settings = settings.clone();
            runtime.spawn(downbeat_server::start(settings)).await.unwrap().ok()
        })
        .await;
        Self { setup: Setup::of(server), runtime }
    }

    fn kill(self) {
        self.runtime.shutdown_background();
        drop(self.setup);
    }
}

#[tokio::test]
async fn a_replica_that_is_killed_goes_on_with_its_copy() {
    let dir = tempfile::tempdir().unwrap();
    let primary = Setup::on(&sqlite(&dir, "primary.db")).await;
    let settings = replica_settings(&[url(&primary)], &sqlite(&dir, "copy.db"));
    let mut load = Load::start(&primary, 5).await;
    load.submit(&primary, 5).await;
    let victim = Victim::start(&settings).await;
    caught_up(&primary, &victim.setup).await;
    let mut victim = Some(victim);
    for round in 0..6 {
        load.submit(&primary, 2 + round).await;
        if let Some(victim) = victim.take() {
            victim.kill();
        }
        load.submit(&primary, 2).await;
        let again = Victim::start(&settings).await;
        if round % 2 == 0 {
            eventually("the primary to be followed", async || {
                (standing(&again.setup).await["connected"] == true).then_some(())
            })
            .await;
        }
        assert_eq!(standing(&again.setup).await["copies"], 0, "round {round}");
        victim = Some(again);
    }
    load.end(&primary).await;
    let victim = victim.unwrap();
    alike(&primary, &victim.setup).await;
    assert_eq!(caught_up(&primary, &victim.setup).await, 0, "it had a copy to go on with");
    victim.kill();
}

#[tokio::test]
async fn a_primary_that_starts_again_is_followed_from_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let mut own = settings(&sqlite(&dir, "primary.db"), "one");
    let primary = Setup::with(own.clone()).await;
    (own.http, own.grpc) = (primary.server.http_addr(), primary.server.grpc_addr());
    let replica = replica(&primary, "memory:").await;
    let mut load = Load::start(&primary, 6).await;
    load.submit(&primary, 10).await;
    load.end(&primary).await;
    alike(&primary, &replica).await;
    primary.server.stop().await;
    eventually("the loss to be noticed", async || {
        (standing(&replica).await["connected"] == false).then_some(())
    })
    .await;
    assert!(replica.get("/runs").await.status.is_success(), "it still answers");
    let primary = Setup::with(own).await;
    let mut load = Load::start(&primary, 7).await;
    load.submit(&primary, 10).await;
    load.end(&primary).await;
    alike(&primary, &replica).await;
    assert_eq!(caught_up(&primary, &replica).await, 1);
}

/// Creates some ended runs, and a copy of them whose replica is stopped.
async fn away(primary: &Setup, copy: &Settings) {
    let mut load = Load::start(primary, 8).await;
    load.submit(primary, 5).await;
    load.end(primary).await;
    let replica = Setup::with(copy.clone()).await;
    alike(primary, &replica).await;
    replica.server.stop().await;
}

async fn prune(primary: &Setup) {
    let soon = Timestamp::now() + Duration::from_secs(60);
    primary.server.service().views().prune(soon, 1_000).await.unwrap();
}

#[tokio::test]
async fn a_copy_that_lacks_events_which_are_no_longer_kept_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let primary = Setup::on(&sqlite(&dir, "primary.db")).await;
    let copy = replica_settings(&[url(&primary)], &sqlite(&dir, "copy.db"));
    away(&primary, &copy).await;
    primary.post("/nodes/web-1/drain", &json!({})).await;
    prune(&primary).await;
    primary.post("/nodes/web-2/drain", &json!({})).await;
    let replica = Setup::with(copy).await;
    alike(&primary, &replica).await;
    assert_eq!(caught_up(&primary, &replica).await, 1);
}

#[tokio::test]
async fn a_copy_that_lacks_nothing_goes_on_though_events_are_no_longer_kept() {
    let dir = tempfile::tempdir().unwrap();
    let primary = Setup::on(&sqlite(&dir, "primary.db")).await;
    let copy = replica_settings(&[url(&primary)], &sqlite(&dir, "copy.db"));
    away(&primary, &copy).await;
    prune(&primary).await;
    let replica = Setup::with(copy).await;
    alike(&primary, &replica).await;
    assert_eq!(replica.ok("/runs").await["pagination"]["total"], 0);
    primary.post("/nodes/web-2/drain", &json!({})).await;
    alike(&primary, &replica).await;
    assert_eq!(caught_up(&primary, &replica).await, 0);
}

#[tokio::test]
async fn what_the_primary_removes_is_removed_and_its_keys_are_free() {
    let primary = Setup::new().await;
    let mut agent = primary.agent("web-1", &[]).await;
    let replica = replica(&primary, "memory:").await;
    let submit = async |definition| {
        let request = primary.request(reqwest::Method::POST, "/runs").header("idempotency-key", "key");
        downbeat_testbed::in_process::send(request.json(&definition)).await
    };
    let first = submit(noop()).await.body["id"].as_str().unwrap().to_owned();
    let work = agent.take().await;
    agent.finish(&work, 0).await;
    primary.ended(&first).await;
    alike(&primary, &replica).await;
    prune(&primary).await;
    let again = submit(noop()).await;
    assert_eq!(again.status, reqwest::StatusCode::CREATED, "the key is free");
    let work = agent.take().await;
    agent.finish(&work, 0).await;
    primary.ended(again.body["id"].as_str().unwrap()).await;
    alike(&primary, &replica).await;
    assert!(replica.get(&format!("/runs/{first}")).await.status.is_client_error());
    assert_eq!(caught_up(&primary, &replica).await, 1, "that does not need a new copy");
}

#[tokio::test]
async fn a_copy_that_refuses_a_change_of_its_primary_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let primary = Setup::new().await;
    let mut agent = primary.agent("web-1", &[]).await;
    let replica = replica(&primary, &sqlite(&dir, "copy.db")).await;
    let run = primary.submit(&noop()).await;
    let work = agent.take().await;
    assert_eq!(caught_up(&primary, &replica).await, 1);
    // For the copy the run has another owner, so it refuses the next change of the real owner.
    let file = rusqlite::Connection::open(dir.path().join("copy.db")).unwrap();
    file.busy_timeout(Duration::from_secs(5)).unwrap();
    assert_eq!(file.execute("UPDATE runs SET epoch = 99", []).unwrap(), 1);
    agent.finish(&work, 0).await;
    primary.ended(&run).await;
    alike(&primary, &replica).await;
    assert_eq!(caught_up(&primary, &replica).await, 2);
    assert_eq!(replica.ok(&format!("/runs/{run}")).await["status"], "completed");
}

#[tokio::test]
async fn a_replica_completes_the_rows_that_an_older_release_left_in_its_copy() {
    let dir = tempfile::tempdir().unwrap();
    let primary = Setup::on(&sqlite(&dir, "primary.db")).await;
    let mut agent = primary.agent("web-1", &[]).await;
    let replica = replica(&primary, &sqlite(&dir, "copy.db")).await;
    let run = primary.submit(&noop()).await;
    let work = agent.take().await;
    agent.finish(&work, 0).await;
    primary.ended(&run).await;
    caught_up(&primary, &replica).await;
    let file = rusqlite::Connection::open(dir.path().join("copy.db")).unwrap();
    file.busy_timeout(Duration::from_secs(5)).unwrap();
    assert_eq!(file.execute("UPDATE runs SET steps = NULL, nodes = NULL", []).unwrap(), 1);
    let left = "SELECT count(*) FROM runs WHERE steps IS NULL OR nodes IS NULL";
    eventually("the rows to be complete", async || {
        (file.query_row(left, [], |row| row.get::<_, i64>(0)).unwrap() == 0).then_some(())
    })
    .await;
    alike(&primary, &replica).await;
}

#[tokio::test]
async fn a_copy_of_another_history_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (one, other) = (Setup::new().await, Setup::new().await);
    let copy = replica_settings(&[url(&one)], &sqlite(&dir, "copy.db"));
    away(&one, &copy).await;
    // A history of the same length, but a different one.
    let last = one.server.service().views().last_seq().await.unwrap();
    let agent = other.agent("web-9", &[]).await;
    while other.server.service().views().last_seq().await.unwrap() < last + 5 {
        other.post("/nodes/web-9/drain", &json!({})).await;
    }
    drop(agent);
    let replica = Setup::with(Settings { replica_of: vec![url(&other)], ..copy }).await;
    alike(&other, &replica).await;
    assert_eq!(caught_up(&other, &replica).await, 1);
}

#[tokio::test]
async fn output_that_came_after_the_end_reaches_the_replica() {
    let primary = Setup::new().await;
    let mut agent = primary.agent("web-1", &[]).await;
    let replica = replica(&primary, "memory:").await;
    let run = primary.submit(&noop()).await;
    let work = agent.take().await;
    agent.write(&work, 0, "in time\n").await;
    agent.finish(&work, 0).await;
    primary.ended(&run).await;
    alike(&primary, &replica).await;
    // Written to the store directly, as another server would: nothing announces it.
    let late = downbeat_store::OutputChunk {
        execution: work.execution,
        offset: 8,
        stream: downbeat_core::execution::Stream::Stdout,
        text: "late\n".to_owned(),
        at: Timestamp::from_second(1_800_000_000).unwrap(),
    };
    primary.server.service().views().append_output(&[late], 1_000).await.unwrap();
    alike(&primary, &replica).await;
    let output = replica.ok(&format!("/executions/{}/output", work.execution)).await;
    assert_eq!(output["text"], "in time\nlate\n");
}
