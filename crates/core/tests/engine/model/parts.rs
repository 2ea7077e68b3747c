//! The parts of a run as the tables see them: instances with their attempts, and the parts that begin one after the
//! other.

use std::collections::BTreeMap;

use downbeat_core::execution::Status;
use serde_json::Value;

/// The kind of reason of a recorded skip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Why {
    /// The run was cancelled, or timed out.
    Stopped,
    /// A step failed elsewhere.
    Failure,
    /// The budget was spent in an earlier wave.
    WaveNeverBegan,
    NodeLeft,
    NothingFailed,
    DependencyFailed,
    DependencySkipped,
    NoDependencyFailed,
    NodeOffline,
    NodeUntouched,
    /// The budget was not exceeded, and this node did not fail.
    NodeNotConcerned,
    FailedOnThisNode,
    NothingFailedOnThisNode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Cancelled,
    TimedOut,
}

/// The final result of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Succeeded,
    Failed,
    Skipped,
    /// Of a whole task: it would have run if nothing had failed.
    SkippedAfterFailure,
    /// The run was stopped before the instance had a result.
    Stopped,
}

#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) status: Status,
    pub(crate) why: Option<Why>,
    /// A stop was requested.
    pub(crate) stop: bool,
    /// It was leased by a node.
    pub(super) sent: bool,
    /// For a pinned retry after a loss: the time until which it waits for its node.
    pub(super) waits_until: Option<i64>,
    /// Once it is leased: the time by which its end has to be reported.
    pub(super) due: Option<i64>,
    /// The latest time until which a retry may be delayed.
    pub(crate) held_until: Option<i64>,
    /// The time until which it is delayed: it is random, and read from the record.
    pub(crate) not_before: Option<i64>,
    /// The time since which no node fits it.
    pub(crate) unfit_since: Option<i64>,
    /// No node fitted it for too long.
    pub(crate) unfit: bool,
    /// The earlier result for it.
    pub(super) found: Option<Value>,
    /// The earlier result was used.
    pub(crate) cached: bool,
    pub(super) ended: usize,
}

impl Default for Attempt {
    fn default() -> Self {
        Self {
            status: Status::Pending,
            why: None,
            stop: false,
            sent: false,
            waits_until: None,
            due: None,
            held_until: None,
            not_before: None,
            unfit_since: None,
            unfit: false,
            found: None,
            cached: false,
            ended: 0,
        }
    }
}

/// The rendered params of an instance.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Given {
    NothingUsed,
    Missing,
    Values(BTreeMap<String, Value>),
}

/// A step on a node or for an item.
pub(crate) type Place = (usize, Option<usize>, Option<usize>);

/// One step on one node or for one item, or the only instance of a placed step.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    pub(crate) part: usize,
    pub(crate) entry: usize,
    pub(crate) leaf: usize,
    pub(crate) step: usize,
    pub(crate) node: Option<usize>,
    pub(crate) item: Option<usize>,
    /// It succeeded in the run that this one retries.
    pub(crate) carried: bool,
    pub(crate) attempts: Vec<Attempt>,
    pub(crate) fate: Option<Fate>,
    /// Its output when it succeeded.
    pub(crate) output: Option<Value>,
}

impl Instance {
    pub(crate) fn status(&self) -> Option<Status> {
        self.attempts.last().map(|attempt| attempt.status)
    }

    /// Returns whether any attempt was really made: a record without an attempt does not count.
    pub(crate) fn was_tried(&self) -> bool {
        self.attempts.len() > 1 || self.attempts.iter().any(|attempt| attempt.status != Status::Skipped)
    }

    pub(super) fn is_open(&self) -> bool {
        self.status().is_some_and(|status| status.is_open())
    }

    /// Returns the sort key: the order of the job file, and of nodes or items.
    pub(super) fn order(&self) -> (usize, Option<usize>, Option<usize>, usize) {
        (self.part, self.node, self.item, self.leaf)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Waiting,
    Due,
    Began,
    Skipped,
}

/// A part begins as a whole: an entry on all of its nodes, or with a roll-out on the nodes of one wave.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) entry: usize,
    pub(super) wave: Option<usize>,
    /// The parts that must end before this one begins.
    pub(super) after: Vec<usize>,
    pub(super) stage: Stage,
    /// Its items, once they are known.
    pub(super) items: Option<Vec<Value>>,
}
