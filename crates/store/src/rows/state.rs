//! Owns how an execution's state is stored in columns and restored exactly.

use downbeat_core::execution::{Execution, Lease, Outcome, State, Status, Verdict};
use downbeat_core::ids::{LeaseToken, NodeId, SessionId};
use jiff::Timestamp;
use uuid::Uuid;

use super::codes::Code;
use super::column::columns;
use super::scalar::{micros, params_column, parse_opt, time, time_opt};
use super::text::Text;
use crate::port::{Error, Result};

columns! {
    /// The columns of `executions` for an execution's state, after its id.
    struct StateColumns<'a> {
        id: Uuid,
        status: i16,
        not_before: Option<i64>,
        token: Option<Uuid>,
        lease_node: Option<Uuid>,
        session: Option<Uuid>,
        granted_at: Option<i64>,
        stop: bool,
        started_at: Option<i64>,
        /// Present exactly when an agent reported an outcome.
        verdict: Option<i16>,
        exit_code: Option<i32>,
        error: Option<Text<'a>>,
        finished_at: Option<i64>,
        /// The state's own text: why it failed, was skipped, cancelled or lost.
        reason: Option<Text<'a>>,
        ended_at: Option<i64>,
        /// The outcome's outputs, if any.
        outputs: Option<Text<'a>>,
    }
}

/// The columns that only a new lease changes. Other updates omit them, because SQLite rewrites an index whenever an
/// UPDATE names one of its columns.
pub(crate) const LEASE_COLUMNS: [&str; 4] = ["token", "lease_node", "session", "granted_at"];

impl<'a> StateColumns<'a> {
    pub(crate) fn of(execution: &'a Execution) -> Self {
        let state = &execution.state;
        let lease = state.lease();
        let mut row = StateColumns {
            id: execution.id.0,
            status: state.status().code(),
            token: lease.map(|lease| lease.token.0),
            lease_node: lease.map(|lease| lease.node.0),
            session: lease.map(|lease| lease.session.0),
            granted_at: lease.map(|lease| lease.granted_at.as_microsecond()),
            ..Self::default()
        };
        match state {
            State::Pending { not_before } => row.not_before = micros(*not_before),
            State::Leased { lease: _, stop } => row.stop = *stop,
            State::Running { lease: _, started_at, stop } => {
                row.started_at = Some(started_at.as_microsecond());
                row.stop = *stop;
            }
            State::Succeeded { lease: _, outcome } => {
                row.put_outcome(Some(outcome));
                row.ended_at = micros(outcome.received_at);
            }
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
        self.error = outcome.error.as_deref().map(Text::from);
        self.started_at = Some(outcome.started_at.as_microsecond());
        self.finished_at = Some(outcome.finished_at.as_microsecond());
        self.outputs = params_column(&outcome.outputs).map(Text::from);
    }

    fn put_end(&mut self, reason: Option<&'a str>, at: Timestamp) {
        self.reason = reason.map(Text::from);
        self.ended_at = Some(at.as_microsecond());
    }

    pub(crate) fn state(self) -> Result<State> {
        let status = Status::decode(self.status)?;
        let missing =
            |column: &str| Error::Corrupt(format!("an execution with status {status} has no {column}"));
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
        let reason = self.reason.map(String::from);
        let ended_at = || time(self.ended_at.ok_or_else(|| missing("end"))?);
        let outcome = match self.verdict {
            Some(verdict) => Some(Outcome {
                verdict: Verdict::decode(verdict)?,
                exit_code: self.exit_code,
                error: self.error.map(String::from),
                started_at: started_at.ok_or_else(|| missing("start"))?,
                finished_at: time(self.finished_at.ok_or_else(|| missing("finish"))?)?,
                received_at: time_opt(self.ended_at)?,
                outputs: parse_opt("outputs", self.outputs.as_ref())?.unwrap_or_default(),
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
                State::Succeeded { lease, outcome: outcome.ok_or_else(|| missing("outcome"))? }
            }
            Status::Failed => State::Failed { lease, outcome, error: reason, at: ended_at()? },
            Status::Skipped => {
                State::Skipped { at: ended_at()?, reason: reason.ok_or_else(|| missing("reason"))? }
            }
            Status::Cancelled => State::Cancelled {
                lease,
                outcome,
                at: ended_at()?,
                reason: reason.ok_or_else(|| missing("reason"))?,
            },
            Status::Lost => State::Lost {
                lease: held()?,
                started_at,
                at: ended_at()?,
                reason: reason.ok_or_else(|| missing("reason"))?,
            },
        })
    }
}
