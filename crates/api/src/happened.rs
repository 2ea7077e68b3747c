//! Owns what each kind of event tells programs: `kind`, and the `data` that belongs to it.
//!
//! A client folds these into the view of a run: a fact that the view shows and that no earlier event has is in here.

use downbeat_core::Span;
use downbeat_core::backend::Params;
use downbeat_core::change::Change;
use downbeat_core::execution::{Execution as Record, Outcome, Status};
use downbeat_core::ids::{ExecutionId, NodeId, RunId, ServerId, SessionId};
use downbeat_core::node::NodeStatus;
use downbeat_core::run::{RunState, RunStatus};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::execution::Facts;
use crate::schema;

/// What happened: `kind` names it, `data` depends on the kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", content = "data", rename_all = "snake_case")]
pub enum Happened {
    /// An agent registered its node, or registered it again.
    NodeRegistered {
        hostname: String,
        groups: Vec<String>,
        #[schema(value_type = Uuid)]
        session: SessionId,
        version: String,
    },
    NodeMoved {
        #[schema(schema_with = schema::node_status)]
        from: NodeStatus,
        #[schema(schema_with = schema::node_status)]
        to: NodeStatus,
    },
    NodeDrainSet {
        draining: bool,
    },
    /// All problems of the node; they replace the former ones.
    NodeProblemsSet {
        problems: Vec<String>,
    },
    NodeDeleted {
        /// The session that was deleted with it.
        #[schema(value_type = Uuid)]
        session: SessionId,
    },
    RunCreated {
        job: Option<String>,
        #[schema(schema_with = schema::run_state)]
        state: RunState,
        steps: usize,
        nodes: usize,
        #[schema(value_type = Uuid)]
        owner: ServerId,
        /// The cache is not used.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        no_cache: bool,
        /// The run that this one tries again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<String>)]
        retry_of: Option<RunId>,
    },
    /// Another server owns the run now.
    RunTaken {
        #[schema(value_type = Uuid)]
        owner: ServerId,
        epoch: u64,
    },
    RunCancelRequested {},
    RunPauseSet {
        paused: bool,
    },
    /// The run's turn has come.
    RunAdmitted {
        /// How many nodes it holds, if it is exclusive.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        held: Option<usize>,
    },
    ExecutionsAdded {
        executions: Vec<AddedExecution>,
    },
    ExecutionLeased {},
    ExecutionStarted {},
    ExecutionFinished(Reported),
    ExecutionLost {
        reason: String,
    },
    /// A pending execution is cancelled at once, any other is asked to stop.
    ExecutionCancelRequested {
        reason: String,
    },
    ExecutionGivenUp {
        error: String,
    },
    ExecutionSkipped {
        reason: String,
    },
    RunMoved {
        /// The states that the run went through; the last one is its state now.
        #[schema(value_type = Vec<String>)]
        path: Vec<RunState>,
        #[schema(schema_with = schema::run_state)]
        state: Option<RunState>,
        #[schema(schema_with = schema::run_status)]
        status: Option<RunStatus>,
        #[serde(flatten)]
        end: Option<Ended>,
    },
    /// A kind that a newer server wrote.
    #[serde(untagged)]
    Unknown(UnknownKind),
}

/// An execution that was added. Most are pending or leased; some are created in the state in which they stay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AddedExecution {
    #[schema(value_type = Uuid)]
    pub id: ExecutionId,
    pub step: u32,
    #[schema(value_type = Option<Uuid>)]
    pub node: Option<NodeId>,
    /// From 1.
    pub attempt: u32,
    #[schema(schema_with = schema::execution_status)]
    pub status: Status,
    /// Its place among the items of its task's `for_each`, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<u32>,
    /// Its result came from the cache.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cached: bool,
    /// The execution of an earlier run whose result it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Uuid>)]
    pub reused: Option<ExecutionId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Why it was skipped or cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "2.3s")]
    pub duration: Option<Span>,
    #[serde(default, skip_serializing_if = "Params::is_empty")]
    #[schema(value_type = Object)]
    pub outputs: Params,
}

/// What an agent reported of an attempt that ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Reported(pub Outcome);

impl PartialSchema for Reported {
    fn schema() -> RefOr<Schema> {
        schema::outcome().into()
    }
}

impl ToSchema for Reported {}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Ended {
    /// Something failed, and the rest went on.
    #[schema(required = false)]
    pub partial: bool,
    pub error: Option<String>,
}

/// An event of a kind that this program does not know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UnknownKind {
    pub kind: String,
    #[schema(value_type = Object)]
    pub data: Value,
}

