//! Owns backfills: a stored job runs for all times of its schedules in a range of the past. Decides what starts next.
//!
//! The state of a backfill is one position and the times whose runs are open. The commit that creates a run also moves the
//! position, so that each time is decided once, however many servers continue the backfill, and whichever of them die.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::{JobKey, NotStarted};
use crate::change::{Applied, Refusal};
use crate::ids::{BackfillId, RunId};
use crate::run::RunState;

/// The part of a backfill that never changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backfill {
    pub id: BackfillId,
    pub job: JobKey,
    /// The version of the job whose schedules and tasks count, also if the job is changed meanwhile.
    pub version: u64,
    /// The first time of the range.
    pub from: Timestamp,
    /// The range ends before this time.
    pub to: Timestamp,
    /// How many times of the schedules are in the range.
    pub times: u32,
    /// How many of its runs are open at once.
    pub parallel: u32,
    /// Times that have a run already run again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
    /// Who started it.
    pub by: String,
    pub created_at: Timestamp,
}

impl Backfill {
    /// Returns the id of the run of a time.
    pub fn run_id(&self, cluster: &str, at: Timestamp) -> RunId {
        let id = RunId::scheduled(cluster, &self.job.name, at);
        if self.again { id.again(self.id) } else { id }
    }

    /// Returns the idempotency key of the run of a time. The id has the name of the cluster, which may change.
    pub fn run_key(&self, at: Timestamp) -> String {
        let key = super::schedule_key(&self.job, at);
        if self.again { format!("{key}\n{}", self.id) } else { key }
    }
}

/// How many times of a backfill ended in which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackfillCounts {
    pub succeeded: u32,
    pub failed: u32,
    pub cancelled: u32,
    /// Times that had a run before.
    pub existing: u32,
    /// Times whose run was refused, because the job cannot run.
    pub refused: u32,
}

impl BackfillCounts {
    pub fn total(&self) -> u32 {
        self.succeeded + self.failed + self.cancelled + self.existing + self.refused
    }
}

/// Who cancelled a backfill, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackfillCancel {
    pub by: String,
    pub at: Timestamp,
}

/// The part of a backfill that changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackfillLive {
    /// All times before this one are decided: their runs were created, exist, or were refused.
    pub next: Timestamp,
    /// The runs that this backfill created and that have not ended, as far as it is recorded, by their times.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub open: BTreeMap<Timestamp, RunId>,
    pub counts: BackfillCounts,
    /// The last time whose run was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<NotStarted>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancelled: Option<BackfillCancel>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
}

/// A backfill with its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackfillRecord {
    pub made: Backfill,
    pub live: BackfillLive,
}

/// How the run of a time ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackfillEnd {
    pub at: Timestamp,
    /// Absent if the run was removed before anybody saw its end: it counts as failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<RunState>,
}

/// Progress of a backfill besides the creation of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackfillStep {
    /// The position that the decision relied on.
    pub from: Timestamp,
    /// The position from now on.
    pub until: Timestamp,
    /// Whether the time between them had a run before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub existing: bool,
    /// The time between them, if its run was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<NotStarted>,
    /// The runs that have ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ended: Vec<BackfillEnd>,
    /// Whether nothing is left to do.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_end: bool,
}

impl BackfillStep {
    /// Returns a step that stays where the backfill is.
    fn at(live: &BackfillLive) -> Self {
        let (from, until) = (live.next, live.next);
        Self { from, until, existing: false, refused: None, ended: Vec::new(), is_end: false }
    }

    /// Returns the step over a time that has a run already.
    pub fn over_existing(live: &BackfillLive, at: Timestamp) -> Self {
        Self { until: after(at), existing: true, ..Self::at(live) }
    }

    /// Returns the step over a time whose run was refused.
    pub fn over_refused(live: &BackfillLive, refused: NotStarted) -> Self {
        Self { until: after(refused.at), refused: Some(refused), ..Self::at(live) }
    }
}

/// Returns the position after a time. Times of schedules are whole seconds.
fn after(at: Timestamp) -> Timestamp {
    at.checked_add(SignedDuration::from_secs(1)).unwrap_or(Timestamp::MAX)
}

impl BackfillRecord {
    pub fn new(made: Backfill) -> Self {
        let live = BackfillLive {
            next: made.from,
            open: BTreeMap::new(),
            counts: BackfillCounts::default(),
            refused: None,
            cancelled: None,
            ended_at: None,
        };
        Self { made, live }
    }

