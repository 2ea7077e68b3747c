//! Owns how records become columns and columns records, the same way for both SQL stores. The numbers of statuses
//! are stored: they are never given to another meaning. Times are whole microseconds since 1970.

use std::sync::Arc;

use downbeat_core::execution::{Execution, Lease, Outcome, State, Status, Verdict};
use downbeat_core::ids::{ClusterId, ExecutionId, LeaseToken, NodeId, RunId, ServerId, SessionId};
use downbeat_core::node::{NodeRecord, NodeStatus};
use downbeat_core::run::{RunEnd, RunRecord, RunState};
use jiff::Timestamp;
use uuid::Uuid;

use crate::port::{Error, Stream};
use crate::tables::{NodeLive, RunLive};

/// A closed set that is stored as a small number.
pub(crate) trait Code: Sized + Copy {
    const WHAT: &'static str;
    fn code(self) -> i16;
    fn find(code: i16) -> Option<Self>;

    fn decode(code: i16) -> Result<Self, Error> {
        Self::find(code).ok_or_else(|| Error::Corrupt(format!("{} {code} is unknown", Self::WHAT)))
    }
}

macro_rules! codes {
    ($what:literal $type:ident { $($variant:ident = $code:literal),+ $(,)? }) => {
        impl Code for $type {
            const WHAT: &'static str = $what;

            fn code(self) -> i16 {
                match self { $($type::$variant => $code),+ }
            }

            fn find(code: i16) -> Option<Self> {
                match code { $($code => Some($type::$variant),)+ _ => None }
            }
        }
    };
}

// The SQL knows three of these by number: open executions are those up to 2, held ones are 1 and 2, offline nodes
// are 2. Ended runs are 10 to 12.
codes!("execution status" Status {
    Pending = 0, Leased = 1, Running = 2, Succeeded = 3, Failed = 4, Skipped = 5, Cancelled = 6, Lost = 7,
});
codes!("run state" RunState {
    PreRun = 0, Pending = 1, ConditionPending = 2, ConditionRunning = 3, ActionPending = 4, ActionRunning = 5,
    Starting = 6, Running = 7, Terminating = 8, Retrying = 9, Completed = 10, Failed = 11, Cancelled = 12,
    Orphaned = 13,
});
codes!("node status" NodeStatus { Online = 0, Stale = 1, Offline = 2 });
codes!("verdict" Verdict { Succeeded = 0, Failed = 1, Cancelled = 2 });
codes!("stream" Stream { Stdout = 0, Stderr = 1 });

pub(crate) fn time(micros: i64) -> Result<Timestamp, Error> {
    Timestamp::from_microsecond(micros).map_err(|_| Error::Corrupt(format!("{micros} µs is no time")))
}

pub(crate) fn micros(at: Option<Timestamp>) -> Option<i64> {
    at.map(Timestamp::as_microsecond)
}

fn time_opt(micros: Option<i64>) -> Result<Option<Timestamp>, Error> {
    micros.map(time).transpose()
}

/// Counts and offsets as the databases hold them; what is larger than any of theirs is their largest.
pub(crate) fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

