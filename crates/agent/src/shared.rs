//! Owns the state that the parts of one session share, and the operations that concern several parts.

use std::mem::{Discriminant, discriminant};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use downbeat_backends::{Deadlines, Environment, Identity};
use downbeat_core::execution::{Outcome, Verdict};
use downbeat_core::ids::{NodeId, SessionId};
use downbeat_core::limits::{UNSENT_BYTES, UNSENT_RESULTS};
use downbeat_proto::message::{Assignment, Fault, Finished, LeaseRef};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::execute;
use crate::guards::{self, Guards};
use crate::holdings::{Fate, Holdings, Ready};
use crate::lease_clock::LeaseClock;
use crate::links::{Complaints, Links};
use crate::offer::Offer;
use crate::outbox::Outbox;
use crate::output::{Outputs, cost_bytes};
use crate::session::{Joining, Outgoing};
use crate::settings::Tuning;
use crate::surroundings::{Disk, Host, Wall};

pub(crate) struct Shared {
    pub(crate) node: NodeId,
    pub(crate) session: SessionId,
    pub(crate) heartbeat_interval: Duration,
    pub(crate) lease_ttl: Duration,
    pub(crate) grace: Duration,
    /// The directory of the files in which tasks set outputs.
    pub(crate) values: PathBuf,
    pub(crate) disk: Disk,
    pub(crate) tuning: Tuning,
    pub(crate) wall: Wall,
    pub(crate) clock: LeaseClock,
    pub(crate) host: Arc<dyn Host>,
    /// The environment of programs that work starts.
    pub(crate) environment: Environment,
    pub(crate) guards: Guards,
    pub(crate) offer: Offer,
    pub(crate) links: Arc<Links>,
    /// The data for registering again, if a server asks for it.
    pub(crate) joining: Arc<Joining>,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) outputs: Arc<Outputs>,
    /// Facts to report. Results get here through the outbox.
    pub(crate) outgoing: UnboundedSender<Outgoing>,
    /// When the last heartbeat that a server responded to was sent.
    pub(crate) heard: Mutex<Instant>,
    /// Leases were renewed, or work started that ends unless they are.
    pub(crate) renewed: Notify,
    /// Triggers the next heartbeat at once, which checks whether the session is still valid.
    pub(crate) heartbeat_now: Notify,
    /// Faults of calls, to limit how often each is logged.
    pub(crate) complaints: Mutex<Complaints<Discriminant<Fault>>>,
    /// Wakes the poll: the server has to send the assignments again.
    pub(crate) poll_again: Notify,
    /// Drops all work at once, unfinished.
    pub(crate) abandon: CancellationToken,
    pub(crate) holdings: Mutex<Holdings>,
    /// Work ended or a result was acknowledged.
    pub(crate) changed: Notify,
}

impl Shared {
    /// Accepts assignments from a poll. They may have been delayed on the network, so the age of their leases
    /// is unknown.
    pub(crate) fn assign(self: &Arc<Self>, assignments: Vec<Assignment>) {
        let heard = *self.heard.lock();
        let ready = self.holdings.lock().assign(assignments, heard);
        for ready in ready {
            execute::spawn(self, ready);
        }
    }

    pub(crate) fn stop(&self, leases: &[LeaseRef]) {
        for held in leases {
            let unbegun = self.holdings.lock().stop(*held);
            if let Some(assignment) = unbegun {
                self.outbox.keep(cancelled_unbegun(&assignment, (self.wall)()));
            }
        }
    }

    /// Notes that the last poll, after the agent was asked to stop, is done.
    pub(crate) fn last_poll_done(&self) {
        self.holdings.lock().is_complete = true;
        self.changed.notify_waiters();
    }

    /// Removes results that a server has recorded.
    pub(crate) fn recorded(&self, recorded: Vec<LeaseRef>) {
        self.relieve(|holdings| recorded.iter().for_each(|held| holdings.acknowledged(*held)));
        self.joining.delivered(&recorded);
        self.outbox.forget(recorded);
        self.changed.notify_waiters();
    }

    /// Notes that this much output of a result no longer has to be sent.
    pub(crate) fn sent(&self, held: LeaseRef, bytes: usize) {
        self.relieve(|holdings| holdings.sent(held, bytes));
    }

    /// Removes results. A node that refused work because of them accepts work again.
    fn relieve(&self, remove: impl FnOnce(&mut Holdings)) {
        let is_relieved = {
            let mut holdings = self.holdings.lock();
            let was_clogged = holdings.is_clogged();
            remove(&mut holdings);
            was_clogged && !holdings.is_clogged()
        };
        if is_relieved {
            tracing::info!(node = %self.node, "enough results were delivered; accepting new work again");
            let _ = self.outgoing.send(Outgoing::Offer);
        }
    }

    pub(crate) fn refused(&self, refused: Vec<LeaseRef>) {
        if refused.is_empty() {
            return;
        }
        self.relieve(|holdings| {
            for held in &refused {
                if holdings.holds(*held) {
                    tracing::warn!(node = %self.node, execution = %held.execution, "the lease was lost; ending its work");
                }
                holdings.refused(*held);
            }
        });
        self.joining.delivered(&refused);
        self.outbox.forget(refused);
        self.changed.notify_waiters();
    }

    /// Holds the results of an earlier run of the agent. They are in the outbox already.
    pub(crate) fn hold_former(&self, results: Vec<Finished>) {
        let now = self.clock.now();
        for finished in results {
            self.holdings.lock().hold_former(finished.held, cost_bytes(&finished.output), now);
            let _ = self.outgoing.send(Outgoing::Finished(finished));
        }
    }

