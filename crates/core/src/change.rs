//! Owns `Change`: every alteration of state is a value of this type, with the guard that it relies on.
//!
//! A change is serialisable and applying it is deterministic: ids, times and dice are inside it.

use std::sync::Arc;

use jiff::Timestamp;
use serde::ser::Error as _;
use serde::{Deserialize, Serialize, Serializer};

use crate::backend::params_bytes;
use crate::cluster::{ClusterEdit, ClusterRecord};
use crate::delivery::{Delivery, DeliveryState};
use crate::execution::{Decision, Execution, Lease, Outcome, Status};
use crate::ids::{
    BackfillId, ClusterId, DeliveryId, ExecutionId, LeaseToken, NodeId, RunId, ServerId, SessionId,
};
use crate::job::{Backfill, BackfillCancel, BackfillStep, JobKey, JobVersion, NotStarted};
use crate::node::{NodeStatus, Registration};
use crate::portion::json_bytes;
use crate::run::{Checked, Ending, Queued, RolloutProgress, RunEnd, RunRecord, RunState, Stopped};
use crate::schedule::Skipped;
use crate::spec::ActionKind;
use crate::work::Parent;

/// One alteration of state. The variants are in the order in which a batch applies its kinds: an earlier kind creates
/// the state that a later kind relies on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Change {
    /// Guard: neither the id nor the name is in use, and there are fewer than `limits::CLUSTERS`.
    ClusterCreated { cluster: ClusterRecord, by: String, at: Timestamp },
    /// A new version of a cluster, whole: its settings or its standing tasks. Guard: the stored version is the one before,
    /// and no other cluster has the name.
    ClusterChanged { cluster: ClusterRecord, edit: ClusterEdit, by: String, at: Timestamp },
    /// Deletes a cluster with everything in it. From then on nothing can be added to it; servers remove the rest of its
    /// rows in portions. Guard: it exists, and is not `default`.
    ClusterDeleted { cluster: ClusterId, name: String, by: String, at: Timestamp },
    /// A new session of a node. Guard: the stored node matches [`Former`](crate::node::Former), no newer registration was
    /// applied before, the session was not deleted, and every standing task of the node was decided at an earlier time.
    NodeRegistered { registration: Registration },
    /// Guard: the session is the current one and the status is `from`; if silence is the reason, the node is still silent.
    NodeMoved {
        node: NodeId,
        session: SessionId,
        from: NodeStatus,
        to: NodeStatus,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        silent_since: Option<Timestamp>,
        at: Timestamp,
    },
    /// A person drained the node, or ended its drain. Guard: the node exists.
    NodeDrainSet { node: NodeId, draining: bool, by: String, at: Timestamp },
    /// The problems on the host that its agent reports. The list replaces the former one. Guard: the session is the
    /// current one.
    NodeProblemsSet { node: NodeId, session: SessionId, problems: Vec<String>, at: Timestamp },
    /// Deletes a node and its holds for exclusive runs; a tombstone stays. Guard: the session is the current one; if
    /// silence is the reason, the node is still silent.
    NodeDeleted {
        node: NodeId,
        session: SessionId,
        by: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        silent_since: Option<Timestamp>,
        at: Timestamp,
    },
    /// The first or the next version of a stored job, whole. Guard: the cluster exists, and the stored version is the one
    /// before, also of a job that was deleted. If the job has triggers, the change has the last event that the check of
    /// other jobs' triggers relied on: no job with triggers was applied after it.
    JobApplied {
        job: JobVersion,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        triggers_seen: Option<u64>,
    },
    /// Pauses or resumes the schedules of a job. Guard: the job exists, and is not in that condition already.
    JobPauseSet { job: JobKey, paused: bool, by: String, at: Timestamp },
    /// Deletes a job; its versions and its runs stay. Guard: the job exists.
    JobDeleted { job: JobKey, by: String, at: Timestamp },
    /// All times of the job's schedules up to `until` are decided: the runs that they start exist. Guard: the version is
    /// the current one, everything up to `from` was decided before, and times are skipped because the job is paused if and
    /// only if it is.
    JobDecided {
        job: JobKey,
        version: u64,
        from: Timestamp,
        until: Timestamp,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        skipped: Vec<Skipped>,
        /// The times whose run was refused.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        refused: Vec<NotStarted>,
        at: Timestamp,
    },
    /// A backfill of a job begins. Guard: the job exists, and the id is not in use.
    BackfillCreated { backfill: Backfill },
    /// Progress of a backfill. Guard: the backfill is open, at the position that the step relied on, and the runs whose ends
    /// it records are open.
    BackfillMoved { job: JobKey, backfill: BackfillId, step: BackfillStep, at: Timestamp },
    /// Nothing more of the backfill starts; its open runs are cancelled. Guard: it is open, and was not cancelled before.
    BackfillCancelled {
        job: JobKey,
        backfill: BackfillId,
        #[serde(flatten)]
        cancel: BackfillCancel,
    },
    /// Guard: neither the id nor the idempotency key (within the cluster) is in use, and fewer than `max_pending` runs
    /// of the cluster wait, and fewer than `max_open` are open. If a schedule starts it: see [`FiringGuard`].
    RunCreated {
        run: RunRecord,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_pending: Option<u32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_open: Option<u32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        firing: Option<FiringGuard>,
    },
    /// A new owner. Guard: the epoch is `epoch - 1` and the run has not ended.
    RunTaken { run: RunId, owner: ServerId, epoch: u64, at: Timestamp },
    /// Guard: the run has not ended, and its cancellation was not requested before.
    RunCancelRequested { run: RunId, by: String, at: Timestamp },
    /// Pauses or resumes a run. Guard: the run has not ended, and is not in that condition already.
    RunPauseSet { run: RunId, paused: bool, by: String, at: Timestamp },
    /// Admits a waiting run; an exclusive run then holds its nodes. Guard: the run's epoch, the run waits and is neither
    /// paused nor cancelled, fewer than `limit` runs of its cluster are active, and no other run holds or uses one of
    /// `nodes`.
    RunAdmitted {
        run: RunId,
        epoch: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<u32>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        nodes: Vec<NodeId>,
        at: Timestamp,
    },
    /// Guard: the run's epoch. Some may be created leased (a fitting node was waiting) or skipped; leased ones need room
    /// in their limits.
    ExecutionsAdded {
        run: RunId,
        epoch: u64,
        executions: Vec<Execution>,
        /// How far the roll-out is, if it is further than recorded before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rollout: Option<RolloutProgress>,
        /// The version of the cluster whose standing tasks these are. Guard: it is the current one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<u64>,
        /// The end that the decision relied on, before it was committed. Guard: an earlier change of the same commit ended
        /// that execution in this way, and nothing else of the commit follows it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<EndOf>,
        /// The sessions of the nodes that the standing tasks were decided for, one for each execution; empty for other
        /// work. Guard: they are the current ones.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        sessions: Vec<SessionId>,
        at: Timestamp,
    },
    /// Guard: the execution is pending, and each of its limits has room.
    ExecutionLeased {
        #[serde(rename = "run")]
        of: Parent,
        execution: ExecutionId,
        lease: Lease,
    },
    /// Guard: the token.
    ExecutionStarted {
        #[serde(rename = "run")]
        of: Parent,
        execution: ExecutionId,
        token: LeaseToken,
        /// By the agent's clock: for display.
        at: Timestamp,
        /// By the servers' clock.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        received_at: Option<Timestamp>,
    },
    /// Guard: the token.
    ExecutionFinished {
        #[serde(rename = "run")]
        of: Parent,
        execution: ExecutionId,
        token: LeaseToken,
        outcome: Outcome,
    },
    /// Guard: the token; if the node's silence is the reason, the node is still silent.
    ExecutionLost {
        #[serde(rename = "run")]
        of: Parent,
        execution: ExecutionId,
        token: LeaseToken,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        silence: Option<Silence>,
        reason: String,
        at: Timestamp,
    },
    /// A person approved or rejected a step. Guard: the execution is pending.
    ApprovalDecided {
        run: RunId,
        execution: ExecutionId,
        #[serde(flatten)]
        decision: Decision,
        at: Timestamp,
    },
    /// Cancels a pending execution at once, and asks a leased or running one to stop. Guard: the run's epoch.
    ExecutionCancelRequested { run: RunId, execution: ExecutionId, epoch: u64, reason: String, at: Timestamp },
    /// Fails a pending execution that will never be sent. Guard: the run's epoch.
    ExecutionGivenUp { run: RunId, execution: ExecutionId, epoch: u64, error: String, at: Timestamp },
    /// Skips a pending execution that is not needed any more because something else failed. Guard: the run's epoch.
    ExecutionSkipped { run: RunId, execution: ExecutionId, epoch: u64, reason: String, at: Timestamp },
    /// An instance failed for good: it gets no further attempt. `execution` is the last one that counts: not a retry
    /// that was withdrawn. Guard: the run's epoch, and the execution ended without success and was not marked before.
    InstanceFailed {
        run: RunId,
        epoch: u64,
        execution: ExecutionId,
        step: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<NodeId>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        item: Option<u32>,
        /// Why no further attempt follows.
        reason: String,
        /// How far the roll-out is, if it is further than recorded before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rollout: Option<RolloutProgress>,
        at: Timestamp,
    },
    /// The constraints of a run were checked. Guard: the run's epoch, and the run has not ended.
    RunChecked { run: RunId, epoch: u64, results: Vec<Checked>, at: Timestamp },
    /// An action of a run was executed, or failed. Guard: the run's epoch, and the run has not ended.
    RunActed {
        run: RunId,
        epoch: u64,
        action: ActionKind,
        /// The job or the host that it concerned.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
        /// Set if the run waits from now on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        queued: Option<Queued>,
        /// Set if the run ends because of it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        end: Option<Ending>,
        at: Timestamp,
    },
    /// A run does not wait any longer because of its constraints: it needs admission, and is checked again. Guard: the
    /// run's epoch, and the run waits for that.
    RunWoken { run: RunId, epoch: u64, at: Timestamp },
    /// Guard: the run's epoch, and `path` is allowed from the run's state. With `room`, fewer than that many other runs of
    /// the same job and cluster are starting, running or terminating. `stop` is set when the rest of the run is
    /// ended, also with an empty path if the run was terminating already, and `end` with a terminal state.
    RunMoved {
        run: RunId,
        epoch: u64,
        path: Vec<RunState>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        room: Option<u32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stop: Option<Stopped>,
        end: Option<RunEnd>,
        at: Timestamp,
    },
    /// Queues a message about a run. Guard: the run's epoch, and the id is not in use.
    DeliveryQueued { delivery: Delivery, epoch: u64 },
    /// A server sends a message now. If it reports nothing, the message is due again at `until`. Guard: the message is
    /// pending and due, and `attempt` is the next one.
    DeliveryTaken { run: RunId, delivery: DeliveryId, attempt: u32, until: Timestamp, at: Timestamp },
    /// The result of a try. Guard: the message is pending, and `attempt` is the current one. `state` is what follows.
    DeliveryTried {
        run: RunId,
        delivery: DeliveryId,
        attempt: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<u16>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
        state: DeliveryState,
        at: Timestamp,
    },
    /// A person sends a message again. Guard: it is not pending.
    DeliveryRequested { run: RunId, delivery: DeliveryId, by: String, at: Timestamp },
    /// A trigger did not start its job: the job cannot run, or too many runs have started each other. `run` is the run that
    /// would exist. Guard: the job exists.
    JobNotTriggered { job: JobKey, run: RunId, by: String, error: String, at: Timestamp },
    /// All events up to `until` have started the jobs that they start: a server that starts continues from there. It is
    /// always applied.
    TriggersFollowed { until: u64, at: Timestamp },
    /// A kind that a newer program wrote and this one does not know: it keeps its number, is shown, and has no effect. It
    /// is never written: stores refuse it, and so does serde. Only what is left of the event of a deleted cluster, which
    /// has the name [`Change::REMOVED`], is sent to copies.
    #[serde(rename = "removed")]
    Unknown {
        #[serde(default = "removed", serialize_with = "only_removed")]
        name: String,
        #[serde(skip)]
        run: Option<RunId>,
        at: Timestamp,
    },
}

