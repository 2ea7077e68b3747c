//! Owns the histograms of ended runs by cluster and job. The number of their series is bounded: the first jobs have their own,
//! and the others of a cluster share one. Runs without the name of a job are not in them.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use downbeat_core::ids::ClusterId;
use downbeat_core::limits;
use downbeat_core::run::RunMetrics;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::histogram::Histogram;

/// 10 ms to one day.
const SECONDS: [f64; 12] = [0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0];
const COUNTS: [f64; 6] = [1.0, 2.0, 4.0, 8.0, 16.0, 64.0];

/// The label of all jobs of a cluster that have no series of their own.
const OTHERS: &str = "(others)";

/// The histograms of one job.
#[derive(Debug)]
struct OfJob {
    total: Histogram,
    start_latency: Histogram,
    attempts: Histogram,
    transitions: Histogram,
    constraints_checked: Histogram,
    constraints_violated: Histogram,
    actions_executed: Histogram,
    actions_failed: Histogram,
    /// Only those that a run was in.
    phases: BTreeMap<&'static str, Histogram>,
}

impl Default for OfJob {
    fn default() -> Self {
        Self {
            total: seconds(),
            start_latency: seconds(),
            attempts: counts(),
            transitions: counts(),
            constraints_checked: counts(),
            constraints_violated: counts(),
            actions_executed: counts(),
            actions_failed: counts(),
            phases: BTreeMap::new(),
        }
    }
}

fn seconds() -> Histogram {
    Histogram::new(SECONDS)
}

fn counts() -> Histogram {
    Histogram::new(COUNTS)
}

#[derive(Debug, Default)]
struct Table {
    jobs: BTreeMap<(ClusterId, String), OfJob>,
    /// How many jobs have their own series.
    named: usize,
    /// The existing clusters: only these are shown.
    clusters: HashMap<ClusterId, String>,
}

/// The histograms; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct PerJob(Arc<Mutex<Table>>);

/// A metric: its name, its help text, and its histogram of a job.
type Figure = (&'static str, &'static str, fn(&OfJob) -> &Histogram);

const FIGURES: [Figure; 8] = [
    ("run_seconds", "From a run's creation to its end", |job| &job.total),
    ("run_start_latency_seconds", "From a run's creation to its start", |job| &job.start_latency),
    ("run_attempts", "Attempts of a whole run", |job| &job.attempts),
    ("run_transitions", "How often the state of a run changed", |job| &job.transitions),
    ("run_constraints_checked", "Constraints of a run that were checked", |job| &job.constraints_checked),
    ("run_constraints_violated", "Checked constraints that a run violated", |job| &job.constraints_violated),
    ("run_actions_executed", "Actions of a run, including those that failed", |job| &job.actions_executed),
    ("run_actions_failed", "Actions of a run that failed", |job| &job.actions_failed),
];

impl PerJob {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a run that has ended.
    pub(crate) fn run_ended(&self, cluster: ClusterId, job: &str, metrics: &RunMetrics) {
        let mut table = self.table();
        let job = table.of(cluster, job);
        let observe = |histogram: &Histogram, value: Option<Duration>| {
            value.into_iter().for_each(|value| histogram.observe(value.as_secs_f64()));
        };
        observe(&job.total, metrics.total);
        observe(&job.start_latency, metrics.start_latency);
        for (histogram, count) in [
            (&job.attempts, metrics.attempts),
            (&job.transitions, metrics.transitions),
            (&job.constraints_checked, metrics.constraints_checked),
            (&job.constraints_violated, metrics.constraints_violated),
            (&job.actions_executed, metrics.actions_executed),
            (&job.actions_failed, metrics.actions_failed),
        ] {
            histogram.observe(f64::from(count));
        }
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
            job.phases.entry(phase).or_insert_with(seconds).observe(spent.as_secs_f64());
        }
    }

    /// Drops the series of a deleted cluster.
    pub(crate) fn forget(&self, cluster: ClusterId) {
        let mut table = self.table();
        table.jobs.retain(|(of, _), _| *of != cluster);
        table.named = table.jobs.keys().filter(|(_, job)| job != OTHERS).count();
    }

    /// Sets the names of the existing clusters.
    pub(crate) fn name(&self, clusters: HashMap<ClusterId, String>) {
        self.table().clusters = clusters;
    }
}

impl Table {
    fn of(&mut self, cluster: ClusterId, job: &str) -> &mut OfJob {
        let mut key = (cluster, job.to_owned());
        if !self.jobs.contains_key(&key) {
            if self.named < limits::JOBS_MEASURED {
                self.named += 1;
            } else {
                key.1 = OTHERS.to_owned();
            }
        }
        self.jobs.entry(key).or_default()
    }

