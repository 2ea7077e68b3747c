//! Owns the shape of a run.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize, Serializer};

use super::life::Life;
use super::live::{RolloutProgress, RunEnd, RunLive, RunStage, Stopped};
use super::states::StateTimes;
use super::words::RunState;
use crate::backend::Params;
use crate::execution::Execution;
use crate::ids::{ClusterId, NodeId, RunId, ServerId};
use crate::limits;
use crate::plan::{ItemIx, Resolved, StepIx};
use crate::spec::Definition;

/// A step on a node, or for an item. Its attempts are executions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instance {
    pub step: StepIx,
    pub node: Option<NodeId>,
    pub item: Option<ItemIx>,
}

impl Instance {
    pub fn of(execution: &Execution) -> Self {
        Self { step: StepIx(execution.step()), node: execution.pinned, item: execution.item().map(ItemIx) }
    }
}

/// The part of a run that never changes.
#[derive(Clone, Debug, PartialEq)]
pub struct RunMade {
    pub id: RunId,
    pub cluster: ClusterId,
    /// The job's name; absent for an inline definition without one.
    pub job: Option<String>,
    /// The version of the stored job that it runs; absent for an inline definition.
    pub job_version: Option<u64>,
    pub definition: Arc<Definition>,
    pub resolved: Arc<Resolved>,
    /// The values of the job's params, including defaults.
    pub params: Params,
    /// The run that this one retries.
    pub retry_of: Option<RunId>,
    /// Results are not read from the cache. They are still written to it.
    pub no_cache: bool,
    /// Who submitted the run.
    pub by: String,
    pub idempotency_key: Option<String>,
    /// Identifies the request that used the idempotency key. Older programs do not record it.
    pub request_hash: Option<String>,
    pub created_at: Timestamp,
}

/// Which counts of a run's instances a store keeps up to date with every change. The others are counted when somebody
/// looks at them, which is cheap for few instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    Nothing,
    /// The counts of the whole run.
    Totals,
    /// The counts of each step, and of the whole run.
    Steps,
}

impl Keeps {
    /// Returns what to keep for a run of up to this many instances.
    pub fn for_size(instances: u64) -> Self {
        if instances <= limits::COUNTED_IN_LISTS {
            Self::Nothing
        } else if instances <= limits::PLAN_SMALL_INSTANCES as u64 {
            Self::Totals
        } else {
            Self::Steps
        }
    }
}

impl RunMade {
    /// Decides which counts to keep by the number of instances that the run may have.
    pub fn keeps(&self) -> Keeps {
        if self.definition.tasks.iter().any(|entry| entry.for_each().is_some()) {
            return Keeps::Steps;
        }
        let (steps, nodes) = (self.definition.step_count(), self.resolved.node_count());
        Keeps::for_size(u64::from(steps) * u64::from(nodes.max(1)))
    }

    /// Returns the size of its roll-out, if it is one.
    pub fn rollout_size(&self) -> Option<RolloutSize> {
        let rollout = self.definition.rollout.as_ref()?;
        let waves = u32::try_from(self.resolved.waves.len()).unwrap_or(u32::MAX);
        Some(RolloutSize { waves, budget: self.resolved.budget(rollout) })
    }
}

/// A run as it is stored.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Flat<'static>")]
pub struct RunRecord {
    pub made: Arc<RunMade>,
    pub live: RunLive,
}

impl RunRecord {
    /// Creates a run that waits for admission.
    pub fn new(made: RunMade, owner: ServerId) -> Self {
        Self { made: Arc::new(made), live: RunLive::new(owner) }
    }

    /// Creates the run that carries out the standing tasks of a cluster. It never starts, is not admitted and does not
    /// end: it gives the executions of standing tasks an owner and an epoch. Its steps are the numbers of the tasks.
    pub fn standing(cluster: ClusterId, owner: ServerId, at: Timestamp) -> Self {
        let made = RunMade {
            id: RunId::standing(cluster),
            cluster,
            job: None,
            job_version: None,
            definition: Arc::default(),
            resolved: Arc::default(),
            params: Params::new(),
            retry_of: None,
            no_cache: false,
            by: String::new(),
            idempotency_key: None,
            request_hash: None,
            created_at: at,
        };
        let live = RunLive { stage: RunStage::Scheduled, ..RunLive::new(owner) };
        Self { made: Arc::new(made), live }
    }

