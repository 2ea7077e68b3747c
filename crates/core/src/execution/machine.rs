//! Decides how an execution moves. Every state handles every event; the error for an illegal event names both.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::record::{Lease, Outcome, State, Status, Verdict};
use super::times::{fit_into_lease, start_within};
use crate::backend::Params;
use crate::ids::LeaseToken;

/// A fact about an execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The execution was leased to a node.
    Leased { lease: Lease },
    /// The agent started the execution.
    Started { token: LeaseToken, at: Timestamp, received_at: Option<Timestamp> },
    /// The agent reports the end. `Started` may be missing: for short work the agent reports both at once.
    Finished { token: LeaseToken, outcome: Outcome },
    /// The lease expired, or the node's session ended.
    LeaseEnded { token: LeaseToken, reason: String, at: Timestamp },
    /// The run no longer needs the execution.
    CancelRequested { reason: String, at: Timestamp },
    /// The execution was not sent and never will be.
    GivenUp { error: String, at: Timestamp },
    /// A person approved or rejected an execution that no node gets.
    Decided { decision: Decision, at: Timestamp },
    /// The execution was not sent yet, and is not needed any more because something else failed.
    Skipped { reason: String, at: Timestamp },
}

impl Event {
    pub fn name(&self) -> &'static str {
        match self {
            Event::Leased { .. } => "leased",
            Event::Started { .. } => "started",
            Event::Finished { .. } => "finished",
            Event::LeaseEnded { .. } => "lease_ended",
            Event::CancelRequested { .. } => "cancel_requested",
            Event::GivenUp { .. } => "given_up",
            Event::Skipped { .. } => "skipped",
            Event::Decided { .. } => "decided",
        }
    }
}

/// Why an event has no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Illegal {
    /// Fencing: the sender no longer has the lease.
    #[error("the lease is no longer the current one")]
    StaleLease,
    #[error("`{event}` does not apply to an execution that is {status}")]
    WrongState { status: Status, event: &'static str },
}

/// Returns the next state of an execution. No other code decides it.
pub fn step(state: &State, event: &Event) -> Result<State, Illegal> {
    let wrong = || Err(Illegal::WrongState { status: state.status(), event: event.name() });
    match state {
        State::Pending { .. } => match event {
            Event::Leased { lease } => Ok(State::Leased { lease: *lease, stop: false }),
            Event::CancelRequested { reason, at } => {
                Ok(State::Cancelled { lease: None, outcome: None, reason: reason.clone(), at: *at })
            }
            Event::Decided { decision, at } => Ok(decision.state(*at)),
            Event::GivenUp { error, at } => {
                Ok(State::Failed { lease: None, outcome: None, error: Some(error.clone()), at: *at })
            }
            Event::Skipped { reason, at } => Ok(State::Skipped { reason: reason.clone(), at: *at }),
            // The token is from a lease that ended: its attempt is another execution.
            Event::Started { .. } | Event::Finished { .. } | Event::LeaseEnded { .. } => {
                Err(Illegal::StaleLease)
            }
        },
        State::Leased { lease, stop } => match event {
            Event::Started { token, at, received_at } => {
                check_token(lease, *token)?;
                let started_at = start_within(*at, lease.granted_at, *received_at);
                Ok(State::Running { lease: *lease, started_at, stop: *stop })
            }
            Event::Finished { token, outcome } => finished(lease, *token, outcome),
            Event::LeaseEnded { token, reason, at } => lost(lease, None, *token, reason, *at),
            Event::CancelRequested { .. } => Ok(State::Leased { lease: *lease, stop: true }),
            Event::Leased { .. } | Event::GivenUp { .. } | Event::Skipped { .. } | Event::Decided { .. } => {
                wrong()
            }
        },
        State::Running { lease, started_at, stop: _ } => match event {
            Event::Finished { token, outcome } => finished(lease, *token, outcome),
            Event::LeaseEnded { token, reason, at } => lost(lease, Some(*started_at), *token, reason, *at),
            Event::CancelRequested { .. } => {
                Ok(State::Running { lease: *lease, started_at: *started_at, stop: true })
            }
            Event::Leased { .. }
            | Event::Started { .. }
            | Event::GivenUp { .. }
            | Event::Skipped { .. }
            | Event::Decided { .. } => wrong(),
        },
        State::Succeeded { .. }
        | State::Failed { .. }
        | State::Skipped { .. }
        | State::Cancelled { .. }
        | State::Lost { .. } => match event {
            Event::Started { .. } | Event::Finished { .. } | Event::LeaseEnded { .. } => {
                Err(Illegal::StaleLease)
            }
            Event::Leased { .. }
            | Event::CancelRequested { .. }
            | Event::GivenUp { .. }
            | Event::Skipped { .. }
            | Event::Decided { .. } => wrong(),
        },
    }
}

/// What a person decided about an execution that waits for an approval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    pub approved: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Who decided.
    pub by: String,
}

impl Decision {
    /// Returns the state of an execution that was decided at this time.
    fn state(&self, at: Timestamp) -> State {
        if !self.approved {
            let error = Some(self.rejection());
            return State::Failed { lease: None, outcome: None, error, at };
        }
        let outcome = Outcome {
            verdict: Verdict::Succeeded,
            exit_code: None,
            error: None,
            outputs: self.outputs(at),
            started_at: at,
            finished_at: at,
            received_at: Some(at),
        };
        State::Succeeded { lease: None, outcome }
    }

    /// Returns the outputs of an execution that was approved at this time.
    pub fn outputs(&self, at: Timestamp) -> Params {
        let reason = self.reason.clone().map(|reason| ("reason", reason));
        let all = [("approved_by", self.by.clone()), ("approved_at", at.to_string())];
        all.into_iter().chain(reason).map(|(name, value)| (name.to_owned(), value.into())).collect()
    }

    /// Returns the error of a rejected execution.
    pub fn rejection(&self) -> String {
        let reason = self.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        format!("rejected by {}{reason}", self.by)
    }
}

fn check_token(lease: &Lease, token: LeaseToken) -> Result<(), Illegal> {
    if lease.token == token { Ok(()) } else { Err(Illegal::StaleLease) }
}

fn finished(lease: &Lease, token: LeaseToken, outcome: &Outcome) -> Result<State, Illegal> {
    check_token(lease, token)?;
    let outcome = fit_into_lease(outcome.clone(), lease.granted_at);
    let at = outcome.ended_at();
    Ok(match outcome.verdict {
        Verdict::Succeeded => State::Succeeded { lease: Some(*lease), outcome },
        Verdict::Failed => {
            State::Failed { lease: Some(*lease), error: outcome.error.clone(), at, outcome: Some(outcome) }
        }
        Verdict::Cancelled => State::Cancelled {
            lease: Some(*lease),
            reason: outcome.error.clone().unwrap_or_else(|| "cancelled".to_owned()),
            at,
            outcome: Some(outcome),
        },
    })
}

fn lost(
    lease: &Lease,
    started_at: Option<Timestamp>,
    token: LeaseToken,
    reason: &str,
    at: Timestamp,
) -> Result<State, Illegal> {
    check_token(lease, token)?;
    Ok(State::Lost { lease: *lease, started_at, reason: reason.to_owned(), at })
}
