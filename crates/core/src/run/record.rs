//! Owns the shape of a run.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize, Serializer};

use super::live::{RunEnd, RunLive, RunStage};
use super::words::RunState;

use crate::backend::Params;
use crate::ids::{ClusterId, NodeId, RunId, ServerId};
use crate::plan::{NodeIx, SetIx, StepIx};
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

/// The part of a run that never changes.
#[derive(Clone, Debug, PartialEq)]
pub struct RunMade {
    pub id: RunId,
    pub cluster: ClusterId,
    /// The job's name; absent for an inline definition without one.
    pub job: Option<String>,
    pub definition: Arc<Definition>,
    pub resolved: Arc<Resolved>,
    /// The values of the job's params, including defaults.
    pub params: Params,
    /// The run that this one tries again.
    pub retry_of: Option<RunId>,
    /// Nothing is taken from the cache. Results are still put there.
    pub no_cache: bool,
    /// Who submitted the run.
    pub by: String,
    pub idempotency_key: Option<String>,
    pub created_at: Timestamp,
}

/// A run as it is stored.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Flat<'static>")]
pub struct RunRecord {
    pub made: Arc<RunMade>,
    pub live: RunLive,
}

impl RunRecord {
    /// Returns a new run, which waits for its turn.
    pub fn new(made: RunMade, owner: ServerId) -> Self {
        Self { made: Arc::new(made), live: RunLive::new(owner) }
    }

    pub fn state(&self) -> RunState {
        self.live.state()
    }
}

/// What never changes is read as if it were part of the record.
impl Deref for RunRecord {
    type Target = RunMade;

    fn deref(&self) -> &RunMade {
        &self.made
    }
}

impl Serialize for RunRecord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Flat::of(self).serialize(serializer)
    }
}

/// A run as events and copies hold it: one flat object.
#[derive(Serialize, Deserialize)]
struct Flat<'a> {
    id: RunId,
    cluster: ClusterId,
    job: Option<Cow<'a, str>>,
    state: RunState,
    definition: Arc<Definition>,
    resolved: Arc<Resolved>,
    #[serde(default, skip_serializing_if = "Params::is_empty")]
    params: Cow<'a, Params>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retry_of: Option<RunId>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    no_cache: bool,
    by: Cow<'a, str>,
    idempotency_key: Option<Cow<'a, str>>,
    created_at: Timestamp,
    started_at: Option<Timestamp>,
    finished_at: Option<Timestamp>,
    end: Option<Cow<'a, RunEnd>>,
    cancel_requested_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    paused_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    admitted_at: Option<Timestamp>,
    owner: ServerId,
    epoch: u64,
}

impl<'a> Flat<'a> {
    fn of(run: &'a RunRecord) -> Self {
        let RunRecord { made, live } = run;
        Self {
            id: made.id.clone(),
            cluster: made.cluster,
            job: made.job.as_deref().map(Cow::Borrowed),
            state: live.state(),
            definition: Arc::clone(&made.definition),
            resolved: Arc::clone(&made.resolved),
            params: Cow::Borrowed(&made.params),
            retry_of: made.retry_of.clone(),
            no_cache: made.no_cache,
            by: Cow::Borrowed(&made.by),
            idempotency_key: made.idempotency_key.as_deref().map(Cow::Borrowed),
            created_at: made.created_at,
            started_at: live.started_at,
            finished_at: live.finished_at(),
            end: live.end().map(Cow::Borrowed),
            cancel_requested_at: live.cancel_requested_at,
            paused_at: live.paused_at,
            admitted_at: live.admitted_at,
            owner: live.owner,
            epoch: live.epoch,
        }
    }
}

impl TryFrom<Flat<'_>> for RunRecord {
    type Error = String;

    fn try_from(flat: Flat<'_>) -> Result<Self, String> {
        let end = flat.finished_at.map(|at| (at, flat.end.map(Cow::into_owned).unwrap_or_default()));
        let stage = RunStage::of(flat.state, flat.admitted_at.is_some(), end);
        let live = RunLive {
            stage: stage.ok_or_else(|| format!("a run that is {} has no end", flat.state))?,
            admitted_at: flat.admitted_at,
            started_at: flat.started_at,
            cancel_requested_at: flat.cancel_requested_at,
            paused_at: flat.paused_at,
            owner: flat.owner,
            epoch: flat.epoch,
        };
        let made = RunMade {
            id: flat.id,
            cluster: flat.cluster,
            job: flat.job.map(Cow::into_owned),
            definition: flat.definition,
            resolved: flat.resolved,
            params: flat.params.into_owned(),
            retry_of: flat.retry_of,
            no_cache: flat.no_cache,
            by: flat.by.into_owned(),
            idempotency_key: flat.idempotency_key.map(Cow::into_owned),
            created_at: flat.created_at,
        };
        Ok(Self { made: Arc::new(made), live })
    }
}
