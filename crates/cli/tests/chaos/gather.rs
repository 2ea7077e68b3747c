//! Gathers the evidence when all faults have healed and all runs have had their time to end.

use std::collections::BTreeMap;
use std::time::Duration;

use downbeat_testbed::{eventually, processes, within};
use serde_json::Value;

use crate::book::Book;
use crate::cluster::Cluster;
use crate::evidence::{Event, Evidence, Run, Stored};

/// Agents learn at their next contact which work they may stop.
const PROCESSES_END: Duration = Duration::from_secs(30);
/// Servers look for rows of deleted clusters once a minute.
const REMOVAL: Duration = Duration::from_secs(90);

/// Waits until no run is open. Returns false if that takes too long.
pub(crate) async fn all_ended(cluster: &Cluster, patience: Duration) -> bool {
    let ended = within(patience, || async {
        let status = cluster.direct.get_any(0, "status").await?;
        let open =
            ["pending", "running"].iter().filter_map(|word| status["runs"][word].as_u64()).sum::<u64>();
        (open == 0).then_some(())
    });
    ended.await.is_some()
}

/// Collects everything except the clients' responses.
pub(crate) async fn gather(cluster: &Cluster) -> Evidence {
    let site = cluster.site();
    let quiet = || async { processes::of_executions(&site).is_empty().then_some(()) };
    let left = match within(PROCESSES_END, quiet).await {
        Some(()) => Vec::new(),
        None => processes::of_executions(&site),
    };
    let mut evidence = Evidence {
        book: Book::read(&cluster.book()),
        processes: left.iter().map(|(pid, execution)| format!("{pid} of {execution}")).collect(),
        ..Evidence::default()
    };
    for server in 0..cluster.servers.len() {
        let runs = eventually("runs are listed", || cluster.direct.list(server, "runs")).await;
        let text = |run: &Value, key: &str| run[key].as_str().unwrap_or_default().to_owned();
        evidence.listings.push(runs.iter().map(|run| (text(run, "id"), text(run, "state"))).collect());
        let feed = eventually("events are listed", || cluster.direct.events(server)).await;
        evidence.feeds.push(feed.iter().map(Event::read).collect());
        let status = eventually("the status is shown", || cluster.direct.get(server, "status")).await;
        evidence.open.push(open(&status));
    }
    for id in evidence.listings[0].keys() {
        let path = format!("runs/{id}?definition=1");
        let view = eventually("the run is shown", || cluster.direct.get(0, &path)).await;
        let path = format!("runs/{id}/executions");
        let executions = eventually("executions are listed", || cluster.direct.list(0, &path)).await;
        evidence.runs.insert(id.clone(), Run::read(&view, &executions));
    }
    records(cluster, &mut evidence).await;
    evidence
}

/// Reads what the API does not show: whole events, and what is left of deleted clusters.
async fn records(cluster: &Cluster, evidence: &mut Evidence) {
    let sql = eventually("PostgreSQL answers", || cluster.postgres.client()).await;
    let gone = "SELECT count(*) FROM clusters WHERE deleted_at IS NOT NULL";
    let removed = || async { (sql.query_one(gone, &[]).await.ok()?.get::<_, i64>(0) == 0).then_some(()) };
    if within(REMOVAL, removed).await.is_none() {
        evidence.left.push(format!("rows of a deleted cluster are left after {REMOVAL:?}"));
    }
    for table in ["nodes", "runs"] {
        let left = format!("SELECT count(*) FROM {table} WHERE cluster NOT IN (SELECT id FROM clusters)");
        let count: i64 = sql.query_one(&left, &[]).await.unwrap().get(0);
        evidence.left.extend((count > 0).then(|| format!("{count} rows of {table}")));
    }
    let left = "SELECT count(*) FROM executions WHERE run NOT IN (SELECT id FROM runs)";
    let count: i64 = sql.query_one(left, &[]).await.unwrap().get(0);
    evidence.left.extend((count > 0).then(|| format!("{count} rows of executions")));
    for row in sql.query("SELECT seq, kind, data FROM events ORDER BY seq", &[]).await.unwrap() {
        let data: String = row.get(2);
        evidence.stored.push(Stored {
            seq: u64::try_from(row.get::<_, i64>(0)).unwrap(),
            kind: row.get(1),
            data: serde_json::from_str(&data).unwrap_or_default(),
        });
    }
    let view = eventually("the cluster is shown", || cluster.direct.get(0, "clusters/default")).await;
    let id = view["id"].as_str().unwrap_or_default();
    let run = format!("standing:{id}");
    let of_run =
        |stored: &&Stored| stored.data["run"] == run.as_str() || stored.data["run"]["id"] == run.as_str();
    let owner = |stored: &Stored| match stored.kind.as_str() {
        "run_created" => stored.data["run"]["owner"].as_str().map(str::to_owned),
        "run_taken" => stored.data["owner"].as_str().map(str::to_owned),
        _ => None,
    };
    let Some(owner) = evidence.stored.iter().filter(of_run).filter_map(owner).next_back() else { return };
    let listed = || cluster.direct.list(0, "clusters/default/executions");
    let executions = eventually("executions are listed", listed).await;
    let changed = evidence.stored.iter().filter(|stored| stored.kind == "cluster_changed");
    let lists =
        changed.filter(|stored| stored.data["cluster"]["id"] == id).map(|s| &s.data["cluster"]["list"]);
    evidence.standing = Some(Run::of_standing(id, owner, lists, &executions));
}

fn open(status: &Value) -> BTreeMap<String, u64> {
    let words = [
        ("runs", "pending"),
        ("runs", "running"),
        ("executions", "pending"),
        ("executions", "leased"),
        ("executions", "running"),
    ];
    words
        .iter()
        .map(|(what, word)| (format!("{what} {word}"), status[*what][*word].as_u64().unwrap_or(u64::MAX)))
        .collect()
}
