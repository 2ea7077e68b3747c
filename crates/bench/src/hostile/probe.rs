//! Observes a server beside an attack: small runs one after the other, health checks, and the peak of its memory.

use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::Notify;

use super::attacks::Target;
use crate::figures::Latencies;
use crate::server::STUCK;

/// The pause between two small runs, two health checks, and two looks at the memory.
const PAUSE: Duration = Duration::from_millis(20);

/// What was observed.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Beside {
    /// Small runs that ended, and those that were refused or not answered.
    pub runs: u64,
    pub failed: u64,
    /// 1 if the last one had already taken longer than all others when the observation ended. Its time counts.
    pub unfinished: u64,
    /// From submit to the end of a small run.
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub healthz_p50_ms: f64,
    pub healthz_p99_ms: f64,
    pub healthz_most_ms: f64,
    /// The peak of the server's memory.
    pub rss_bytes: u64,
}

/// Latencies, with the one that is being measured.
#[derive(Debug, Default)]
struct Series {
    latencies: Latencies,
    begun: Option<Instant>,
    failed: u64,
    unfinished: u64,
}

impl Series {
    fn begin(&mut self) {
        self.begun = Some(Instant::now());
    }

    /// A failure counts with the time that it took: nobody was served meanwhile.
    fn end(&mut self, is_well: bool) {
        self.latencies.add(self.begun.take().map(|begun| begun.elapsed()).unwrap_or_default());
        self.failed += u64::from(!is_well);
    }

    /// Counts the one that is not answered yet, if it has waited longer than all others.
    fn close(&mut self) {
        let waited = self.begun.map(|begun| begun.elapsed()).unwrap_or_default();
        if waited.as_secs_f64() * 1e3 > self.latencies.most_ms() {
            self.end(true);
            self.unfinished += 1;
        }
    }
}

/// Observes the server until the work is done and a small run has ended, however short the work is. Returns its result,
/// the observations, and the latencies of small runs.
pub(super) async fn beside<T>(target: &Target<'_>, work: impl Future<Output = T>) -> (T, Beside, Latencies) {
    let (mut runs, mut health, mut rss_bytes) = (Series::default(), Series::default(), 0);
    let first = Notify::new();
    let work = async {
        let result = work.await;
        // A small run that hangs is counted as unfinished.
        let _ = tokio::time::timeout(STUCK, first.notified()).await;
        result
    };
    let small_runs = async {
        loop {
            runs.begin();
            let ended = target.small_run().await;
            runs.end(ended.is_ok());
            first.notify_one();
            tokio::time::sleep(PAUSE).await;
        }
    };
    let checks = async {
        loop {
            health.begin();
            let answered = target.get("/healthz").await;
            health.end(answered.is_ok());
            tokio::time::sleep(PAUSE).await;
        }
    };
    let memory = async {
        loop {
            rss_bytes = rss_bytes.max(target.server.rss_bytes());
            tokio::time::sleep(PAUSE).await;
        }
    };
    let result = tokio::select! {
        result = work => result,
        ((), (), ()) = async { tokio::join!(small_runs, checks, memory) } => unreachable!("they go on"),
    };
    runs.close();
    health.close();
    let beside = Beside {
        runs: runs.latencies.count() - runs.failed - runs.unfinished,
        failed: runs.failed,
        unfinished: runs.unfinished,
        p50_ms: runs.latencies.ms(0.5),
        p99_ms: runs.latencies.ms(0.99),
        healthz_p50_ms: health.latencies.ms(0.5),
        healthz_p99_ms: health.latencies.ms(0.99),
        healthz_most_ms: health.latencies.most_ms(),
        rss_bytes,
    };
    (result, beside, runs.latencies)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_answered_counts_with_its_time_so_far() {
        let mut series = Series::default();
        series.begin();
        series.end(true);
        series.close();
        assert_eq!((series.latencies.count(), series.failed, series.unfinished), (1, 0, 0));
        series.begun = Instant::now().checked_sub(Duration::from_secs(9));
        series.close();
        assert_eq!((series.latencies.count(), series.failed, series.unfinished), (2, 0, 1));
        assert!(series.latencies.most_ms() >= 9_000.0);
    }
}
