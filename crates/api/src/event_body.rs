//! Owns the typed data of each kind of event: `kind`, and the `data` that belongs to it.
//!
//! A client folds these into the view of a run: every fact in the view that no earlier event has must be here.

use downbeat_core::Span;
use downbeat_core::backend::Params;
use downbeat_core::change::Change;
use downbeat_core::cluster::{ClusterEdit, ClusterRecord};
use downbeat_core::execution::{Decision, Execution as Record, Outcome, Status};
use downbeat_core::ids::{BackfillId, DeliveryId, ExecutionId, NodeId, RunId, ServerId, SessionId, TaskId};
use downbeat_core::job::NotStarted;
use downbeat_core::node::NodeStatus;
use downbeat_core::run::{Checked, Found, RunState, RunStatus};
use downbeat_core::schedule::Skipped;
use downbeat_core::standing::RerunScope;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::execution::Facts;
use crate::schema;

/// The kind of an event, and its data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", content = "data", rename_all = "snake_case")]
pub enum EventBody {
    ClusterCreated {
        name: String,
    },
    /// The cluster's settings or its standing tasks were edited.
    ClusterChanged {
        name: String,
        version: u64,
        /// `settings`, `task_added`, `task_updated`, `task_deleted`, `tasks_reordered`, `tasks_applied`, `task_rerun` or
        /// `node_reset`.
        edit: String,
        /// The standing task that was edited.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<Uuid>)]
        task_id: Option<TaskId>,
        /// Its name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task: Option<String>,
        /// Which results do not count any more, if a task is done again: `all`, `failed` or `node`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        scope: Option<String>,
        /// The node that starts over, or does a task again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<Uuid>)]
        node: Option<NodeId>,
    },
    /// The cluster was deleted with everything in it.
    ClusterDeleted {
        name: String,
    },
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
    /// All problems of the node; they replace the earlier ones.
    NodeProblemsSet {
        problems: Vec<String>,
    },
    NodeDeleted {
        /// The session that was deleted with the node.
        #[schema(value_type = Uuid)]
        session: SessionId,
    },
    /// A stored job was created or changed.
    JobApplied {
        name: String,
        version: u64,
    },
    /// The schedules of a job were paused or resumed.
    JobPauseSet {
        name: String,
        paused: bool,
    },
    JobDeleted {
        name: String,
    },
    /// All times of the job's schedules up to `until` are decided: the runs that they start exist.
    JobDecided {
        name: String,
        until: Timestamp,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        skipped: Vec<SkippedTimes>,
        /// The times whose run was refused.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        refused: Vec<RefusedTime>,
    },
    /// A backfill of a job begins.
    BackfillCreated {
        name: String,
        #[schema(value_type = Uuid)]
        backfill: BackfillId,
        from: Timestamp,
        to: Timestamp,
        times: u32,
    },
    /// A backfill recorded ends of runs, passed a time without starting a run, or has ended.
    BackfillMoved {
        name: String,
        #[schema(value_type = Uuid)]
        backfill: BackfillId,
        /// All times before this one are decided.
        until: Timestamp,
        is_end: bool,
    },
    BackfillCancelled {
        name: String,
        #[schema(value_type = Uuid)]
        backfill: BackfillId,
    },
    /// A trigger did not start its job: the job cannot run, or too many runs have started each other.
    JobNotTriggered {
        name: String,
        /// The trigger.
        trigger: String,
        error: String,
    },
    /// All events up to `until` have started the jobs that they start.
    TriggersFollowed {
        until: u64,
    },
    RunCreated {
        job: Option<String>,
        /// The version of the stored job that it runs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        job_version: Option<u64>,
        #[schema(schema_with = schema::run_state)]
        state: RunState,
        steps: usize,
        nodes: usize,
        #[schema(value_type = Uuid)]
        owner: ServerId,
        /// Results are not read from the cache. They are still written to it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        no_cache: bool,
        /// The run that this one retries.
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
    /// The run was admitted: it may start.
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
    /// A person approved or rejected a step.
    ApprovalDecided {
        approved: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A pending execution is cancelled at once; a leased or running one is asked to stop.
    ExecutionCancelRequested {
        reason: String,
    },
    ExecutionGivenUp {
        error: String,
    },
    ExecutionSkipped {
        reason: String,
    },
    /// A step failed for good on its node or for its item: the execution was its last attempt.
    InstanceFailed {
        step: u32,
        /// Its index among the items of its task's `for_each`, from 0.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        item: Option<u32>,
        /// Why no further attempt follows.
        reason: String,
    },
    /// The constraints of a run were checked.
    RunChecked {
        constraints: Vec<CheckedConstraint>,
    },
    /// An action of a run was executed.
    RunActed {
        /// `skip`, `retry_later`, `kill_old`, `wait`, `webhook` or `trigger_job`.
        action: String,
        /// The job, or the host of the webhook.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<String>,
        /// Why it failed, if it did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
        /// Whether the run waits from now on.
        waits: bool,
        /// Until when it waits; without a time, until another run of its job has ended.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
        /// Why the run ends because of the action, if it does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ends: Option<String>,
    },
    /// A run does not wait any longer because of its constraints.
    RunWoken {},
    RunMoved {
        /// The states that the run passed through; the last one is its current state.
        #[schema(value_type = Vec<String>)]
        path: Vec<RunState>,
        #[schema(schema_with = schema::run_state)]
        state: Option<RunState>,
        #[schema(schema_with = schema::run_status)]
        status: Option<RunStatus>,
        #[serde(flatten)]
        end: Option<Ended>,
    },
    /// A message about the run waits to be sent.
    DeliveryQueued {
        #[schema(value_type = Uuid)]
        delivery: DeliveryId,
        /// `webhook`, `slack` or `email`.
        action: String,
        /// The host, or the addresses.
        destination: String,
    },
    /// A server sends a message.
    DeliveryTaken {
        #[schema(value_type = Uuid)]
        delivery: DeliveryId,
        attempt: u32,
    },
    /// The result of a try to send a message.
    DeliveryTried {
        #[schema(value_type = Uuid)]
        delivery: DeliveryId,
        attempt: u32,
        /// The HTTP status of the answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<u16>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
        /// `delivered`, `pending` if it is sent again, or `failed`.
        status: String,
    },
    /// A person sends a message again.
    DeliveryRequested {
        #[schema(value_type = Uuid)]
        delivery: DeliveryId,
    },
    /// A kind that only a newer server knows.
    #[serde(untagged)]
    Unknown(UnknownKind),
}

/// An added execution. Most are pending or leased; some are created in their final state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AddedExecution {
    #[schema(value_type = Uuid)]
    pub id: ExecutionId,
    pub step: u32,
    #[schema(value_type = Option<Uuid>)]
    pub node: Option<NodeId>,
    /// From 1 in each round.
    pub attempt: u32,
    /// The round of its run, from 1; absent in the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round: Option<u32>,
    #[schema(schema_with = schema::execution_status)]
    pub status: Status,
    /// Its index among the items of its task's `for_each`, from 0.
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

/// The outcome of an attempt that an agent reported.
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
    /// Something failed, and the rest continued.
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

/// What was found about a constraint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckedConstraint {
    /// Such as `max_concurrent_runs`.
    pub constraint: String,
    /// `passed`, `violated` or `unknown`.
    pub found: String,
    /// Why it is violated, or could not be checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl CheckedConstraint {
    fn of(Checked { constraint, found }: &Checked) -> Self {
        let (found, message) = match found {
            Found::Passed => ("passed", None),
            Found::Violated { message } => ("violated", Some(message)),
            Found::Unknown { reason, .. } => ("unknown", Some(reason)),
        };
        Self { constraint: constraint.to_string(), found: found.to_owned(), message: message.cloned() }
    }
}

/// Times of a schedule that start no run, for the same reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SkippedTimes {
    /// `paused`, `too_late` or `superseded`.
    pub reason: String,
    pub first: Timestamp,
    pub last: Timestamp,
    pub count: usize,
}