impl Happened {
    pub(crate) fn of(change: &Change) -> Self {
        match change {
            Change::NodeRegistered { registration } => {
                let description = &registration.description;
                Happened::NodeRegistered {
                    hostname: description.hostname.clone(),
                    groups: description.groups.clone(),
                    session: registration.session,
                    version: description.version.clone(),
                }
            }
            Change::NodeMoved { from, to, .. } => Happened::NodeMoved { from: *from, to: *to },
            Change::NodeDrainSet { draining, .. } => Happened::NodeDrainSet { draining: *draining },
            Change::NodeProblemsSet { problems, .. } => {
                Happened::NodeProblemsSet { problems: problems.clone() }
            }
            Change::NodeDeleted { session, .. } => Happened::NodeDeleted { session: *session },
            Change::RunCreated { run, .. } => Happened::RunCreated {
                job: run.job.clone(),
                state: run.state(),
                steps: run.definition.steps().count(),
                nodes: run.resolved.nodes.len(),
                owner: run.live.owner,
                no_cache: run.no_cache,
                retry_of: run.retry_of.clone(),
            },
            Change::RunTaken { owner, epoch, .. } => Happened::RunTaken { owner: *owner, epoch: *epoch },
            Change::RunCancelRequested { .. } => Happened::RunCancelRequested {},
            Change::RunPauseSet { paused, .. } => Happened::RunPauseSet { paused: *paused },
            Change::RunAdmitted { nodes, .. } => {
                Happened::RunAdmitted { held: Some(nodes.len()).filter(|held| *held > 0) }
            }
            Change::ExecutionsAdded { executions, .. } => {
                Happened::ExecutionsAdded { executions: executions.iter().map(AddedExecution::of).collect() }
            }
            Change::ExecutionLeased { .. } => Happened::ExecutionLeased {},
            Change::ExecutionStarted { .. } => Happened::ExecutionStarted {},
            Change::ExecutionFinished { outcome, .. } => {
                Happened::ExecutionFinished(Reported(outcome.clone()))
            }
            Change::ExecutionLost { reason, .. } => Happened::ExecutionLost { reason: reason.clone() },
            Change::ExecutionCancelRequested { reason, .. } => {
                Happened::ExecutionCancelRequested { reason: reason.clone() }
            }
            Change::ExecutionGivenUp { error, .. } => Happened::ExecutionGivenUp { error: error.clone() },
            Change::ExecutionSkipped { reason, .. } => Happened::ExecutionSkipped { reason: reason.clone() },
            Change::RunMoved { path, end, .. } => Happened::RunMoved {
                path: path.clone(),
                state: path.last().copied(),
                status: path.last().map(|state| state.status()),
                end: end.as_ref().map(|end| Ended { partial: end.partial, error: end.error.clone() }),
            },
            Change::Unknown { name, .. } => Happened::Unknown(UnknownKind {
                kind: name.clone(),
                data: Value::Object(serde_json::Map::new()),
            }),
        }
    }

    /// Returns `kind`: one of [`Change::KINDS`], or a name that this program does not know.
    pub fn kind(&self) -> &str {
        match self {
            Happened::NodeRegistered { .. } => "node_registered",
            Happened::NodeMoved { .. } => "node_moved",
            Happened::NodeDrainSet { .. } => "node_drain_set",
            Happened::NodeProblemsSet { .. } => "node_problems_set",
            Happened::NodeDeleted { .. } => "node_deleted",
            Happened::RunCreated { .. } => "run_created",
            Happened::RunTaken { .. } => "run_taken",
            Happened::RunCancelRequested {} => "run_cancel_requested",
            Happened::RunPauseSet { .. } => "run_pause_set",
            Happened::RunAdmitted { .. } => "run_admitted",
            Happened::ExecutionsAdded { .. } => "executions_added",
            Happened::ExecutionLeased {} => "execution_leased",
            Happened::ExecutionStarted {} => "execution_started",
            Happened::ExecutionFinished(_) => "execution_finished",
            Happened::ExecutionLost { .. } => "execution_lost",
            Happened::ExecutionCancelRequested { .. } => "execution_cancel_requested",
            Happened::ExecutionGivenUp { .. } => "execution_given_up",
            Happened::ExecutionSkipped { .. } => "execution_skipped",
            Happened::RunMoved { .. } => "run_moved",
            Happened::Unknown(unknown) => &unknown.kind,
        }
    }
}

impl AddedExecution {
    fn of(record: &Record) -> Self {
        let facts = Facts::of(&record.state);
        Self {
            id: record.id,
            step: record.step(),
            node: record.node(),
            attempt: record.attempt,
            status: record.state.status(),
            item: record.item(),
            cached: record.is_cached(),
            reused: record.reused,
            duration: facts.duration(),
            exit_code: facts.exit_code,
            error: facts.error,
            reason: facts.reason,
            outputs: facts.outputs,
        }
    }
}
