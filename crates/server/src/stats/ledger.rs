//! Owns the numbers: ends of runs per minute, and the last durations of each job and step. It is synchronous, and bounded
//! in every direction.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use downbeat_api::{Ends, JobStats, StepStats};
use downbeat_core::collections::HashMap;
use downbeat_core::ids::ClusterId;
use downbeat_core::run::RunVerdict;
use downbeat_core::{Span, Timestamp, limits};

const MINUTE_S: i64 = 60;

#[derive(Debug, Default)]
pub(super) struct Ledger {
    clusters: HashMap<ClusterId, OfCluster>,
}

#[derive(Debug, Default)]
struct OfCluster {
    /// By the minute since 1970 in which the runs ended.
    ends: BTreeMap<i64, Counts>,
    jobs: HashMap<String, OfJob>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    completed: u64,
    failed: u64,
    cancelled: u64,
}

#[derive(Debug)]
struct OfJob {
    last_end: Timestamp,
    runs: Sample,
    steps: BTreeMap<u32, Sample>,
}

/// The last durations, in milliseconds.
#[derive(Debug, Default)]
struct Sample(VecDeque<u32>);

impl Sample {
    fn add(&mut self, duration: Duration) {
        if self.0.len() == limits::STATS_DURATIONS {
            self.0.pop_front();
        }
        self.0.push_back(milliseconds(duration));
    }

    /// Adds a duration that is older than all others, if there is room.
    fn add_older(&mut self, duration: Duration) {
        if self.0.len() < limits::STATS_DURATIONS {
            self.0.push_front(milliseconds(duration));
        }
    }

    fn median(&self) -> Option<Span> {
        let mut sorted: Vec<u32> = self.0.iter().copied().collect();
        let middle = sorted.len().checked_sub(1)? / 2;
        Some(Span::from_millis(u64::from(*sorted.select_nth_unstable(middle).1)))
    }

    fn len(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }
}

fn milliseconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

/// A run that ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunEnd<'a> {
    pub(super) cluster: ClusterId,
    pub(super) job: Option<&'a str>,
    pub(super) verdict: RunVerdict,
    pub(super) started_at: Option<Timestamp>,
    pub(super) at: Timestamp,
}

impl Ledger {
    /// Adds a run that has just ended.
    pub(super) fn add_run(&mut self, end: RunEnd<'_>) {
        self.count(end, Sample::add);
    }

    /// Adds a run that is older than all that were added before.
    pub(super) fn add_older_run(&mut self, end: RunEnd<'_>) {
        self.count(end, Sample::add_older);
    }

    /// Forgets a deleted cluster.
    pub(super) fn forget(&mut self, cluster: ClusterId) {
        self.clusters.remove(&cluster);
    }

    fn count(&mut self, end: RunEnd<'_>, add: fn(&mut Sample, Duration)) {
        let of = self.clusters.entry(end.cluster).or_default();
        let counts = of.ends.entry(end.at.as_second().div_euclid(MINUTE_S)).or_default();
        match end.verdict {
            RunVerdict::Completed => counts.completed += 1,
            RunVerdict::Failed | RunVerdict::Orphaned => counts.failed += 1,
            RunVerdict::Cancelled => counts.cancelled += 1,
        }
        while of.ends.len() > limits::STATS_MINUTES {
            of.ends.pop_first();
        }
        let Some(job) = end.job.and_then(|job| of.job(job, end.at)) else { return };
        job.last_end = job.last_end.max(end.at);
        // A run that failed or was cancelled took less than usual.
        if let (RunVerdict::Completed, Some(started_at)) = (end.verdict, end.started_at) {
            add(&mut job.runs, Duration::try_from(end.at.duration_since(started_at)).unwrap_or_default());
        }
    }

    /// Adds a successful execution of a step.
    pub(super) fn add_execution(
        &mut self,
        cluster: ClusterId,
        job: &str,
        step: u32,
        took: Duration,
        at: Timestamp,
    ) {
        let Some(job) = self.clusters.entry(cluster).or_default().job(job, at) else { return };
        if job.steps.len() < limits::STATS_STEPS || job.steps.contains_key(&step) {
            job.steps.entry(step).or_default().add(took);
        }
    }