    pub fn state(&self) -> RunState {
        self.live.state()
    }
}

/// A run without its definition, params and nodes: what a list shows of it.
#[derive(Clone, Debug, PartialEq)]
pub struct RunBrief {
    pub id: RunId,
    pub cluster: ClusterId,
    pub job: Option<String>,
    pub job_version: Option<u64>,
    /// The number of steps in its definition.
    pub steps: u32,
    /// The number of nodes that its targets resolved to.
    pub nodes: u32,
    /// Absent for a run without waves, and if an older program created it.
    pub rollout: Option<RolloutSize>,
    pub retry_of: Option<RunId>,
    pub no_cache: bool,
    pub by: String,
    pub created_at: Timestamp,
    pub live: RunLive,
}

/// The size of a roll-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RolloutSize {
    pub waves: u32,
    /// How many nodes may fail.
    pub budget: u32,
}

impl RunBrief {
    pub fn state(&self) -> RunState {
        self.live.state()
    }
}

impl From<&RunRecord> for RunBrief {
    fn from(run: &RunRecord) -> Self {
        Self {
            id: run.id.clone(),
            cluster: run.cluster,
            job: run.job.clone(),
            job_version: run.job_version,
            steps: run.definition.step_count(),
            nodes: run.resolved.node_count(),
            rollout: run.rollout_size(),
            retry_of: run.retry_of.clone(),
            no_cache: run.no_cache,
            by: run.by.clone(),
            created_at: run.created_at,
            live: run.live.clone(),
        }
    }
}

/// The part that never changes is read as if its fields belonged to the record.
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

/// A run in events and copies: one flat object.
#[derive(Serialize, Deserialize)]
struct Flat<'a> {
    id: RunId,
    cluster: ClusterId,
    job: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    job_version: Option<u64>,
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    request_hash: Option<Cow<'a, str>>,
    created_at: Timestamp,
    started_at: Option<Timestamp>,
    finished_at: Option<Timestamp>,
    end: Option<Cow<'a, RunEnd>>,
    cancel_requested_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    paused_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    admitted_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stopped: Option<Stopped>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rollout: Option<RolloutProgress>,
    /// Absent in the first round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    round: Option<u32>,
    #[serde(default, skip_serializing_if = "StateTimes::is_empty")]
    states: Cow<'a, StateTimes>,
    #[serde(default, skip_serializing_if = "Life::is_empty")]
    life: Cow<'a, Life>,
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
            job_version: made.job_version,
            state: live.state(),
            definition: Arc::clone(&made.definition),
            resolved: Arc::clone(&made.resolved),
            params: Cow::Borrowed(&made.params),
            retry_of: made.retry_of.clone(),
            no_cache: made.no_cache,
            by: Cow::Borrowed(&made.by),
            idempotency_key: made.idempotency_key.as_deref().map(Cow::Borrowed),
            request_hash: made.request_hash.as_deref().map(Cow::Borrowed),
            created_at: made.created_at,
            started_at: live.started_at,
            finished_at: live.finished_at(),
            end: live.end().map(Cow::Borrowed),
            cancel_requested_at: live.cancel_requested_at,
            paused_at: live.paused_at,
            admitted_at: live.admitted_at,
            stopped: live.stopped,
            rollout: live.rollout,
            round: (live.round > 1).then_some(live.round),
            states: Cow::Borrowed(&live.states),
            life: Cow::Borrowed(&live.life),
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
            stopped: flat.stopped,
            rollout: flat.rollout,
            round: flat.round.unwrap_or(1),
            states: flat.states.into_owned(),
            life: flat.life.into_owned(),
            owner: flat.owner,
            epoch: flat.epoch,
        };
        let made = RunMade {
            id: flat.id,
            cluster: flat.cluster,
            job: flat.job.map(Cow::into_owned),
            job_version: flat.job_version,
            definition: flat.definition,
            resolved: flat.resolved,
            params: flat.params.into_owned(),
            retry_of: flat.retry_of,
            no_cache: flat.no_cache,
            by: flat.by.into_owned(),
            idempotency_key: flat.idempotency_key.map(Cow::into_owned),
            request_hash: flat.request_hash.map(Cow::into_owned),
            created_at: flat.created_at,
        };
        Ok(Self { made: Arc::new(made), live })
    }
}