fn removed() -> String {
    Change::REMOVED.to_owned()
}

fn only_removed<S: Serializer>(name: &str, serializer: S) -> Result<S::Ok, S::Error> {
    match name {
        Change::REMOVED => serializer.serialize_str(name),
        _ => Err(S::Error::custom("a change of an unknown kind cannot be written")),
    }
}

/// The time when a node was last heard. A decision because of silence is committed some time after it was made: the
/// guard refuses it if the node was heard again since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Silence {
    pub node: NodeId,
    pub since: Timestamp,
}

/// What the decision of a schedule to start a run relied on. Guard: the job exists and is not paused, its version is this
/// one, and everything up to `from` was decided, but nothing after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FiringGuard {
    pub version: u64,
    pub from: Timestamp,
    /// Set if a backfill starts the run. Guard, instead of the one above: the backfill is open and not cancelled, it is at
    /// position `from`, and has room. Its position moves beyond the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backfill: Option<BackfillTime>,
}

/// A time for which a backfill starts a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackfillTime {
    pub id: BackfillId,
    pub at: Timestamp,
}

/// Why a change was not applied. The store wrote nothing for it, and no event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    #[error("it does not exist")]
    NotFound,
    #[error("run `{0}` exists")]
    RunExists(RunId),
    /// The first run of an idempotency key.
    #[error("the idempotency key belongs to run `{0}`")]
    KeyInUse(RunId),
    #[error("another server owns the run now")]
    StaleEpoch,
    #[error("the lease is no longer the current one")]
    StaleLease,
    #[error("the session is no longer the current one")]
    StaleSession,
    #[error("the node was deleted while it had this session")]
    Deleted,
    #[error("its state does not allow that")]
    WrongState,
    #[error("a run that is {from} cannot become {to}")]
    NoSuchMove { from: RunState, to: RunState },
    /// See [`level`](crate::level).
    #[error("not every live server supports this kind of change; upgrade all servers first")]
    NotKnownToAll,
    #[error("the node has sent a heartbeat in the meantime")]
    Heard,
    #[error("{pending} runs are waiting; this is the maximum")]
    QueueFull { pending: u32 },
    #[error("{open} runs are open; this is the maximum")]
    TooManyOpen { open: u32 },
    #[error("{running} runs are active; this is the maximum")]
    NoRoom { running: u32 },
    /// Other runs of the same job are active.
    #[error("{active} runs of the job are active; this is the maximum")]
    JobBusy { active: u32 },
    #[error("a node is not free: run `{0}` uses or holds it")]
    NodeHeld(RunId),
    /// The key of the limit that has no room.
    #[error("limit `{0}` has no room")]
    LimitReached(String),
    #[error("a cluster is named `{0}`")]
    NameInUse(String),
    /// The cluster or the job has another version than the one that the change relied on, or a job with triggers was
    /// applied after the event that it relied on.
    #[error("it was changed at the same time")]
    StaleVersion,
    /// Until when the schedules of a job are decided; the change relied on another time.
    #[error("the schedules of the job were decided until {0} at the same time")]
    DecidedBefore(Timestamp),
    #[error("there are {0} clusters; this is the maximum")]
    TooManyClusters(usize),
    /// When the last standing task was decided for a node that registers at an earlier time.
    #[error("a standing task was decided for the node at {0}, which is not earlier")]
    DecidedLater(Timestamp),
    /// The execution that the change follows did not end in this commit, or not in this way.
    #[error("what it follows has not just ended as expected")]
    NotAfter,
}