pub(crate) fn small(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

pub(crate) fn count(value: i64) -> Result<u64, Error> {
    u64::try_from(value).map_err(|_| Error::Corrupt(format!("{value} is no count")))
}

fn small_count(value: i32) -> Result<u32, Error> {
    u32::try_from(value).map_err(|_| Error::Corrupt(format!("{value} is no count")))
}

/// The columns that an execution's state is spread over. `S` is borrowed text when writing, owned when reading.
#[derive(Debug)]
pub(crate) struct StateColumns<S> {
    pub(crate) status: i16,
    pub(crate) not_before: Option<i64>,
    pub(crate) token: Option<Uuid>,
    pub(crate) lease_node: Option<Uuid>,
    pub(crate) session: Option<Uuid>,
    pub(crate) granted_at: Option<i64>,
    pub(crate) stop: bool,
    pub(crate) started_at: Option<i64>,
    /// Present exactly when an agent reported an outcome.
    pub(crate) verdict: Option<i16>,
    pub(crate) exit_code: Option<i32>,
    /// The outcome's error.
    pub(crate) error: Option<S>,
    pub(crate) finished_at: Option<i64>,
    /// The state's own text: why it failed, was skipped, cancelled or lost.
    pub(crate) reason: Option<S>,
    pub(crate) ended_at: Option<i64>,
}

impl<'a> StateColumns<&'a str> {
    pub(crate) fn of(state: &'a State) -> Self {
        let lease = state.lease();
        let mut row = StateColumns {
            status: state.status().code(),
            not_before: None,
            token: lease.map(|lease| lease.token.0),
            lease_node: lease.map(|lease| lease.node.0),
            session: lease.map(|lease| lease.session.0),
            granted_at: lease.map(|lease| lease.granted_at.as_microsecond()),
            stop: false,
            started_at: None,
            verdict: None,
            exit_code: None,
            error: None,
            finished_at: None,
            reason: None,
            ended_at: None,
        };
        match state {
            State::Pending { not_before } => row.not_before = micros(*not_before),
            State::Leased { lease: _, stop } => row.stop = *stop,
            State::Running { lease: _, started_at, stop } => {
                row.started_at = Some(started_at.as_microsecond());
                row.stop = *stop;
            }
            State::Succeeded { lease: _, outcome } => row.put_outcome(Some(outcome)),
            State::Failed { lease: _, outcome, error, at } => {
                row.put_outcome(outcome.as_ref());
                row.put_end(error.as_deref(), *at);
            }
            State::Skipped { reason, at } => row.put_end(Some(reason), *at),
            State::Cancelled { lease: _, outcome, reason, at } => {
                row.put_outcome(outcome.as_ref());
                row.put_end(Some(reason), *at);
            }
            State::Lost { lease: _, started_at, reason, at } => {
                row.started_at = micros(*started_at);
                row.put_end(Some(reason), *at);
            }
        }
        row
    }

    fn put_outcome(&mut self, outcome: Option<&'a Outcome>) {
        let Some(outcome) = outcome else { return };
        self.verdict = Some(outcome.verdict.code());
        self.exit_code = outcome.exit_code;
        self.error = outcome.error.as_deref();
        self.started_at = Some(outcome.started_at.as_microsecond());
        self.finished_at = Some(outcome.finished_at.as_microsecond());
    }

    fn put_end(&mut self, reason: Option<&'a str>, at: Timestamp) {
        self.reason = reason;
        self.ended_at = Some(at.as_microsecond());
    }
}

impl StateColumns<String> {
    pub(crate) fn state(self) -> Result<State, Error> {
        let status = Status::decode(self.status)?;
        let missing = |column: &str| Error::Corrupt(format!("an execution that is {status} has no {column}"));
        let lease = match (self.token, self.lease_node, self.session, self.granted_at) {
            (Some(token), Some(node), Some(session), Some(granted_at)) => Some(Lease {
                token: LeaseToken(token),
                node: NodeId(node),
                session: SessionId(session),
                granted_at: time(granted_at)?,
            }),
            _ => None,
        };
        let held = || lease.ok_or_else(|| missing("lease"));
        let started_at = time_opt(self.started_at)?;
        let ended_at = || time(self.ended_at.ok_or_else(|| missing("end"))?);
        let outcome = match self.verdict {
            Some(verdict) => Some(Outcome {
                verdict: Verdict::decode(verdict)?,
                exit_code: self.exit_code,
                error: self.error,
                started_at: started_at.ok_or_else(|| missing("start"))?,
                finished_at: time(self.finished_at.ok_or_else(|| missing("finish"))?)?,
            }),
            None => None,
        };
        Ok(match status {
            Status::Pending => State::Pending { not_before: time_opt(self.not_before)? },
            Status::Leased => State::Leased { lease: held()?, stop: self.stop },
            Status::Running => State::Running {
                lease: held()?,
                started_at: started_at.ok_or_else(|| missing("start"))?,
                stop: self.stop,
            },
            Status::Succeeded => {
                State::Succeeded { lease: held()?, outcome: outcome.ok_or_else(|| missing("outcome"))? }
            }
            Status::Failed => State::Failed { lease, outcome, error: self.reason, at: ended_at()? },
            Status::Skipped => {
                State::Skipped { at: ended_at()?, reason: self.reason.ok_or_else(|| missing("reason"))? }
            }
            Status::Cancelled => State::Cancelled {
                lease,
                outcome,
                at: ended_at()?,
                reason: self.reason.ok_or_else(|| missing("reason"))?,
            },
            Status::Lost => State::Lost {
                lease: held()?,
                started_at,
                at: ended_at()?,
                reason: self.reason.ok_or_else(|| missing("reason"))?,
            },
        })
    }
}

/// A row of `executions`, in the order of [`EXECUTION_COLUMNS`].
#[derive(Debug)]
pub(crate) struct ExecutionRow {
    pub(crate) id: Uuid,
    pub(crate) run: String,
    pub(crate) step: i32,
    pub(crate) pinned: Option<Uuid>,
    pub(crate) attempt: i32,
    pub(crate) created_at: i64,
    pub(crate) state: StateColumns<String>,
}

pub(crate) const EXECUTION_COLUMNS: &str = "id, run, step, pinned, attempt, created_at, status, not_before, token, \
     lease_node, session, granted_at, stop, started_at, verdict, exit_code, error, finished_at, reason, ended_at";

/// Reads a row by the getter that the driver has.
macro_rules! execution_row {
    ($row:expr, $get:ident) => {
        $crate::rows::ExecutionRow {
            id: $row.$get(0)?,
            run: $row.$get(1)?,
            step: $row.$get(2)?,
            pinned: $row.$get(3)?,
            attempt: $row.$get(4)?,
            created_at: $row.$get(5)?,
            state: $crate::rows::StateColumns {
                status: $row.$get(6)?,
                not_before: $row.$get(7)?,
                token: $row.$get(8)?,
                lease_node: $row.$get(9)?,
                session: $row.$get(10)?,
                granted_at: $row.$get(11)?,
                stop: $row.$get(12)?,
                started_at: $row.$get(13)?,
                verdict: $row.$get(14)?,
                exit_code: $row.$get(15)?,
                error: $row.$get(16)?,
                finished_at: $row.$get(17)?,
                reason: $row.$get(18)?,
                ended_at: $row.$get(19)?,
            },
        }
    };
}
pub(crate) use execution_row;

impl ExecutionRow {
    pub(crate) fn record(self) -> Result<Execution, Error> {
        Ok(Execution {
            id: ExecutionId(self.id),
            run: RunId::from(self.run),
            step: small_count(self.step)?,
            pinned: self.pinned.map(NodeId),
            attempt: small_count(self.attempt)?,
            created_at: time(self.created_at)?,
            state: self.state.state()?,
        })
    }
}

/// The moving part of a row of `runs`, in the order of [`RUN_LIVE_COLUMNS`].
#[derive(Debug)]
pub(crate) struct RunLiveRow {
    pub(crate) id: String,
    pub(crate) state: i16,
    pub(crate) started_at: Option<i64>,
    pub(crate) finished_at: Option<i64>,
    pub(crate) partial: Option<bool>,
    pub(crate) error: Option<String>,
    pub(crate) cancel_requested_at: Option<i64>,
    pub(crate) owner: Uuid,
    pub(crate) epoch: i64,
}

pub(crate) const RUN_LIVE_COLUMNS: &str =
    "id, state, started_at, finished_at, partial, error, cancel_requested_at, owner, epoch";

macro_rules! run_live_row {
    ($row:expr, $get:ident) => {
        $crate::rows::RunLiveRow {
            id: $row.$get(0)?,
            state: $row.$get(1)?,
            started_at: $row.$get(2)?,
            finished_at: $row.$get(3)?,
            partial: $row.$get(4)?,
            error: $row.$get(5)?,
            cancel_requested_at: $row.$get(6)?,
            owner: $row.$get(7)?,
            epoch: $row.$get(8)?,
        }
    };
}
pub(crate) use run_live_row;

impl RunLiveRow {
    pub(crate) fn record(self) -> Result<(RunId, RunLive), Error> {
        let live = RunLive {
            state: RunState::decode(self.state)?,
            started_at: time_opt(self.started_at)?,
            finished_at: time_opt(self.finished_at)?,
            end: self.partial.map(|partial| RunEnd { partial, error: self.error }),
            cancel_requested_at: time_opt(self.cancel_requested_at)?,
            owner: ServerId(self.owner),
            epoch: count(self.epoch)?,
        };
        Ok((RunId::from(self.id), live))
    }
}

/// A run whole, in the order of [`RUN_COLUMNS`], which reads `runs` joined with its `definitions`.
#[derive(Debug)]
pub(crate) struct RunRow {
    pub(crate) live: RunLiveRow,
    pub(crate) cluster: Uuid,
    pub(crate) job: Option<String>,
    pub(crate) by: String,
    pub(crate) idempotency_key: Option<String>,
    pub(crate) created_at: i64,
    pub(crate) definition: String,
    pub(crate) resolved: String,
}

pub(crate) const RUN_COLUMNS: &str = "r.id, r.state, r.started_at, r.finished_at, r.partial, r.error, \
     r.cancel_requested_at, r.owner, r.epoch, r.cluster, r.job, r.submitted_by, r.idempotency_key, r.created_at, \
     d.definition, d.resolved";

macro_rules! run_row {
    ($row:expr, $get:ident) => {
        $crate::rows::RunRow {
            live: $crate::rows::run_live_row!($row, $get),
            cluster: $row.$get(9)?,
            job: $row.$get(10)?,
            by: $row.$get(11)?,
            idempotency_key: $row.$get(12)?,
            created_at: $row.$get(13)?,
            definition: $row.$get(14)?,
            resolved: $row.$get(15)?,
        }
    };
}
pub(crate) use run_row;

impl RunRow {
    pub(crate) fn record(self) -> Result<RunRecord, Error> {
        let (id, live) = self.live.record()?;
        Ok(RunRecord {
            cluster: ClusterId(self.cluster),
            job: self.job,
            state: live.state,
            definition: Arc::new(parse("definition", &self.definition)?),
            resolved: Arc::new(parse("resolved targets", &self.resolved)?),
            by: self.by,
            idempotency_key: self.idempotency_key,
            created_at: time(self.created_at)?,
            started_at: live.started_at,
            finished_at: live.finished_at,
            end: live.end,
            cancel_requested_at: live.cancel_requested_at,
            owner: live.owner,
            epoch: live.epoch,
            id,
        })
    }
}

/// The moving part of a node: a row of `presence`, in the order of [`NODE_LIVE_COLUMNS`].
#[derive(Debug)]
pub(crate) struct NodeLiveRow {
    pub(crate) node: Uuid,
    pub(crate) session: Uuid,
    pub(crate) status: i16,
    pub(crate) draining: bool,
    pub(crate) registered_at: i64,
    pub(crate) seen_at: i64,
}

pub(crate) const NODE_LIVE_COLUMNS: &str = "node, session, status, draining, registered_at, seen_at";

macro_rules! node_live_row {
    ($row:expr, $get:ident) => {
        $crate::rows::NodeLiveRow {
            node: $row.$get(0)?,
            session: $row.$get(1)?,
            status: $row.$get(2)?,
            draining: $row.$get(3)?,
            registered_at: $row.$get(4)?,
            seen_at: $row.$get(5)?,
        }
    };
}
pub(crate) use node_live_row;

impl NodeLiveRow {
    pub(crate) fn record(&self) -> Result<(NodeId, NodeLive), Error> {
        let live = NodeLive {
            session: SessionId(self.session),
            status: NodeStatus::decode(self.status)?,
            draining: self.draining,
            registered_at: time(self.registered_at)?,
            seen_at: time(self.seen_at)?,
        };
        Ok((NodeId(self.node), live))
    }
}

/// A node whole, in the order of [`NODE_COLUMNS`], which reads `presence` joined with `nodes`.
#[derive(Debug)]
pub(crate) struct NodeRow {
    pub(crate) live: NodeLiveRow,
    pub(crate) cluster: Uuid,
    pub(crate) description: String,
}

pub(crate) const NODE_COLUMNS: &str =
    "p.node, p.session, p.status, p.draining, p.registered_at, p.seen_at, n.cluster, n.description";

macro_rules! node_row {
    ($row:expr, $get:ident) => {
        $crate::rows::NodeRow {
            live: $crate::rows::node_live_row!($row, $get),
            cluster: $row.$get(6)?,
            description: $row.$get(7)?,
        }
    };
}
pub(crate) use node_row;

impl NodeRow {
    pub(crate) fn record(self) -> Result<NodeRecord, Error> {
        let (id, live) = self.live.record()?;
        Ok(NodeRecord {
            id,
            cluster: ClusterId(self.cluster),
            session: live.session,
            description: parse("description", &self.description)?,
            status: live.status,
            draining: live.draining,
            registered_at: live.registered_at,
            seen_at: live.seen_at,
        })
    }
}

pub(crate) fn parse<T: serde::de::DeserializeOwned>(what: &str, json: &str) -> Result<T, Error> {
    serde_json::from_str(json).map_err(|error| Error::Corrupt(format!("a stored {what} cannot be read: {error}")))
}

pub(crate) fn json<T: serde::Serialize>(value: &T) -> Result<String, Error> {
    serde_json::to_string(value).map_err(|error| Error::Corrupt(format!("cannot write JSON: {error}")))
}