    /// Returns the labels of each job of an existing cluster, with its histograms.
    fn labelled(&self) -> impl Iterator<Item = ([(&'static str, &str); 2], &OfJob)> {
        self.jobs.iter().filter_map(|((cluster, job), of)| {
            Some(([("cluster", self.clusters.get(cluster)?.as_str()), ("job", job.as_str())], of))
        })
    }
}

impl Collector for PerJob {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let table = self.table();
        for (name, help, histogram) in FIGURES {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
            for (labels, job) in table.labelled() {
                histogram(job).encode(family.encode_family(&labels)?)?;
            }
        }
        let (name, help) = ("run_phase_seconds", "How long a run was in a phase");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for ([cluster, of], job) in table.labelled() {
            for (phase, histogram) in &job.phases {
                let labels = [cluster, of, ("phase", *phase)];
                histogram.encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;
    use uuid::Uuid;

    use super::*;

    const WEB: ClusterId = ClusterId(Uuid::from_u128(7));

    fn shown(per_job: &PerJob) -> String {
        let mut registry = Registry::with_prefix("downbeat");
        registry.register_collector(Box::new(per_job.clone()));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        text
    }

    fn metrics() -> RunMetrics {
        RunMetrics {
            pending: Duration::from_secs(2),
            total: Some(Duration::from_secs(20)),
            start_latency: Some(Duration::from_secs(3)),
            attempts: 1,
            transitions: 4,
            constraints_checked: 3,
            constraints_violated: 2,
            actions_executed: 2,
            actions_failed: 1,
            ..RunMetrics::default()
        }
    }

    fn per_job() -> PerJob {
        let per_job = PerJob::default();
        let names = [(ClusterId::DEFAULT, "default"), (WEB, "web")];
        per_job.name(names.into_iter().map(|(id, name)| (id, name.to_owned())).collect());
        per_job
    }

    #[test]
    fn jobs_beyond_the_first_ones_share_their_series() {
        let per_job = per_job();
        for number in 0..limits::JOBS_MEASURED + 5 {
            per_job.run_ended(ClusterId::DEFAULT, &format!("job-{number}"), &metrics());
        }
        per_job.run_ended(ClusterId::DEFAULT, "job-0", &metrics());
        let text = shown(&per_job);
        for line in [
            r#"downbeat_run_seconds_count{cluster="default",job="job-0"} 2"#,
            r#"downbeat_run_seconds_bucket{le="60.0",cluster="default",job="job-0"} 2"#,
            r#"downbeat_run_start_latency_seconds_sum{cluster="default",job="(others)"} 15.0"#,
            r#"downbeat_run_attempts_count{cluster="default",job="(others)"} 5"#,
            r#"downbeat_run_phase_seconds_sum{cluster="default",job="job-1",phase="pending"} 2.0"#,
        ] {
            assert!(text.lines().any(|have| have == line), "no `{line}` in\n{text}");
        }
        let series = text.lines().filter(|line| line.starts_with("downbeat_run_seconds_count")).count();
        assert_eq!(series, limits::JOBS_MEASURED + 1);
        assert!(!text.contains(r#"phase="running""#), "the run was never in this phase");
    }

    #[test]
    fn every_count_of_a_run_is_a_histogram_by_job() {
        let per_job = per_job();
        per_job.run_ended(ClusterId::DEFAULT, "nightly", &metrics());
        let text = shown(&per_job);
        let sums = [
            ("attempts", 1),
            ("transitions", 4),
            ("constraints_checked", 3),
            ("constraints_violated", 2),
            ("actions_executed", 2),
            ("actions_failed", 1),
        ];
        for (name, sum) in sums {
            let line = format!(r#"downbeat_run_{name}_sum{{cluster="default",job="nightly"}} {sum}.0"#);
            assert!(text.lines().any(|have| have == line), "no `{line}` in\n{text}");
        }
    }

    #[test]
    fn jobs_of_the_same_name_in_two_clusters_are_apart_and_a_deleted_cluster_leaves_nothing() {
        let per_job = per_job();
        per_job.run_ended(ClusterId::DEFAULT, "nightly", &metrics());
        let before = shown(&per_job);
        for number in 0..limits::JOBS_MEASURED {
            per_job.run_ended(WEB, &format!("job-{number}"), &metrics());
        }
        per_job.run_ended(WEB, "nightly", &metrics());
        let text = shown(&per_job);
        assert!(text.contains(r#"downbeat_run_seconds_count{cluster="web",job="(others)"} 2"#), "{text}");
        assert!(text.contains(r#"downbeat_run_seconds_count{cluster="default",job="nightly"} 1"#), "{text}");
        per_job.forget(WEB);
        assert_eq!(shown(&per_job), before);
        // Its jobs make room for others.
        per_job.run_ended(ClusterId::DEFAULT, "other", &metrics());
        assert!(shown(&per_job).contains(r#"job="other""#));
    }
}
