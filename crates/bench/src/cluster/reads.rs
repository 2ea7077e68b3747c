//! Measures the reads of people and programs while the server has other work: each call once per interval.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use serde::Serialize;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::rest::Rest;
use crate::figures::Latencies;

/// The pause between two reads of the same call. If a read takes longer, the next one follows at the next tick.
pub(super) const EVERY: Duration = Duration::from_millis(200);

/// The calls, each as a path below `/api/v1/`.
const CALLS: [&str; 5] = [
    "clusters/default/status",
    "clusters/default/walks?limit=100",
    "nodes?limit=100",
    "clusters/default/executions?limit=100",
    "status",
];

/// The reads of one call.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Read {
    pub call: String,
    pub count: u64,
    /// Reads that were refused or not answered. They count with the time that they took.
    pub failed: u64,
    /// The reason of the first of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// From the request to the end of its response.
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

/// Reads until the work is done, each call at least once. Returns the result of the work, the reads of each call, and
/// the latencies of all.
pub(super) async fn beside<T>(rest: &Rest, work: impl Future<Output = T>) -> (T, Vec<Read>, Latencies) {
    let is_done = AtomicBool::new(false);
    let work = async {
        let result = work.await;
        is_done.store(true, Ordering::Relaxed);
        result
    };
    // Spread over the interval: the calls do not wait for each other.
    let offsets = (0..).map(|index| EVERY * index / CALLS.len() as u32);
    let calls = CALLS.into_iter().zip(offsets);
    let reads = join_all(calls.map(|(call, offset)| repeat(rest, call, offset, &is_done)));
    let (result, reads) = tokio::join!(work, reads);
    let mut all = Latencies::default();
    let mut table = Vec::new();
    for (read, latencies) in reads {
        all.add_all(&latencies);
        table.push(read);
    }
    (result, table, all)
}

async fn repeat(
    rest: &Rest,
    call: &'static str,
    offset: Duration,
    is_done: &AtomicBool,
) -> (Read, Latencies) {
    let (mut latencies, mut failed, mut failure) = (Latencies::default(), 0, None);
    let mut ticks = interval_at(Instant::now() + offset, EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        let begun = Instant::now();
        let response = rest.get(call).await;
        latencies.add(begun.elapsed());
        if let Err(refused) = response {
            failed += 1;
            failure.get_or_insert(refused.message);
        }
        if is_done.load(Ordering::Relaxed) {
            break;
        }
    }
    let read = Read {
        call: format!("/{call}"),
        count: latencies.count(),
        failed,
        failure,
        p50_ms: latencies.ms(0.5),
        p99_ms: latencies.ms(0.99),
        max_ms: latencies.most_ms(),
    };
    (read, latencies)
}