/// A time of a schedule whose run was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RefusedTime {
    pub at: Timestamp,
    pub error: String,
}

impl SkippedTimes {
    fn of(Skipped { reason, first, last, count }: &Skipped) -> Self {
        Self { reason: reason.to_string(), first: *first, last: *last, count: *count }
    }
}

impl RefusedTime {
    fn of(NotStarted { at, error }: &NotStarted) -> Self {
        Self { at: *at, error: error.clone() }
    }
}

impl EventBody {
    pub(crate) fn of(change: &Change) -> Self {
        match change {
            Change::ClusterCreated { cluster, .. } => {
                EventBody::ClusterCreated { name: cluster.name.clone() }
            }
            Change::ClusterChanged { cluster, edit, .. } => cluster_changed(cluster, edit),
            Change::ClusterDeleted { name, .. } => EventBody::ClusterDeleted { name: name.clone() },
            Change::JobApplied { job, .. } => {
                EventBody::JobApplied { name: job.key.name.to_string(), version: job.version }
            }
            Change::JobPauseSet { job, paused, .. } => {
                EventBody::JobPauseSet { name: job.name.to_string(), paused: *paused }
            }
            Change::JobDeleted { job, .. } => EventBody::JobDeleted { name: job.name.to_string() },
            Change::JobDecided { job, until, skipped, refused, .. } => EventBody::JobDecided {
                name: job.name.to_string(),
                until: *until,
                skipped: skipped.iter().map(SkippedTimes::of).collect(),
                refused: refused.iter().map(RefusedTime::of).collect(),
            },
            Change::BackfillCreated { backfill } => EventBody::BackfillCreated {
                name: backfill.job.name.to_string(),
                backfill: backfill.id,
                from: backfill.from,
                to: backfill.to,
                times: backfill.times,
            },
            Change::BackfillMoved { job, backfill, step, .. } => EventBody::BackfillMoved {
                name: job.name.to_string(),
                backfill: *backfill,
                until: step.until,
                is_end: step.is_end,
            },
            Change::BackfillCancelled { job, backfill, .. } => {
                EventBody::BackfillCancelled { name: job.name.to_string(), backfill: *backfill }
            }
            Change::JobNotTriggered { job, by, error, .. } => EventBody::JobNotTriggered {
                name: job.name.to_string(),
                trigger: by.clone(),
                error: error.clone(),
            },
            Change::TriggersFollowed { until, .. } => EventBody::TriggersFollowed { until: *until },
            Change::NodeRegistered { registration } => {
                let description = &registration.description;
                EventBody::NodeRegistered {
                    hostname: description.hostname.clone(),
                    groups: description.groups.clone(),
                    session: registration.session,
                    version: description.version.clone(),
                }
            }
            Change::NodeMoved { from, to, .. } => EventBody::NodeMoved { from: *from, to: *to },
            Change::NodeDrainSet { draining, .. } => EventBody::NodeDrainSet { draining: *draining },
            Change::NodeProblemsSet { problems, .. } => {
                EventBody::NodeProblemsSet { problems: problems.clone() }
            }
            Change::NodeDeleted { session, .. } => EventBody::NodeDeleted { session: *session },
            Change::RunCreated { run, .. } => EventBody::RunCreated {
                job: run.job.clone(),
                job_version: run.job_version,
                state: run.state(),
                steps: run.definition.steps().count(),
                nodes: run.resolved.nodes.len(),
                owner: run.live.owner,
                no_cache: run.no_cache,
                retry_of: run.retry_of.clone(),
            },
            Change::RunTaken { owner, epoch, .. } => EventBody::RunTaken { owner: *owner, epoch: *epoch },
            Change::RunCancelRequested { .. } => EventBody::RunCancelRequested {},
            Change::RunPauseSet { paused, .. } => EventBody::RunPauseSet { paused: *paused },
            Change::RunAdmitted { nodes, .. } => {
                EventBody::RunAdmitted { held: Some(nodes.len()).filter(|held| *held > 0) }
            }
            Change::ExecutionsAdded { executions, .. } => {
                EventBody::ExecutionsAdded { executions: executions.iter().map(AddedExecution::of).collect() }
            }
            Change::ExecutionLeased { .. } => EventBody::ExecutionLeased {},
            Change::ExecutionStarted { .. } => EventBody::ExecutionStarted {},
            Change::ExecutionFinished { outcome, .. } => {
                EventBody::ExecutionFinished(Reported(outcome.clone()))
            }
            Change::ExecutionLost { reason, .. } => EventBody::ExecutionLost { reason: reason.clone() },
            Change::ApprovalDecided { decision: Decision { approved, reason, by: _ }, .. } => {
                EventBody::ApprovalDecided { approved: *approved, reason: reason.clone() }
            }
            Change::ExecutionCancelRequested { reason, .. } => {
                EventBody::ExecutionCancelRequested { reason: reason.clone() }
            }
            Change::ExecutionGivenUp { error, .. } => EventBody::ExecutionGivenUp { error: error.clone() },
            Change::ExecutionSkipped { reason, .. } => EventBody::ExecutionSkipped { reason: reason.clone() },
            Change::InstanceFailed { step, item, reason, .. } => {
                EventBody::InstanceFailed { step: *step, item: *item, reason: reason.clone() }
            }
            Change::RunChecked { results, .. } => {
                EventBody::RunChecked { constraints: results.iter().map(CheckedConstraint::of).collect() }
            }
            Change::RunActed { action, target, error, queued, end, .. } => EventBody::RunActed {
                action: action.to_string(),
                target: target.clone(),
                error: error.clone(),
                waits: queued.is_some(),
                until: queued.and_then(|queued| queued.until),
                ends: end.as_ref().map(|end| end.reason.clone()),
            },
            Change::RunWoken { .. } => EventBody::RunWoken {},
            Change::RunMoved { path, end, .. } => EventBody::RunMoved {
                path: path.clone(),
                state: path.last().copied(),
                status: path.last().map(|state| state.status()),
                end: end.as_ref().map(|end| Ended { partial: end.partial, error: end.error.clone() }),
            },
            Change::DeliveryQueued { delivery, .. } => EventBody::DeliveryQueued {
                delivery: delivery.id,
                action: delivery.message.action().to_owned(),
                destination: delivery.message.destination(),
            },
            Change::DeliveryTaken { delivery, attempt, .. } => {
                EventBody::DeliveryTaken { delivery: *delivery, attempt: *attempt }
            }
            Change::DeliveryTried { delivery, attempt, code, error, state, .. } => EventBody::DeliveryTried {
                delivery: *delivery,
                attempt: *attempt,
                code: *code,
                error: error.clone(),
                status: state.status().to_string(),
            },
            Change::DeliveryRequested { delivery, .. } => {
                EventBody::DeliveryRequested { delivery: *delivery }
            }
            Change::Unknown { name, .. } => EventBody::Unknown(UnknownKind {
                kind: name.clone(),
                data: Value::Object(serde_json::Map::new()),
            }),
        }
    }

