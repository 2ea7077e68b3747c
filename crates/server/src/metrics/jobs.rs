//! Owns the histograms of ended runs by job. The number of their series is bounded: the first jobs have their own, and the
//! others share one. Runs without the name of a job are not in them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use downbeat_core::collections::HashSet;
use downbeat_core::limits;
use downbeat_core::run::RunMetrics;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// 10 ms to one day.
const SECONDS: [f64; 12] = [0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0];
const COUNTS: [f64; 6] = [1.0, 2.0, 4.0, 8.0, 16.0, 64.0];

/// The label of all jobs that have no series of their own.
const OTHERS: &str = "(others)";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Job {
    job: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Phase {
    job: String,
    phase: &'static str,
}

/// The histograms; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct PerJob {
    named: Arc<Mutex<HashSet<String>>>,
    total: Family<Job, Histogram>,
    start_latency: Family<Job, Histogram>,
    attempts: Family<Job, Histogram>,
    phases: Family<Phase, Histogram>,
}

impl PerJob {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let seconds = || Histogram::new(SECONDS);
        let counts = || Histogram::new(COUNTS);
        let per_job = Self {
            named: Arc::default(),
            total: Family::new_with_constructor(seconds as fn() -> Histogram),
            start_latency: Family::new_with_constructor(seconds as fn() -> Histogram),
            attempts: Family::new_with_constructor(counts as fn() -> Histogram),
            phases: Family::new_with_constructor(seconds as fn() -> Histogram),
        };
        registry.register("run_seconds", "From a run's creation to its end", per_job.total.clone());
        let help = "From a run's creation to its start";
        registry.register("run_start_latency_seconds", help, per_job.start_latency.clone());
        registry.register("run_attempts", "Attempts of a whole run", per_job.attempts.clone());
        registry.register("run_phase_seconds", "How long a run was in a phase", per_job.phases.clone());
        per_job
    }

    /// Returns the label of a job.
    fn label(&self, job: &str) -> String {
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        if named.contains(job) || (named.len() < limits::JOBS_MEASURED && named.insert(job.to_owned())) {
            return job.to_owned();
        }
        OTHERS.to_owned()
    }

    /// Adds a run that has ended.
    pub(crate) fn run_ended(&self, job: &str, metrics: &RunMetrics) {
        let label = Job { job: self.label(job) };
        let observe = |family: &Family<Job, Histogram>, value: Option<Duration>| {
            value.into_iter().for_each(|value| family.get_or_create(&label).observe(value.as_secs_f64()));
        };
        observe(&self.total, metrics.total);
        observe(&self.start_latency, metrics.start_latency);
        self.attempts.get_or_create(&label).observe(f64::from(metrics.attempts));
        let phases = [
            ("pre_run", metrics.pre_run),
            ("pending", metrics.pending),
            ("constraints", metrics.constraints),
            ("actions", metrics.actions),
            ("starting", metrics.starting),
            ("running", metrics.running),
            ("terminating", metrics.terminating),
            ("retrying", metrics.retrying),
        ];
        for (phase, spent) in phases.into_iter().filter(|(_, spent)| !spent.is_zero()) {
            let label = Phase { job: label.job.clone(), phase };
            self.phases.get_or_create(&label).observe(spent.as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn jobs_beyond_the_first_ones_share_their_series() {
        let mut registry = Registry::with_prefix("downbeat");
        let per_job = PerJob::new(&mut registry);
        let metrics = RunMetrics {
            pending: Duration::from_secs(2),
            total: Some(Duration::from_secs(20)),
            start_latency: Some(Duration::from_secs(3)),
            attempts: 1,
            ..RunMetrics::default()
        };
        for number in 0..limits::JOBS_MEASURED + 5 {
            per_job.run_ended(&format!("job-{number}"), &metrics);
        }
        per_job.run_ended("job-0", &metrics);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            r#"downbeat_run_seconds_count{job="job-0"} 2"#,
            r#"downbeat_run_seconds_bucket{le="60.0",job="job-0"} 2"#,
            r#"downbeat_run_start_latency_seconds_sum{job="(others)"} 15.0"#,
            r#"downbeat_run_attempts_count{job="(others)"} 5"#,
            r#"downbeat_run_phase_seconds_sum{job="job-1",phase="pending"} 2.0"#,
        ] {
            assert!(text.lines().any(|have| have == line), "no `{line}` in\n{text}");
        }
        let series = text.lines().filter(|line| line.starts_with("downbeat_run_seconds_count")).count();
        assert_eq!(series, limits::JOBS_MEASURED + 1);
        assert!(!text.contains(r#"phase="running""#), "the run was never in this phase");
    }
}
