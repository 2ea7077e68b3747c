//! Checks by the feed that schedules start each run once: no time has two runs; each time that was due has a run, or is
//! recorded with a reason that is true; nothing starts for a paused, deleted or older job; and after everything has healed no
//! job is behind.

mod oracle;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use downbeat_core::change::FiringGuard;
use downbeat_core::ids::{ClusterId, RunId};
use downbeat_core::job::{JobKey, JobVersion, NotStarted};
use downbeat_core::run::RunRecord;
use downbeat_core::schedule::{SkipReason, Skipped};
use downbeat_core::spec::Definition;
use downbeat_core::{Change, Timestamp};
use jiff::SignedDuration;

use self::oracle::{Due, Oracle};
use super::evidence::Evidence;
use super::{Checker, Findings};
use crate::schedules::SETTLE;

/// How late a decision may be after everything has healed: a few commits, and the difference between two servers' clocks.
const BEHIND: SignedDuration = SignedDuration::from_secs(15);
/// A clock that was set back by more than this was wrong before.
const AHEAD_MOST: SignedDuration = SignedDuration::from_hours(24);
/// Parts of the errors of a job without nodes.
const NO_NODES: [&str; 2] = ["no node is in group `nobody`", "the cluster has no nodes yet"];

pub(super) fn check(evidence: &Evidence) -> Findings {
    let settled = evidence.truth.healed.map(|healed| healed + SETTLE);
    let mut follower = Follower::default();
    for event in &evidence.events {
        let is_settled = evidence.committed_at(event) > settled && settled.is_some();
        let mut found = Vec::new();
        follower.follow(&event.change, is_settled, &mut found);
        follower.found.extend(found.into_iter().map(|what| format!("event {}: {what}", event.seq)));
    }
    let mut findings = Findings::of(Checker::Schedules);
    follower.found.into_iter().for_each(|what| findings.add(what));
    findings
}

/// A job that exists.
#[derive(Clone, Debug)]
struct Stored {
    version: u64,
    definition: Arc<Definition>,
    oracle: Oracle,
    is_paused: bool,
    decided: Timestamp,
}

#[derive(Debug)]
struct Follower {
    /// The names of clusters.
    names: BTreeMap<ClusterId, Arc<str>>,
    jobs: BTreeMap<JobKey, Stored>,
    /// The times that have a run.
    runs: BTreeMap<JobKey, BTreeMap<Timestamp, RunId>>,
    found: Vec<String>,
}

impl Default for Follower {
    fn default() -> Self {
        let names = BTreeMap::from([(ClusterId::DEFAULT, Arc::from("default"))]);
        Self { names, jobs: BTreeMap::new(), runs: BTreeMap::new(), found: Vec::new() }
    }
}

/// The record of one decision.
struct Decided<'a> {
    version: u64,
    from: Timestamp,
    until: Timestamp,
    skipped: &'a [Skipped],
    refused: &'a [NotStarted],
    at: Timestamp,
}

impl Follower {
    /// Checks a change and takes it in. Once everything is settled, no job may be behind.
    fn follow(&mut self, change: &Change, is_settled: bool, found: &mut Vec<String>) {
        match change {
            Change::ClusterCreated { cluster, .. } | Change::ClusterChanged { cluster, .. } => {
                self.names.insert(cluster.id, cluster.name.as_str().into());
            }
            Change::ClusterDeleted { cluster, .. } => self.jobs.retain(|key, _| key.cluster != *cluster),
            Change::JobApplied { job, .. } => {
                self.is_behind(&job.key, job.at, is_settled, found);
                self.apply(job);
            }
            Change::JobPauseSet { job, paused, at, .. } => {
                self.is_behind(job, *at, is_settled, found);
                if let Some(stored) = self.jobs.get_mut(job) {
                    stored.is_paused = *paused;
                }
            }
            Change::JobDeleted { job, at, .. } => {
                self.is_behind(job, *at, is_settled, found);
                self.jobs.remove(job);
            }
            Change::JobDecided { job, version, from, until, skipped, refused, at } => {
                let decided =
                    Decided { version: *version, from: *from, until: *until, skipped, refused, at: *at };
                self.decided(job, &decided, found);
            }
            Change::RunCreated { run, firing, .. } if firing.is_some() || run.id.schedule().is_some() => {
                self.fired(run, *firing, found);
            }
            _ => {}
        }
    }

    fn apply(&mut self, job: &JobVersion) {
        let name = self.names.get(&job.key.cluster).cloned().unwrap_or_default();
        let definition = Arc::clone(&job.definition);
        let oracle = Oracle::new(format!("{name}:{}", job.key.name), &definition.schedule);
        let former = self.jobs.get(&job.key);
        let (is_paused, decided) =
            former.map_or((false, job.at), |former| (former.is_paused, former.decided));
        let stored = Stored { version: job.version, definition, oracle, is_paused, decided };
        self.jobs.insert(job.key.clone(), stored);
    }