    /// Returns the ends in `count` periods, the last of which contains `now`.
    pub(super) fn ends(&self, cluster: ClusterId, per: Duration, count: i64, now: Timestamp) -> Vec<Ends> {
        let per_s = i64::try_from(per.as_secs()).unwrap_or(i64::MAX).max(MINUTE_S);
        let last = now.as_second().div_euclid(per_s);
        let ends = self.clusters.get(&cluster).map(|of| &of.ends);
        let period = |number: i64| {
            let (from, to) = (number * per_s, (number + 1) * per_s);
            let minutes = from.div_euclid(MINUTE_S)..to.div_euclid(MINUTE_S);
            let at = Timestamp::from_second(from).unwrap_or(Timestamp::UNIX_EPOCH);
            let none = Ends { at, completed: 0, failed: 0, cancelled: 0 };
            ends.into_iter().flat_map(|ends| ends.range(minutes.clone())).fold(none, |sum, (_, more)| Ends {
                completed: sum.completed + more.completed,
                failed: sum.failed + more.failed,
                cancelled: sum.cancelled + more.cancelled,
                ..sum
            })
        };
        (last - count + 1..=last).map(period).collect()
    }

    /// Returns the jobs by name; of a single job also its steps.
    pub(super) fn jobs(&self, cluster: ClusterId, only: Option<&str>) -> Vec<JobStats> {
        let jobs = self.clusters.get(&cluster).into_iter().flat_map(|of| &of.jobs);
        let step = |(step, sample): (&u32, &Sample)| {
            Some(StepStats { step: *step, median: sample.median()?, executions: sample.len() })
        };
        let mut jobs: Vec<JobStats> = jobs
            .filter(|(name, _)| only.is_none_or(|only| only == name.as_str()))
            .map(|(name, of)| JobStats {
                job: name.clone(),
                median: of.runs.median(),
                runs: of.runs.len(),
                steps: only.map_or_else(Vec::new, |_| of.steps.iter().filter_map(step).collect()),
            })
            .collect();
        jobs.sort_by(|a, b| a.job.cmp(&b.job));
        jobs
    }
}

