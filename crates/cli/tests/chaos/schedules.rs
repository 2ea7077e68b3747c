//! Stored jobs that start by themselves every second or two, on all servers, while faults happen.

use std::time::Duration;

use downbeat_testbed::within;
use serde_json::{Value, json};

use crate::book::task;
use crate::cluster::Cluster;

/// The jobs: name, and how many seconds lie between two times. All times are multiples of that.
pub(crate) const JOBS: [(&str, i64); 2] = [("tick", 1), ("tock", 2)];
/// How long servers may take to respond.
const PATIENCE: Duration = Duration::from_secs(60);

/// Longer than any fault: no time may be skipped.
fn schedule(name: &str) -> Value {
    match name {
        "tick" => json!({"every": "1s", "catch_up": "10m"}),
        _ => {
            json!({"cron": "*/2 * * * * *", "timezone": "Europe/Berlin", "catch_up": {"window": "10m", "policy": "all"}})
        }
    }
}

/// Applies the jobs, with retries until a server responds.
pub(crate) async fn apply(cluster: &Cluster) {
    for (name, _) in JOBS {
        let body = json!({
            "name": name, "schedule": schedule(name), "tasks": [task(&cluster.book(), name, 0.0, 1)],
        });
        let applied = || async {
            let answer = cluster.client.post(0, "jobs", &body, None).await?;
            matches!(answer.status, 200 | 201).then_some(())
        };
        within(PATIENCE, applied).await.expect("the job is applied");
    }
}

/// Pauses the jobs when everything has healed, so that their runs end.
pub(crate) async fn pause(cluster: &Cluster) {
    for (server, (name, _)) in JOBS.into_iter().enumerate() {
        let path = format!("jobs/{name}/pause");
        let paused = || async {
            let answer = cluster.client.post(server % cluster.servers.len(), &path, &json!({}), None).await?;
            // An earlier attempt has paused it.
            matches!(answer.status, 200 | 409).then_some(())
        };
        within(PATIENCE, paused).await.expect("the job is paused");
    }
}
