//! Gathers the evidence when all faults have healed and all runs have had their time to end.

use std::collections::BTreeMap;
use std::time::Duration;

use downbeat_testbed::{eventually, processes, within};
use serde_json::Value;

use crate::book::Book;
use crate::cluster::Cluster;
use crate::evidence::{Event, Evidence, Run};

/// Agents learn at their next contact which work they may stop.
const PROCESSES_END: Duration = Duration::from_secs(30);

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
    evidence
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