impl OfCluster {
    /// Returns the numbers of a job. If there are too many, a new job replaces the one whose last run ended first, unless
    /// it is older itself.
    fn job(&mut self, name: &str, at: Timestamp) -> Option<&mut OfJob> {
        if !self.jobs.contains_key(name) && self.jobs.len() >= limits::STATS_JOBS {
            let oldest = self.jobs.iter().min_by_key(|(name, of)| (of.last_end, *name));
            let (oldest, _) = oldest.filter(|(_, of)| of.last_end <= at)?;
            let oldest = oldest.clone();
            self.jobs.remove(&oldest);
        }
        let new = || OfJob { last_end: at, runs: Sample::default(), steps: BTreeMap::new() };
        Some(self.jobs.entry(name.to_owned()).or_insert_with(new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: ClusterId = ClusterId::DEFAULT;

    fn at(minute: i64) -> Timestamp {
        Timestamp::from_second(minute * MINUTE_S).unwrap()
    }

    fn ended(ledger: &mut Ledger, job: &str, verdict: RunVerdict, minute: i64, took_s: i64) {
        let started_at = Timestamp::from_second(minute * MINUTE_S - took_s).ok();
        ledger.add_run(RunEnd { cluster: HERE, job: Some(job), verdict, started_at, at: at(minute) });
    }

    #[test]
    fn ends_are_counted_by_status_and_period() {
        let mut ledger = Ledger::default();
        for (verdict, minute) in [
            (RunVerdict::Completed, 59),
            (RunVerdict::Completed, 60),
            (RunVerdict::Failed, 119),
            (RunVerdict::Cancelled, 120),
        ] {
            ended(&mut ledger, "a", verdict, minute, 1);
        }
        let ends = ledger.ends(HERE, Duration::from_secs(3_600), 3, at(125));
        let shown: Vec<_> =
            ends.iter().map(|end| (end.at, end.completed, end.failed, end.cancelled)).collect();
        assert_eq!(shown, [(at(0), 1, 0, 0), (at(60), 1, 1, 0), (at(120), 0, 0, 1)]);
        let elsewhere = ClusterId(uuid::Uuid::from_u128(7));
        assert_eq!(ledger.ends(elsewhere, Duration::from_secs(60), 1, at(59))[0].completed, 0);
    }

    #[test]
    fn a_median_is_of_the_last_successful_ones() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.jobs(HERE, None), []);
        for took_s in [1_000, 3, 1, 2] {
            ended(&mut ledger, "a", RunVerdict::Completed, 60, took_s);
        }
        ended(&mut ledger, "a", RunVerdict::Failed, 60, 0);
        for took_ms in [5, 7, 6] {
            ledger.add_execution(HERE, "a", 2, Duration::from_millis(took_ms), at(60));
        }
        let jobs = ledger.jobs(HERE, Some("a"));
        assert_eq!((jobs[0].median, jobs[0].runs), (Some(Span::from_secs(2)), 4));
        let step = StepStats { step: 2, median: Span::from_millis(6), executions: 3 };
        assert_eq!(jobs[0].steps, [step]);
        assert!(ledger.jobs(HERE, None)[0].steps.is_empty());
        for _ in 0..limits::STATS_DURATIONS {
            ended(&mut ledger, "a", RunVerdict::Completed, 61, 9);
        }
        assert_eq!(ledger.jobs(HERE, None)[0].median, Some(Span::from_secs(9)));
    }

    #[test]
    fn older_runs_replace_nothing() {
        let mut ledger = Ledger::default();
        let older = |ledger: &mut Ledger, job: &str, minute, took_s| {
            let (verdict, started_at) = (RunVerdict::Completed, at(minute) - Duration::from_secs(took_s));
            let (job, started_at) = (Some(job), Some(started_at));
            ledger.add_older_run(RunEnd { cluster: HERE, job, verdict, started_at, at: at(minute) });
        };
        for took_s in [1, 1, 1, 9, 9] {
            older(&mut ledger, "a", 10, took_s);
        }
        assert_eq!(ledger.jobs(HERE, None)[0].median, Some(Span::from_secs(1)));
        for _ in 5..=limits::STATS_DURATIONS {
            older(&mut ledger, "a", 9, 9);
        }
        // The last of them had no room; the next new one replaces the oldest.
        ended(&mut ledger, "a", RunVerdict::Completed, 11, 1);
        assert_eq!(ledger.jobs(HERE, None)[0].runs as usize, limits::STATS_DURATIONS);
        let ones = ledger.clusters[&HERE].jobs["a"].runs.0.iter().filter(|took| **took == 1_000);
        assert_eq!(ones.count(), 4);
        for number in 1..limits::STATS_JOBS {
            older(&mut ledger, &format!("job-{number}"), 8, 1);
        }
        older(&mut ledger, "too old", 7, 1);
        assert_eq!(ledger.jobs(HERE, Some("too old")), []);
        assert_eq!(ledger.jobs(HERE, Some("a")).len(), 1);
    }

    #[test]
    fn jobs_steps_and_minutes_are_bounded() {
        let mut ledger = Ledger::default();
        for number in 0..=limits::STATS_JOBS {
            let minute = i64::try_from(number).unwrap();
            ended(&mut ledger, &format!("job-{number}"), RunVerdict::Completed, minute, 1);
        }
        assert_eq!(ledger.jobs(HERE, Some("job-0")), []);
        assert_eq!(ledger.jobs(HERE, None).len(), limits::STATS_JOBS);
        for step in 0..10 + u32::try_from(limits::STATS_STEPS).unwrap() {
            ledger.add_execution(HERE, "job-1", step, Duration::ZERO, at(1));
        }
        assert_eq!(ledger.jobs(HERE, Some("job-1"))[0].steps.len(), limits::STATS_STEPS);
        for minute in 0..10 + i64::try_from(limits::STATS_MINUTES).unwrap() {
            ended(&mut ledger, "job-1", RunVerdict::Completed, minute, 1);
        }
        assert_eq!(ledger.clusters[&HERE].ends.len(), limits::STATS_MINUTES);
    }
}