    /// Returns `kind`: one of [`Change::KINDS`], or a name that this program does not know.
    pub fn kind(&self) -> &str {
        match self {
            EventBody::ClusterCreated { .. } => "cluster_created",
            EventBody::ClusterChanged { .. } => "cluster_changed",
            EventBody::ClusterDeleted { .. } => "cluster_deleted",
            EventBody::JobApplied { .. } => "job_applied",
            EventBody::JobPauseSet { .. } => "job_pause_set",
            EventBody::JobDeleted { .. } => "job_deleted",
            EventBody::JobDecided { .. } => "job_decided",
            EventBody::BackfillCreated { .. } => "backfill_created",
            EventBody::BackfillMoved { .. } => "backfill_moved",
            EventBody::BackfillCancelled { .. } => "backfill_cancelled",
            EventBody::JobNotTriggered { .. } => "job_not_triggered",
            EventBody::TriggersFollowed { .. } => "triggers_followed",
            EventBody::NodeRegistered { .. } => "node_registered",
            EventBody::NodeMoved { .. } => "node_moved",
            EventBody::NodeDrainSet { .. } => "node_drain_set",
            EventBody::NodeProblemsSet { .. } => "node_problems_set",
            EventBody::NodeDeleted { .. } => "node_deleted",
            EventBody::RunCreated { .. } => "run_created",
            EventBody::RunTaken { .. } => "run_taken",
            EventBody::RunCancelRequested {} => "run_cancel_requested",
            EventBody::RunPauseSet { .. } => "run_pause_set",
            EventBody::RunAdmitted { .. } => "run_admitted",
            EventBody::ExecutionsAdded { .. } => "executions_added",
            EventBody::ExecutionLeased {} => "execution_leased",
            EventBody::ExecutionStarted {} => "execution_started",
            EventBody::ExecutionFinished(_) => "execution_finished",
            EventBody::ExecutionLost { .. } => "execution_lost",
            EventBody::ApprovalDecided { .. } => "approval_decided",
            EventBody::ExecutionCancelRequested { .. } => "execution_cancel_requested",
            EventBody::ExecutionGivenUp { .. } => "execution_given_up",
            EventBody::ExecutionSkipped { .. } => "execution_skipped",
            EventBody::InstanceFailed { .. } => "instance_failed",
            EventBody::RunChecked { .. } => "run_checked",
            EventBody::RunActed { .. } => "run_acted",
            EventBody::RunWoken {} => "run_woken",
            EventBody::RunMoved { .. } => "run_moved",
            EventBody::DeliveryQueued { .. } => "delivery_queued",
            EventBody::DeliveryTaken { .. } => "delivery_taken",
            EventBody::DeliveryTried { .. } => "delivery_tried",
            EventBody::DeliveryRequested { .. } => "delivery_requested",
            EventBody::Unknown(unknown) => &unknown.kind,
        }
    }
}

