//! Owns the shape of a run.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::backend::Params;
use crate::ids::{ClusterId, NodeId, RunId, ServerId};
use crate::plan::{NodeIx, SetIx, StepIx};
use crate::run::RunState;
use crate::spec::{Definition, Rollout};

/// A node that a run concerns, with the name that people know it by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRef {
    pub id: NodeId,
    pub hostname: String,
}

/// Which nodes a run's targets came to, settled once when the run is created.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resolved {
    /// Every node that any entry targets, by hostname.
    pub nodes: Vec<NodeRef>,
    /// Distinct sets of nodes, as indexes into `nodes`. Entries share them: 10,000 entries over one group hold one.
    pub sets: Vec<Vec<NodeIx>>,
    /// For each entry its set, or nothing when it is placed.
    pub entries: Vec<Option<SetIx>>,
    /// Steps whose action every node that it targets declares idempotent.
    #[serde(default)]
    pub idempotent: Vec<StepIx>,
    /// With a roll-out: where each wave ends, as a count of the (one) set's nodes. The last is all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waves: Vec<u32>,
    /// Nodes that the targets mean and that were left out, because they were drained.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<NodeRef>,
}

impl Resolved {
    /// How many nodes a roll-out survives the failure of.
    pub fn budget(&self, rollout: &Rollout) -> u32 {
        rollout.max_failures.of(self.waves.last().copied().unwrap_or(0))
    }
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunEnd {
    /// Something failed, and the rest went on.
    pub partial: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A run as it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    pub id: RunId,
    pub cluster: ClusterId,
    /// The job's name; absent for an inline definition without one.
    pub job: Option<String>,
    pub state: RunState,
    pub definition: Arc<Definition>,
    pub resolved: Arc<Resolved>,
    /// The values of the job's params, the defaults among them.
    #[serde(default, skip_serializing_if = "Params::is_empty")]
    pub params: Params,
    /// The run that this one tries again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<RunId>,
    /// Nothing is taken from the cache. What comes of it is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_cache: bool,
    /// Who asked for it.
    pub by: String,
    pub idempotency_key: Option<String>,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub end: Option<RunEnd>,
    pub cancel_requested_at: Option<Timestamp>,
    /// Set while a person has it paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_at: Option<Timestamp>,
    /// Set once a run that had to wait for its turn was let in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admitted_at: Option<Timestamp>,
    pub owner: ServerId,
    /// Raised by every take-over; every change to the run shows it.
    pub epoch: u64,
}