    /// Finds times of an active job that were due long before and are not decided.
    fn is_behind(&self, key: &JobKey, at: Timestamp, is_settled: bool, found: &mut Vec<String>) {
        let Some(job) = self.jobs.get(key).filter(|job| is_settled && !job.is_paused) else { return };
        let late = job.oracle.fates(job.decided, at - BEHIND, at, false);
        if let Some(first) = late.keys().next() {
            found.push(format!(
                "at {at} the schedules of {} are behind: {} times from {first} on are not decided",
                key.name,
                late.len()
            ));
        }
    }

    fn fired(&mut self, run: &RunRecord, firing: Option<FiringGuard>, found: &mut Vec<String>) {
        let id = &run.id;
        let Some((cluster, name, at)) = id.schedule() else {
            found.push(format!("a schedule started {id}, which is not the id of a time"));
            return;
        };
        let key = JobKey::new(run.cluster, name);
        if self.names.get(&run.cluster).map(|name| &**name) != Some(cluster)
            || run.job.as_deref() != Some(name)
        {
            found.push(format!("{id} is of the job {:?} in {}", run.job, run.cluster));
        }
        if run.idempotency_key != Some(format!("schedule\n{name}\n{at}")) {
            found.push(format!("{id} has the key {:?}", run.idempotency_key));
        }
        if let Some(first) = self.runs.entry(key.clone()).or_default().insert(at, id.clone()) {
            found.push(format!("{at} of {name} fires twice: {first} and {id}"));
        }
        let Some(job) = self.jobs.get(&key) else {
            found.push(format!("{id} starts, but its job does not exist"));
            return;
        };
        if job.is_paused {
            found.push(format!("{id} starts, but its job is paused"));
        }
        if run.job_version != Some(job.version) {
            found.push(format!("{id} is of version {:?}, not {}", run.job_version, job.version));
        }
        if firing != Some(FiringGuard { version: job.version, from: job.decided, backfill: None }) {
            found.push(format!("{id} relies on {firing:?}, but everything until {} is decided", job.decided));
        }
        // Two schedules may have a time in common that is due by each at its own moment, because of the jitter.
        if !job.oracle.is_due(at, reached(job.decided, run.created_at), run.created_at) {
            found.push(format!("{id} starts at {}, when it was not due", run.created_at));
        }
    }

    fn decided(&mut self, key: &JobKey, decided: &Decided<'_>, found: &mut Vec<String>) {
        let Some(job) = self.jobs.get_mut(key) else {
            found.push(format!("schedules of {} are decided, but it does not exist", key.name));
            return;
        };
        let Decided { version, from, until, at, .. } = *decided;
        if (job.version, job.decided) != (version, from) {
            found.push(format!(
                "a decision about version {version} from {from} on follows one about {} until {}",
                job.version, job.decided
            ));
        }
        let start = reached(from, at);
        if until < start || until > at.max(start) {
            found.push(format!("a decision at {at} about times after {start} reaches until {until}"));
        }
        job.decided = until;
        let fates = job.oracle.fates(start, until, at, job.is_paused);
        let runs = self.runs.entry(key.clone()).or_default();
        check_starts(job, &fates, runs, decided.refused, found);
        for reason in SkipReason::ALL {
            let expected = group(reason, &fates);
            let recorded = decided.skipped.iter().find(|skipped| skipped.reason == reason);
            if recorded != expected.as_ref() {
                found.push(format!("{}: {recorded:?} are skipped, not {expected:?}", key.name));
            }
        }
    }
}

/// Checks that each time that has to start a run has one, or was refused with a reason that is true.
fn check_starts(
    job: &Stored,
    fates: &BTreeMap<Timestamp, Due>,
    runs: &BTreeMap<Timestamp, RunId>,
    refused: &[NotStarted],
    found: &mut Vec<String>,
) {
    let refusal = |at: Timestamp| refused.iter().find(|one| one.at == at);
    let may_run = job.definition.target.is_none();
    for fate in fates.values().filter(|fate| fate.skip.is_none()) {
        match refusal(fate.at) {
            Some(one) if may_run || !NO_NODES.iter().any(|text| one.error.contains(text)) => {
                found.push(format!("{} was refused, but the job can run: {}", fate.at, one.error));
            }
            None if !runs.contains_key(&fate.at) => {
                found.push(format!("{} was due at {} and is missed", fate.at, fate.due));
            }
            _ => {}
        }
    }
    for one in refused {
        if fates.get(&one.at).is_none_or(|fate| fate.skip.is_some()) {
            found.push(format!("{} was refused, but not due", one.at));
        }
    }
}

/// Returns how the times that are skipped for a reason are recorded.
fn group(reason: SkipReason, fates: &BTreeMap<Timestamp, Due>) -> Option<Skipped> {
    let times: Vec<Timestamp> =
        fates.values().filter(|fate| fate.skip == Some(reason)).map(|fate| fate.at).collect();
    let (first, last) = (*times.first()?, *times.last()?);
    Some(Skipped { reason, first, last, count: times.len() })
}

fn reached(decided: Timestamp, now: Timestamp) -> Timestamp {
    if decided.duration_since(now) > AHEAD_MOST { now } else { decided }
}
