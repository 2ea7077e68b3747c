//! Owns the long poll: it waits until there is work, something to stop, or a timeout.

use std::sync::Arc;
use std::time::Duration;

use downbeat_core::collections::HashSet;
use downbeat_core::execution::State;
use downbeat_core::ids::NodeId;
use downbeat_core::work::{Attempt, Work};
use downbeat_proto::message::{Assignment, Fault, LeaseRef, Poll, PollAnswer};
use tokio::sync::oneshot;

use super::host::{deleted, superseded, unavailable};
use super::{Host, Result};
use crate::dispatch::{Dispatcher, Parking};

/// The maximum wait, whatever an agent requests.
const LONGEST: Duration = Duration::from_secs(60);

/// Unparks when the caller disconnects.
struct Parked<'a> {
    dispatcher: &'a Dispatcher,
    node: NodeId,
    poll: u64,
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        self.dispatcher.board().unpark(self.node, self.poll);
    }
}

fn stopping() -> Fault {
    Fault::Unavailable("the server is stopping".to_owned())
}

impl Host {
    pub(super) async fn park(&self, poll: Poll) -> Result<PollAnswer> {
        let dispatcher = &self.parts.dispatcher;
        let closing = &self.parts.closing;
        if let Some(held) = &poll.resync {
            let answer = self.resync(&poll, held).await?;
            if answer != PollAnswer::default() {
                return Ok(answer);
            }
        }
        let (answer, mut answered) = oneshot::channel();
        let parked = dispatcher.board().park(poll.node, poll.session, poll.poll, poll.free, answer);
        if let Err(why) = parked {
            return Err(match why {
                Parking::UnknownNode => self.no_node(&poll).await,
                Parking::OtherSession => superseded(poll.node),
            });
        }
        let _parked = Parked { dispatcher, node: poll.node, poll: poll.poll };
        if dispatcher.board().has_work() {
            dispatcher.wake();
        }
        tokio::select! {
            biased;
            answer = &mut answered => match answer {
                Ok(answer) => Ok(answer),
                Err(_) => Err(self.why_replaced(&poll).await),
            },
            () = closing.cancelled() => Err(stopping()),
            () = tokio::time::sleep(poll.wait.min(LONGEST)) => {
                dispatcher.board().unpark(poll.node, poll.poll);
                // The response may have been sent just now.
                Ok(answered.try_recv().unwrap_or_default())
            }
        }
    }

    /// Returns why a poll ended without a response: another session or a later poll replaced it, or the node was deleted.
    async fn why_replaced(&self, poll: &Poll) -> Fault {
        let session = self.parts.dispatcher.board().node(poll.node).map(|node| node.session);
        match session {
            _ if self.parts.closing.is_cancelled() => stopping(),
            Some(session) if session != poll.session => superseded(poll.node),
            None => self.no_node(poll).await,
            _ => Fault::Unavailable("a later poll of this agent replaced this one".to_owned()),
        }
    }

    /// Returns the fault of a poll of a node that the board does not know. Unless the node was deleted, this server may only
    /// be behind: the heartbeat decides what follows.
    async fn no_node(&self, poll: &Poll) -> Fault {
        match self.is_deleted(poll.node, poll.session).await {
            Ok(true) => deleted(poll.node),
            Ok(false) => Fault::Unknown(format!("node `{}`", poll.node)),
            Err(fault) => fault,
        }
    }

    /// Returns leases of this session that did not arrive, from the store: the board may be behind.
    async fn resync(&self, poll: &Poll, held: &[LeaseRef]) -> Result<PollAnswer> {
        let mut answer = PollAnswer::default();
        // Everything that is committed from here on waits for this poll, and is not lost with the one before.
        self.parts.dispatcher.board().unpark_any(poll.node);
        let arrived: HashSet<_> = held.iter().map(|held| held.execution).collect();
        for execution in self.parts.store.held_by(&[poll.node]).await.map_err(unavailable)? {
            let (lease, stop) = match &execution.state {
                State::Leased { lease, stop } | State::Running { lease, stop, .. } => (*lease, *stop),
                _ => continue,
            };
            if lease.session != poll.session {
                continue;
            }
            if stop {
                answer.stop.push(LeaseRef { execution: execution.id, token: lease.token });
            }
            if arrived.contains(&execution.id) {
                continue;
            }
            let works = self.parts.dispatcher.works();
            // The board has the work as it was when the execution was created: a standing task may have changed since.
            let known = self.parts.dispatcher.board().work(execution.id).cloned();
            let work = match known {
                Some(work) => Some(work),
                None => works
                    .find(&execution.of, self.parts.store.as_ref(), &self.parts.heavy)
                    .await
                    .map_err(unavailable)?,
            };
            let assignment =
                |work: Arc<Work>| Assignment::new(&work, &Attempt::from(&execution), lease.token);
            answer.assignments.extend(work.map(assignment));
        }
        let mut known = arrived;
        known.extend(answer.assignments.iter().map(|assignment| assignment.execution));
        let assignments = std::mem::take(&mut answer.assignments);
        answer.assignments = self.parts.dispatcher.board().resynced(poll.node, &known, assignments);
        Ok(answer)
    }
}