/// How an execution ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndOf {
    pub execution: ExecutionId,
    pub status: Status,
}

/// The result of one change of a batch.
pub type Applied = Result<(), Refusal>;

/// A committed change, with its number in the order of all changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Gapless, from 1, in the order of commits.
    pub seq: u64,
    /// The server that committed it.
    pub server: ServerId,
    #[serde(default, skip_serializing_if = "About::is_empty")]
    pub about: About,
    #[serde(flatten)]
    pub change: Change,
}

impl Event {
    /// Returns the node that the event concerns, if it is a single one.
    pub fn node(&self) -> Option<NodeId> {
        self.about.node.or_else(|| self.change.node())
    }
}

/// The subject of an event, as the store knows it when it applies the change. It is stored with the event, so that
/// readers can filter and show events without reading anything else. Events of older programs have none of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterId>,
    /// The name of the run's job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<Arc<str>>,
    /// The node, or the node of the execution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// The position of the execution in its run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// The status of the execution before the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was: Option<Status>,
}

impl About {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Declares the kinds of changes in the order in which a batch applies them: name, and the level of the programs that
/// know the kind.
macro_rules! kinds {
    ($($kind:ident $name:literal $level:expr,)+) => {
        enum Kind { $($kind,)+ Unknown }

        impl Change {
            /// Every kind that this program reads and writes, in the order of [`Change::phase`].
            pub const KINDS: [&'static str; Kind::Unknown as usize] = [$($name),+];

            /// The position in a batch of what precedes new executions.
            pub(crate) const BEFORE_EXECUTIONS: u8 = Kind::RunAdmitted as u8;
            /// The position in a batch of what follows the ends of executions.
            pub(crate) const AFTER_ENDS: u8 = Kind::InstanceFailed as u8;

            /// Returns the position of its kind in a batch: kinds are applied in this order, changes of one kind as given.
            pub fn phase(&self) -> u8 {
                let kind = match self {
                    $(Change::$kind { .. } => Kind::$kind,)+
                    Change::Unknown { .. } => Kind::Unknown,
                };
                kind as u8
            }

            /// Returns the level of programs that know the kind; see [`level`](crate::level).
            pub fn level(&self) -> u32 {
                match self {
                    $(Change::$kind { .. } => $level,)+
                    Change::Unknown { .. } => u32::MAX,
                }
            }
        }
    };
}

kinds! {
    ClusterCreated "cluster_created" crate::level::CLUSTERS,
    ClusterChanged "cluster_changed" crate::level::CLUSTERS,
    ClusterDeleted "cluster_deleted" crate::level::CLUSTERS,
    NodeRegistered "node_registered" 1,
    NodeMoved "node_moved" 1,
    NodeDrainSet "node_drain_set" 1,
    NodeProblemsSet "node_problems_set" crate::level::NODES,
    NodeDeleted "node_deleted" crate::level::NODES,
    JobApplied "job_applied" crate::level::JOBS,
    JobPauseSet "job_pause_set" crate::level::JOBS,
    JobDeleted "job_deleted" crate::level::JOBS,
    JobDecided "job_decided" crate::level::JOBS,
    BackfillCreated "backfill_created" crate::level::JOBS,
    BackfillMoved "backfill_moved" crate::level::JOBS,
    BackfillCancelled "backfill_cancelled" crate::level::JOBS,
    RunCreated "run_created" 1,
    RunTaken "run_taken" 1,
    RunCancelRequested "run_cancel_requested" 1,
    RunPauseSet "run_pause_set" 2,
    RunAdmitted "run_admitted" 2,
    ExecutionsAdded "executions_added" 1,
    ExecutionLeased "execution_leased" 1,
    ExecutionStarted "execution_started" 1,
    ExecutionFinished "execution_finished" 1,
    ExecutionLost "execution_lost" 1,
    ApprovalDecided "approval_decided" crate::level::APPROVALS,
    ExecutionCancelRequested "execution_cancel_requested" 1,
    ExecutionGivenUp "execution_given_up" 1,
    ExecutionSkipped "execution_skipped" 1,
    InstanceFailed "instance_failed" crate::level::FINAL,
    RunChecked "run_checked" crate::level::LIFE,
    RunActed "run_acted" crate::level::LIFE,
    RunWoken "run_woken" crate::level::LIFE,
    RunMoved "run_moved" 1,
    DeliveryQueued "delivery_queued" crate::level::DELIVERIES,
    DeliveryTaken "delivery_taken" crate::level::DELIVERIES,
    DeliveryTried "delivery_tried" crate::level::DELIVERIES,
    DeliveryRequested "delivery_requested" crate::level::DELIVERIES,
    JobNotTriggered "job_not_triggered" crate::level::TRIGGERS,
    TriggersFollowed "triggers_followed" crate::level::TRIGGERS,
}

/// The subject of a change. A kind that only a newer program knows may contain a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject<'a> {
    Cluster(ClusterId),
    Node(NodeId),
    Job(&'a JobKey),
    Run(&'a RunId),
    Execution { run: &'a RunId, id: ExecutionId },
    Unknown(Option<&'a RunId>),
}

/// What a change of an execution has as JSON beside its texts and values, and what each added execution has: about as
/// much.
const FIXED_BYTES: usize = 400;

impl Change {
    /// The kind of an event that was about a cluster which is deleted. Nothing is left of it but its number.
    pub const REMOVED: &'static str = "removed";

    /// Returns about how many bytes the change has as JSON, without control characters in texts. The kinds that a busy
    /// server commits thousands of times per second are not written for it.
    pub fn bytes(&self) -> usize {
        match self {
            Change::ExecutionsAdded { executions, .. } => {
                let bytes = |execution: &Execution| FIXED_BYTES + execution.values_bytes();
                FIXED_BYTES + executions.iter().map(bytes).sum::<usize>()
            }
            Change::ExecutionLeased { .. } | Change::ExecutionStarted { .. } => FIXED_BYTES,
            Change::ExecutionFinished { outcome, .. } => {
                FIXED_BYTES + outcome.error.as_ref().map_or(0, String::len) + params_bytes(&outcome.outputs)
            }
            Change::ExecutionLost { reason, .. }
            | Change::ExecutionCancelRequested { reason, .. }
            | Change::ExecutionSkipped { reason, .. }
            | Change::InstanceFailed { reason, .. } => FIXED_BYTES + reason.len(),
            rare => json_bytes(rare),
        }
    }

    pub fn kind(&self) -> &str {
        match self {
            Change::Unknown { name, .. } => name,
            known => Self::KINDS[usize::from(known.phase())],
        }
    }

    pub fn subject(&self) -> Subject<'_> {
        match self {
            Change::ClusterCreated { cluster, .. } | Change::ClusterChanged { cluster, .. } => {
                Subject::Cluster(cluster.id)
            }
            Change::ClusterDeleted { cluster, .. } => Subject::Cluster(*cluster),
            Change::NodeRegistered { registration } => Subject::Node(registration.node),
            Change::NodeMoved { node, .. }
            | Change::NodeDrainSet { node, .. }
            | Change::NodeProblemsSet { node, .. }
            | Change::NodeDeleted { node, .. } => Subject::Node(*node),
            Change::JobApplied { job, .. } => Subject::Job(&job.key),
            Change::JobPauseSet { job, .. }
            | Change::JobDeleted { job, .. }
            | Change::JobDecided { job, .. }
            | Change::BackfillMoved { job, .. }
            | Change::BackfillCancelled { job, .. }
            | Change::JobNotTriggered { job, .. } => Subject::Job(job),
            Change::BackfillCreated { backfill } => Subject::Job(&backfill.job),
            Change::TriggersFollowed { .. } => Subject::Unknown(None),
            Change::RunCreated { run, .. } => Subject::Run(&run.id),
            Change::RunTaken { run, .. }
            | Change::RunCancelRequested { run, .. }
            | Change::RunPauseSet { run, .. }
            | Change::RunAdmitted { run, .. }
            | Change::ExecutionsAdded { run, .. }
            | Change::RunChecked { run, .. }
            | Change::RunActed { run, .. }
            | Change::RunWoken { run, .. }
            | Change::RunMoved { run, .. }
            | Change::DeliveryTaken { run, .. }
            | Change::DeliveryTried { run, .. }
            | Change::DeliveryRequested { run, .. } => Subject::Run(run),
            Change::DeliveryQueued { delivery, .. } => Subject::Run(&delivery.run),
            Change::ExecutionLeased { of: Parent::Run(run), execution, .. }
            | Change::ExecutionStarted { of: Parent::Run(run), execution, .. }
            | Change::ExecutionFinished { of: Parent::Run(run), execution, .. }
            | Change::ExecutionLost { of: Parent::Run(run), execution, .. }
            | Change::ApprovalDecided { run, execution, .. }
            | Change::ExecutionCancelRequested { run, execution, .. }
            | Change::ExecutionGivenUp { run, execution, .. }
            | Change::ExecutionSkipped { run, execution, .. }
            | Change::InstanceFailed { run, execution, .. } => Subject::Execution { run, id: *execution },
            Change::Unknown { run, .. } => Subject::Unknown(run.as_ref()),
        }
    }

    pub fn run(&self) -> Option<&RunId> {
        match self.subject() {
            Subject::Node(_) | Subject::Cluster(_) | Subject::Job(_) => None,
            Subject::Run(run) | Subject::Execution { run, .. } => Some(run),
            Subject::Unknown(run) => run,
        }
    }

    /// Returns the node that the change concerns, if the change names it.
    pub fn node(&self) -> Option<NodeId> {
        match (self.subject(), self) {
            (Subject::Node(node), _) => Some(node),
            (_, Change::ExecutionLeased { lease, .. }) => Some(lease.node),
            (_, Change::InstanceFailed { node, .. }) => *node,
            _ => None,
        }
    }

    /// Returns the execution that the change concerns, if it is a single one.
    pub fn execution(&self) -> Option<ExecutionId> {
        match self.subject() {
            Subject::Execution { id, .. } => Some(id),
            _ => None,
        }
    }

    /// Returns who requested the change, if a person or program did.
    pub fn by(&self) -> Option<&str> {
        match self {
            Change::ClusterCreated { by, .. }
            | Change::ClusterChanged { by, .. }
            | Change::ClusterDeleted { by, .. }
            | Change::NodeDrainSet { by, .. }
            | Change::NodeDeleted { by, .. }
            | Change::JobPauseSet { by, .. }
            | Change::JobDeleted { by, .. }
            | Change::RunCancelRequested { by, .. }
            | Change::RunPauseSet { by, .. }
            | Change::DeliveryRequested { by, .. } => Some(by),
            Change::JobApplied { job, .. } => Some(&job.by),
            Change::BackfillCreated { backfill } => Some(&backfill.by),
            Change::BackfillCancelled { cancel, .. } => Some(&cancel.by),
            Change::RunCreated { run, .. } => Some(&run.by),
            Change::ApprovalDecided { decision, .. } => Some(&decision.by),
            _ => None,
        }
    }

    /// Returns all lease tokens in the change.
    pub fn tokens_mut(&mut self) -> impl Iterator<Item = &mut LeaseToken> {
        let (executions, token): (&mut [Execution], _) = match self {
            Change::ExecutionsAdded { executions, .. } => (executions, None),
            Change::ExecutionLeased { lease, .. } => (&mut [], Some(&mut lease.token)),
            Change::ExecutionStarted { token, .. }
            | Change::ExecutionFinished { token, .. }
            | Change::ExecutionLost { token, .. } => (&mut [], Some(token)),
            Change::ClusterCreated { .. }
            | Change::ClusterChanged { .. }
            | Change::ClusterDeleted { .. }
            | Change::NodeRegistered { .. }
            | Change::NodeMoved { .. }
            | Change::NodeDrainSet { .. }
            | Change::NodeProblemsSet { .. }
            | Change::NodeDeleted { .. }
            | Change::JobApplied { .. }
            | Change::JobPauseSet { .. }
            | Change::JobDeleted { .. }
            | Change::JobDecided { .. }
            | Change::BackfillCreated { .. }
            | Change::BackfillMoved { .. }
            | Change::BackfillCancelled { .. }
            | Change::RunCreated { .. }
            | Change::RunTaken { .. }
            | Change::RunCancelRequested { .. }
            | Change::RunPauseSet { .. }
            | Change::RunAdmitted { .. }
            | Change::ApprovalDecided { .. }
            | Change::ExecutionCancelRequested { .. }
            | Change::ExecutionGivenUp { .. }
            | Change::ExecutionSkipped { .. }
            | Change::InstanceFailed { .. }
            | Change::RunChecked { .. }
            | Change::RunActed { .. }
            | Change::RunWoken { .. }
            | Change::RunMoved { .. }
            | Change::DeliveryQueued { .. }
            | Change::DeliveryTaken { .. }
            | Change::DeliveryTried { .. }
            | Change::DeliveryRequested { .. }
            | Change::JobNotTriggered { .. }
            | Change::TriggersFollowed { .. }
            | Change::Unknown { .. } => (&mut [], None),
        };
        let leases = executions.iter_mut().filter_map(|execution| execution.state.lease_mut());
        leases.map(|lease| &mut lease.token).chain(token)
    }

    /// Returns the change without the guards that check data outside of events (heartbeats) or counts: for applying a
    /// change again that was applied before. A copy may get a later heartbeat before it gets the event of a silence.
    #[must_use]
    pub fn without_volatile_guards(&self) -> Change {
        let mut change = self.clone();
        match &mut change {
            Change::ExecutionLost { silence, .. } => *silence = None,
            Change::NodeMoved { silent_since, .. } | Change::NodeDeleted { silent_since, .. } => {
                *silent_since = None;
            }
            Change::RunCreated { max_pending, max_open, .. } => {
                (*max_pending, *max_open) = (None, None);
            }
            Change::RunAdmitted { limit, .. } => *limit = None,
            Change::RunMoved { room, .. } => *room = None,
            Change::JobApplied { triggers_seen, .. } => *triggers_seen = None,
            _ => {}
        }
        change
    }

    /// Returns when the change happened, by the servers' clock.
    pub fn at(&self) -> Timestamp {
        match self {
            Change::NodeRegistered { registration } => registration.at,
            Change::JobApplied { job, .. } => job.at,
            Change::BackfillCreated { backfill } => backfill.created_at,
            Change::BackfillCancelled { cancel, .. } => cancel.at,
            Change::RunCreated { run, .. } => run.created_at,
            Change::ExecutionLeased { lease, .. } => lease.granted_at,
            Change::ExecutionFinished { outcome, .. } => outcome.ended_at(),
            Change::ExecutionStarted { at, received_at, .. } => received_at.unwrap_or(*at),
            Change::ClusterCreated { at, .. }
            | Change::ClusterChanged { at, .. }
            | Change::ClusterDeleted { at, .. }
            | Change::NodeMoved { at, .. }
            | Change::NodeDrainSet { at, .. }
            | Change::NodeProblemsSet { at, .. }
            | Change::NodeDeleted { at, .. }
            | Change::JobPauseSet { at, .. }
            | Change::JobDeleted { at, .. }
            | Change::JobDecided { at, .. }
            | Change::BackfillMoved { at, .. }
            | Change::RunTaken { at, .. }
            | Change::RunCancelRequested { at, .. }
            | Change::RunPauseSet { at, .. }
            | Change::RunAdmitted { at, .. }
            | Change::ExecutionsAdded { at, .. }
            | Change::ExecutionLost { at, .. }
            | Change::ApprovalDecided { at, .. }
            | Change::ExecutionCancelRequested { at, .. }
            | Change::ExecutionGivenUp { at, .. }
            | Change::ExecutionSkipped { at, .. }
            | Change::InstanceFailed { at, .. }
            | Change::RunChecked { at, .. }
            | Change::RunActed { at, .. }
            | Change::RunWoken { at, .. }
            | Change::RunMoved { at, .. }
            | Change::DeliveryTaken { at, .. }
            | Change::DeliveryTried { at, .. }
            | Change::DeliveryRequested { at, .. }
            | Change::JobNotTriggered { at, .. }
            | Change::TriggersFollowed { at, .. }
            | Change::Unknown { at, .. } => *at,
            Change::DeliveryQueued { delivery, .. } => delivery.created_at,
        }
    }
}