    pub fn is_open(&self) -> bool {
        self.live.ended_at.is_none()
    }

    /// Returns how many times are not decided yet.
    pub fn left(&self) -> u32 {
        let open = u32::try_from(self.live.open.len()).unwrap_or(u32::MAX);
        self.made.times.saturating_sub(self.live.counts.total()).saturating_sub(open)
    }

    /// Records that the run of a time was created. Refuses it if the decision relied on another position.
    pub fn start(&mut self, from: Timestamp, at: Timestamp, run: &RunId) -> Applied {
        let is_full = self.live.open.len() >= self.made.parallel as usize;
        if !self.is_open() || self.live.cancelled.is_some() || is_full {
            return Err(Refusal::WrongState);
        }
        if self.live.next != from || at < from {
            return Err(Refusal::StaleVersion);
        }
        self.live.next = after(at);
        self.live.open.insert(at, run.clone());
        Ok(())
    }

    /// Records progress. Refuses it if the decision relied on another state.
    pub fn step(&mut self, step: &BackfillStep, at: Timestamp) -> Applied {
        if !self.is_open() {
            return Err(Refusal::WrongState);
        }
        let is_known = |end: &BackfillEnd| self.live.open.contains_key(&end.at);
        if self.live.next != step.from || step.until < step.from || !step.ended.iter().all(is_known) {
            return Err(Refusal::StaleVersion);
        }
        if step.is_end && self.live.open.len() > step.ended.len() {
            return Err(Refusal::WrongState);
        }
        let counts = &mut self.live.counts;
        for end in &step.ended {
            match end.state {
                Some(RunState::Completed) => counts.succeeded += 1,
                Some(RunState::Cancelled) => counts.cancelled += 1,
                _ => counts.failed += 1,
            }
            self.live.open.remove(&end.at);
        }
        counts.existing += u32::from(step.existing);
        if let Some(refused) = &step.refused {
            counts.refused += 1;
            self.live.refused = Some(refused.clone());
        }
        self.live.next = step.until;
        self.live.ended_at = step.is_end.then_some(at);
        Ok(())
    }

    pub fn cancel(&mut self, cancel: &BackfillCancel) -> Applied {
        if !self.is_open() || self.live.cancelled.is_some() {
            return Err(Refusal::WrongState);
        }
        self.live.cancelled = Some(cancel.clone());
        Ok(())
    }
}

/// What a backfill needs next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackfillNext {
    /// Start the run of this time.
    Start(Timestamp),
    /// Record this progress.
    Record(BackfillStep),
    /// The job does not exist any more: cancel the backfill.
    Cancel,
    /// Cancel the open runs of the cancelled backfill, and wait for their ends.
    CancelRuns,
    /// Wait for the end of a run.
    Wait,
    /// It has ended.
    Nothing,
}

/// Facts that the next decision about a backfill relies on.
#[derive(Clone, Debug)]
pub struct BackfillFacts {
    /// Runs of the backfill that have ended.
    pub ended: Vec<BackfillEnd>,
    /// Whether the job exists.
    pub has_job: bool,
}

/// Decides what a backfill needs next. `first` returns the first time of the schedules at or after a time.
pub fn next_of_backfill(
    backfill: &BackfillRecord,
    facts: BackfillFacts,
    first: impl FnOnce(Timestamp) -> Option<Timestamp>,
) -> BackfillNext {
    let BackfillRecord { made, live } = backfill;
    if !backfill.is_open() {
        return BackfillNext::Nothing;
    }
    if !facts.ended.is_empty() {
        return BackfillNext::Record(BackfillStep { ended: facts.ended, ..BackfillStep::at(live) });
    }
    let end = || BackfillNext::Record(BackfillStep { is_end: true, ..BackfillStep::at(live) });
    if live.cancelled.is_some() {
        return if live.open.is_empty() { end() } else { BackfillNext::CancelRuns };
    }
    if !facts.has_job {
        return BackfillNext::Cancel;
    }
    if live.open.len() >= made.parallel as usize {
        return BackfillNext::Wait;
    }
    match first(live.next).filter(|at| *at < made.to) {
        Some(at) => BackfillNext::Start(at),
        None if live.open.is_empty() => end(),
        None => BackfillNext::Wait,
    }
}

#[cfg(test)]
mod tests;