fn cluster_changed(cluster: &ClusterRecord, edit: &ClusterEdit) -> EventBody {
    let (word, task_id, node, scope) = match edit {
        ClusterEdit::Settings => ("settings", None, None, None),
        ClusterEdit::TaskAdded { task } => ("task_added", Some(*task), None, None),
        ClusterEdit::TaskUpdated { task } => ("task_updated", Some(*task), None, None),
        ClusterEdit::TaskDeleted { task } => ("task_deleted", Some(*task), None, None),
        ClusterEdit::TasksReordered => ("tasks_reordered", None, None, None),
        ClusterEdit::TasksApplied => ("tasks_applied", None, None, None),
        ClusterEdit::TaskRerun { task, scope } => {
            let (scope, node) = match scope {
                RerunScope::All => ("all", None),
                RerunScope::Failed => ("failed", None),
                RerunScope::Node { node } => ("node", Some(*node)),
            };
            ("task_rerun", Some(*task), node, Some(scope.to_owned()))
        }
        ClusterEdit::NodeReset { node } => ("node_reset", None, Some(*node), None),
    };
    EventBody::ClusterChanged {
        name: cluster.name.clone(),
        version: cluster.version,
        edit: word.to_owned(),
        task: task_id.and_then(|id| task_name(cluster, id)),
        task_id,
        scope,
        node,
    }
}

/// Returns the name of a task that may have been deleted.
pub(crate) fn task_name(cluster: &ClusterRecord, id: TaskId) -> Option<String> {
    let mut all = cluster.list.tasks.iter().chain(&cluster.list.deleted);
    all.find(|task| task.id == id).map(|task| task.name.clone())
}

impl AddedExecution {
    fn of(record: &Record) -> Self {
        let facts = Facts::of(&record.state);
        Self {
            id: record.id,
            step: record.step(),
            node: record.node(),
            attempt: record.attempt,
            round: (record.round > 1).then_some(record.round),
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
