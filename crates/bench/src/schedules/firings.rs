//! Owns the runs that schedules have started, as the REST API lists them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use downbeat_core::Timestamp;

use crate::failure::{Failure, Result};
use crate::figures::Latencies;
use crate::server::STUCK;
use crate::site::Site;

/// One run of a schedule: its time, and when it was created and finished.
#[derive(Clone, Debug)]
pub(super) struct Fired {
    pub job: String,
    pub at: Timestamp,
    pub created: Timestamp,
    pub finished: Option<Timestamp>,
}

#[derive(Debug, Default)]
pub(super) struct Firings {
    all: Vec<Fired>,
    /// How much later than their times the runs were finished.
    pub finished: Latencies,
}

fn late(at: Timestamp, since: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(since)).unwrap_or_default()
}

impl Firings {
    /// Reads all runs. Other ones than those of schedules are a failure.
    pub(super) async fn read(site: &Site) -> Result<Self> {
        let mut all = Vec::new();
        for run in site.first().runs().await? {
            let Some((_, job, at)) = run.id.schedule() else {
                return Err(Failure::bug(format!("run {} is not of a schedule", run.id)));
            };
            let (job, created) = (job.to_owned(), run.created_at);
            all.push(Fired { job, at, created, finished: run.finished_at });
        }
        Ok(Self::of(all))
    }

    fn of(all: Vec<Fired>) -> Self {
        let mut firings = Self::default();
        for fired in &all {
            if let Some(finished) = fired.finished {
                firings.finished.add(late(finished, fired.at));
            }
        }
        firings.all = all;
        firings
    }

    /// Reads all runs when they have ended.
    pub(super) async fn ended(site: &Site, every: Duration) -> Result<Self> {
        let begun = Instant::now();
        loop {
            let firings = Self::read(site).await?;
            let open = firings.all.iter().filter(|fired| fired.finished.is_none()).count();
            if open == 0 {
                return Ok(firings);
            }
            if begun.elapsed() > STUCK {
                return Err(Failure::bug(format!("{open} runs have not ended after {} s", STUCK.as_secs())));
            }
            tokio::time::sleep(every).await;
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.all.len() as u64
    }

    /// Returns how many times from `from` until `until` have a run.
    pub(super) fn within(&self, from: Timestamp, until: Timestamp) -> u64 {
        self.all.iter().filter(|fired| (from..=until).contains(&fired.at)).count() as u64
    }

    /// Returns how late runs of times from `from` on were decided, before they were committed.
    pub(super) fn created_since(&self, from: Timestamp) -> Latencies {
        let mut latencies = Latencies::default();
        let since = self.all.iter().filter(|fired| fired.at >= from);
        since.for_each(|fired| latencies.add(late(fired.created, fired.at)));
        latencies
    }

    /// Compares the runs of a time with what has to be there: `expected` returns the jobs of a second. Returns how many runs
    /// are missing, and how many are there that should not be: twice, or at another time.
    pub(super) fn compare<I: Iterator<Item = String>>(
        &self,
        from: Timestamp,
        until: Timestamp,
        expected: impl Fn(Timestamp) -> I,
    ) -> (u64, u64) {
        let mut runs: BTreeMap<Timestamp, Vec<&str>> = BTreeMap::new();
        for fired in self.all.iter().filter(|fired| (from..=until).contains(&fired.at)) {
            runs.entry(fired.at).or_default().push(&fired.job);
        }
        let (mut missing, mut unexpected) = (0, 0);
        for second in from.as_second()..=until.as_second() {
            let Ok(at) = Timestamp::from_second(second) else { continue };
            let expected: BTreeSet<String> = expected(at).collect();
            let there = runs.remove(&at).unwrap_or_default();
            let different: BTreeSet<&str> = there.iter().copied().collect();
            let right = different.iter().filter(|job| expected.contains(**job)).count();
            missing += (expected.len() - right) as u64;
            unexpected += (there.len() - right) as u64;
        }
        let elsewhere: usize = runs.values().map(Vec::len).sum();
        (missing, unexpected + elsewhere as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn fired(job: &str, second: i64) -> Fired {
        let late = at(second) + jiff::SignedDuration::from_millis(20);
        Fired { job: job.to_owned(), at: at(second), created: late, finished: None }
    }

    #[test]
    fn missing_and_double_runs_are_counted() {
        let expected = |_| ["a", "b"].into_iter().map(str::to_owned);
        let all = || vec![fired("a", 1), fired("b", 1), fired("a", 2), fired("b", 2), fired("a", 9)];
        let compare = |all: Vec<Fired>| Firings::of(all).compare(at(1), at(2), expected);
        assert_eq!(compare(all()), (0, 0));
        assert_eq!(compare(all().split_off(1)), (1, 0));
        let mut more = all();
        more.extend([fired("a", 2), fired("c", 2)]);
        assert_eq!(compare(more), (0, 2));
    }

    #[test]
    fn lateness_counts_from_the_time_of_the_schedule() {
        let firings = Firings::of(vec![fired("a", 1), fired("a", 5)]);
        assert_eq!((firings.count(), firings.finished.count()), (2, 0));
        assert_eq!(firings.created_since(at(2)).count(), 1);
        assert!((firings.created_since(at(1)).most_ms() - 20.0).abs() < 0.1);
    }
}