    /// Keeps the result of work that ended. Returns the next work for its slot.
    pub(crate) fn ended(&self, finished: Finished) -> Option<Ready> {
        let (fate, next) = self.end(&finished);
        if fate == Fate::Report {
            self.outbox.keep(finished);
        }
        self.changed.notify_waiters();
        next
    }

    fn end(&self, finished: &Finished) -> (Fate, Option<Ready>) {
        let mut holdings = self.holdings.lock();
        let was_clogged = holdings.is_clogged();
        let ended = holdings.ended(finished.held);
        if ended.0 == Fate::Report {
            holdings.wait_to_send(finished.held, cost_bytes(&finished.output));
        }
        if holdings.is_clogged() && !was_clogged {
            tracing::warn!(node = %self.node, "too many results or too much output pending; refusing new work until they are delivered");
        }
        ended
    }

    /// Returns the problems of this host, for users.
    pub(crate) fn problems(&self) -> Vec<String> {
        let clogged = self.holdings.lock().is_clogged().then(|| {
            let mebibytes = UNSENT_BYTES / (1024 * 1024);
            format!(
                "{UNSENT_RESULTS} results or {mebibytes} MiB of output are pending; the node refuses new work until \
                 they are delivered: the connection to the servers is slow"
            )
        });
        let mut problems = self.outbox.problems();
        problems.extend(self.host.problems());
        problems.extend(self.joining.installation.problem.clone());
        problems.extend(clogged);
        problems
    }

    /// Drops work unreported that ended because the agent stops: it counts as lost and is retried.
    pub(crate) fn abandoned(&self, held: LeaseRef) {
        self.holdings.lock().abandoned(held);
        self.changed.notify_waiters();
    }

    /// Handles a fault of a call that a retry does not solve. The server may only be behind (it has just
    /// started, or the node registered at another one), so a heartbeat checks the session.
    pub(crate) async fn recheck_session(&self, call: &str, fault: &Fault) {
        if self.complaints.lock().is_due(discriminant(fault), Instant::now()) {
            tracing::warn!(node = %self.node, call, %fault, "a call failed");
        } else {
            tracing::debug!(node = %self.node, call, %fault, "a call failed");
        }
        self.heartbeat_now.notify_one();
        tokio::time::sleep(self.tuning.backoff_most).await;
    }

    /// Returns how long work that must never overlap continues after its last renewal. Ending it takes up to
    /// the grace period, and the lease has to last until then.
    pub(crate) fn term(&self) -> Duration {
        self.lease_ttl.saturating_sub(self.grace).max(self.lease_ttl / 2)
    }

    /// Notes that a server granted a renewal requested at `asked`.
    pub(crate) fn renewed(&self, held: &[LeaseRef], asked: Instant) {
        *self.heard.lock() = asked;
        self.holdings.lock().renewed(held, asked);
        self.guards.extend(|held| self.deadlines(held));
        self.renewed.notify_waiters();
    }

    /// Returns when a guard ends this work unless the lease is renewed; `None` if the agent does not hold it
    /// or the host has no clock for guards.
    pub(crate) fn deadlines(&self, held: LeaseRef) -> Option<Deadlines> {
        let assured = self.holdings.lock().assured(held)?;
        Some(guards::deadlines(self.clock.since_boot(assured)?, self.lease_ttl, self.term()))
    }

    /// Waits until work that must never overlap certainly has its lease. An assignment that arrived late, or
    /// waited for its slot, may have been leased to another node.
    pub(crate) async fn begin(&self, held: LeaseRef) {
        let mut is_asked = false;
        loop {
            let renewed = self.renewed.notified();
            if self.holdings.lock().begin(held, self.term(), self.clock.now()) {
                self.renewed.notify_waiters();
                return;
            }
            // Once: a server that cannot renew the lease must not be asked in a tight loop.
            if !std::mem::replace(&mut is_asked, true) {
                self.heartbeat_now.notify_one();
            }
            renewed.await;
        }
    }

    /// Waits until the holdings satisfy `is`.
    pub(crate) async fn until(&self, is: impl Fn(&Holdings) -> bool) {
        loop {
            let changed = self.changed.notified();
            if is(&self.holdings.lock()) {
                return;
            }
            changed.await;
        }
    }
}

pub(crate) fn identity(assignment: &Assignment) -> Identity {
    Identity { execution: assignment.execution, attempt: assignment.attempt }
}

fn cancelled_unbegun(assignment: &Assignment, now: Timestamp) -> Finished {
    Finished {
        held: assignment.lease(),
        of: assignment.of.parent(),
        outcome: Outcome {
            verdict: Verdict::Cancelled,
            exit_code: None,
            error: Some("cancelled before it started".to_owned()),
            started_at: now,
            finished_at: now,
            outputs: Default::default(),
            received_at: None,
        },
        output: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_fault_is_complained_about_once_in_a_minute() {
        let (occupied, unknown) =
            (|why: u32| Fault::Occupied(why.to_string()), Fault::Unknown(String::new()));
        let (mut complaints, start) = (Complaints::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(complaints.is_due(discriminant(&occupied(0)), at(0)));
        assert!(!complaints.is_due(discriminant(&occupied(1)), at(5)), "only the text differs");
        assert!(complaints.is_due(discriminant(&unknown), at(6)));
        assert!(!complaints.is_due(discriminant(&occupied(2)), at(59)));
        assert!(complaints.is_due(discriminant(&occupied(3)), at(60)));
        assert!(!complaints.is_due(discriminant(&occupied(4)), at(61)));
    }
}
