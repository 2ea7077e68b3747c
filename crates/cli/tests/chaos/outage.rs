//! PostgreSQL is unavailable: servers stay up and report it, agents continue to work and keep their results, and
//! everything continues after the recovery.

use std::time::Duration;

use downbeat_testbed::eventually;
use serde_json::{Value, json};

use crate::book::{Book, task};
use crate::check::check;
use crate::cluster::{Cluster, Plan};
use crate::evidence::{Evidence, Submission};
use crate::gather::{all_ended, gather};
use crate::random::setting;

/// In CI. More with `DOWNBEAT_TEST_OUTAGE_SECONDS`.
const SECONDS: u64 = 15;

/// Checks all evidence, with these submitted runs, by name.
pub(crate) async fn assert_true(cluster: &Cluster, submissions: &[(&str, &str)]) -> Evidence {
    assert!(all_ended(cluster, Duration::from_secs(60)).await, "every run ends");
    let submissions = submissions
        .iter()
        .map(|(key, run)| Submission {
            key: (*key).to_owned(),
            answered: [(*run).to_owned()].into(),
            cancel_asked: true,
        })
        .collect();
    let evidence = Evidence { submissions, ..gather(cluster).await };
    let violations = check(&evidence);
    assert!(violations.is_empty(), "{violations:#?}");
    evidence
}

async fn is_refused(cluster: &Cluster, server: usize, definition: &Value) -> Option<()> {
    let ready = cluster.direct.ask(server, "/readyz").await?;
    let posted = cluster.direct.post(server, "runs", definition, Some("during")).await?;
    assert!(matches!(posted.status, 503 | 201 | 200), "server {server}: {posted:?}");
    assert!(posted.status != 503 || posted.retry_after.is_some(), "503 says when to come back: {posted:?}");
    (ready.status == 503 && posted.status == 503).then_some(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_postgresql_is_away_servers_say_so_agents_work_on_and_nothing_is_lost() {
    let cluster = Cluster::start(Plan { servers: 3, agents: 2, special: false }).await;
    let book = cluster.book();
    let length = setting("DOWNBEAT_TEST_OUTAGE_SECONDS", SECONDS);
    // It ends in the middle of the outage.
    #[allow(clippy::cast_precision_loss, reason = "seconds")]
    let long = task(&book, "long", length as f64 / 2.0, 1);
    let tasks = json!([long, task(&book, "then", 0.0, 1)]);
    let before = json!({"name": "before", "target": "all", "tasks": tasks});
    let during = json!({"name": "during", "target": "all", "tasks": [task(&book, "d", 0.0, 1)]});
    let first = cluster.submit(0, &before, "before").await;
    eventually("it began everywhere", || async { (Book::read(&book).lines.len() == 2).then_some(()) }).await;

    cluster.postgres.halt().await;
    let back = tokio::time::Instant::now() + Duration::from_secs(length);
    for server in 0..cluster.servers.len() {
        let what = format!("server {server} is not ready, and refuses");
        eventually(&what, || is_refused(&cluster, server, &during)).await;
    }
    eventually("agents finish what they have", || async {
        (Book::read(&book).ends().count() == 2).then_some(())
    })
    .await;
    // The outage lasts longer than leases last and than owners may be silent.
    tokio::time::sleep_until(back).await;
    for (index, server) in cluster.servers.iter().enumerate() {
        assert!(server.is_running(), "server {index} stays up");
        let health = cluster.direct.ask(index, "/healthz").await.expect("it answers");
        assert_eq!(health.status, 200);
    }
    cluster.postgres.resume().await.unwrap();
    for server in 0..cluster.servers.len() {
        cluster.ready(server).await;
    }
    let view = cluster.ended(0, &first).await;
    assert_eq!(view["status"], "completed", "{view:#}");
    let second = cluster.submit(1, &during, "during").await;
    assert_eq!(cluster.ended(2, &second).await["status"], "completed");
    let evidence = assert_true(&cluster, &[("before", &first), ("during", &second)]).await;
    let executions = || evidence.runs.values().flat_map(|run| &run.executions);
    assert_eq!(executions().count(), 6, "nothing was done again");
    assert!(
        executions().all(|execution| execution.status == "succeeded"),
        "time of the outage does not count"
    );
}
