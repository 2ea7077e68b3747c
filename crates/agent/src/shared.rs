//! Owns what the parts of one session share, and the few steps that concern several of them.

use std::mem::{Discriminant, discriminant};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use downbeat_backends::{Deadlines, Environment, Identity};
use downbeat_core::collections::HashMap;
use downbeat_core::execution::{Outcome, Verdict};
use downbeat_core::ids::{NodeId, SessionId};
use downbeat_core::limits::{UNSENT_BYTES, UNSENT_RESULTS};
use downbeat_proto::message::{Assignment, Fault, Finished, LeaseRef};
use jiff::Timestamp;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::execute;
use crate::guards::{self, Guards};
use crate::holdings::{Fate, Holdings, Ready};
use crate::lease_clock::LeaseClock;
use crate::links::Links;
use crate::offer::Offer;
use crate::outbox::Outbox;
use crate::output::{Outputs, cost_bytes};
use crate::session::{Joining, Outgoing};
use crate::settings::Tuning;
use crate::surroundings::{Host, Wall};

/// While servers refuse what an agent asks, each kind of refusal is complained about this often.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

/// When each kind of fault was last complained about.
#[derive(Debug, Default)]
pub(crate) struct Complaints(HashMap<Discriminant<Fault>, Instant>);

impl Complaints {
    fn is_due(&mut self, fault: &Fault, now: Instant) -> bool {
        let last = self.0.entry(discriminant(fault)).or_insert(now);
        let is_due = *last == now || now.duration_since(*last) >= COMPLAIN_EVERY;
        if is_due {
            *last = now;
        }
        is_due
    }
}

/// One session of an agent.
pub(crate) struct Shared {
    pub(crate) node: NodeId,
    pub(crate) session: SessionId,
    pub(crate) heartbeat_interval: Duration,
    pub(crate) lease_ttl: Duration,
    pub(crate) grace: Duration,
    /// The directory of the files in which tasks say values.
    pub(crate) values: PathBuf,
    pub(crate) tuning: Tuning,
    pub(crate) wall: Wall,
    /// The time by which leases run out.
    pub(crate) clock: LeaseClock,
    pub(crate) host: Arc<dyn Host>,
    /// The environment of programs that work starts.
    pub(crate) environment: Environment,
    pub(crate) guards: Guards,
    pub(crate) offer: Offer,
    pub(crate) links: Arc<Links>,
    /// How it became its node, should a server ask for that again.
    pub(crate) joining: Arc<Joining>,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) outputs: Arc<Outputs>,
    /// What is to be reported. Results get here by the outbox.
    pub(crate) outgoing: UnboundedSender<Outgoing>,
    /// When the last sign of life was sent that a server answered.
    pub(crate) heard: Mutex<Instant>,
    /// Leases were renewed, or work began that ends without that.
    pub(crate) renewed: Notify,
    /// A server does not know this session: the next heartbeat, which alone decides, comes at once.
    pub(crate) doubt: Notify,
    /// What calls failed with, as far as it was said.
    pub(crate) complaints: Mutex<Complaints>,
    /// Wakes the poll: what arrived is to be told anew.
    pub(crate) ask_anew: Notify,
    /// Everything is dropped where it stands.
    pub(crate) abandon: CancellationToken,
    pub(crate) holdings: Mutex<Holdings>,
    /// Something ended or was acknowledged.
    pub(crate) changed: Notify,
}

impl Shared {
    pub(crate) fn holdings(&self) -> MutexGuard<'_, Holdings> {
        self.holdings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes on what the answer to a poll brought. How old its leases are, nobody knows: they may have been on their way
    /// for long.
    pub(crate) fn assign(self: &Arc<Self>, assignments: Vec<Assignment>) {
        let heard = *self.heard.lock().expect("nothing panics while it holds this");
        let ready = self.holdings().assign(assignments, heard);
        for ready in ready {
            execute::spawn(self, ready);
        }
    }

    pub(crate) fn stop(&self, told: &[LeaseRef]) {
        for held in told {
            let unbegun = self.holdings().stop(*held);
            if let Some(assignment) = unbegun {
                self.outbox.keep(cancelled_unbegun(&assignment, (self.wall)()));
            }
        }
    }

    /// The last look, after the agent was told to stop, was answered.
    pub(crate) fn looked_last(&self) {
        self.holdings().complete();
        self.changed.notify_waiters();
    }

    /// A server has these results.
    pub(crate) fn recorded(&self, recorded: Vec<LeaseRef>) {
        self.relieve(|holdings| recorded.iter().for_each(|held| holdings.acknowledged(*held)));
        self.joining.delivered(&recorded);
        self.outbox.forget(recorded);
        self.changed.notify_waiters();
    }

    /// So much of the output of a result needs to be sent no more.
    pub(crate) fn sent(&self, held: LeaseRef, bytes: usize) {
        self.relieve(|holdings| holdings.sent(held, bytes));
    }

    /// Lets go of results. A node that took no work because of them takes some again.
    fn relieve(&self, let_go: impl FnOnce(&mut Holdings)) {
        let is_relieved = {
            let mut holdings = self.holdings();
            let was_clogged = holdings.is_clogged();
            let_go(&mut holdings);
            was_clogged && !holdings.is_clogged()
        };
        if is_relieved {
            tracing::info!(node = %self.node, "enough results were delivered; new work is taken again");
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
                    tracing::warn!(node = %self.node, execution = %held.execution, "the lease was lost; its work is ended");
                }
                holdings.refused(*held);
            }
        });
        self.joining.delivered(&refused);
        self.outbox.forget(refused);
        self.changed.notify_waiters();
    }

    /// Results that a former life left. They are in the outbox already.
    pub(crate) fn hold_former(&self, results: Vec<Finished>) {
        let now = self.clock.now();
        for finished in results {
            self.holdings().hold_former(finished.held, cost_bytes(&finished.output), now);
            let _ = self.outgoing.send(Outgoing::Finished(finished));
        }
    }

    /// Work ended: its result goes its way, its lane goes on with what is answered.
    pub(crate) fn ended(&self, finished: Finished) -> Option<Ready> {
        let (fate, next) = self.end(&finished);
        match fate {
            Fate::Report => self.outbox.keep(finished),
            Fate::Drop => {}
        }
        self.changed.notify_waiters();
        next
    }

    fn end(&self, finished: &Finished) -> (Fate, Option<Ready>) {
        let mut holdings = self.holdings();
        let was_clogged = holdings.is_clogged();
        let ended = holdings.ended(finished.held);
        if ended.0 == Fate::Report {
            holdings.wait_to_send(finished.held, cost_bytes(&finished.output));
        }
        if holdings.is_clogged() && !was_clogged {
            tracing::warn!(node = %self.node, "many results or much output wait to be delivered; no new work is taken until they are");
        }
        ended
    }

    /// What is wrong on this host, for people.
    pub(crate) fn problems(&self) -> Vec<String> {
        let clogged = self.holdings().is_clogged().then(|| {
            let mebibytes = UNSENT_BYTES / (1024 * 1024);
            format!(
                "{UNSENT_RESULTS} results or {mebibytes} MiB of output wait to be delivered; no new work is taken \
                 until they are: the line to the servers is slow"
            )
        });
        let unwritten = self.joining.installation.problem.clone();
        self.outbox
            .problems()
            .into_iter()
            .chain(self.host.problems())
            .chain(unwritten)
            .chain(clogged)
            .collect()
    }

    /// Work was ended because the agent stops: it is let go of unreported, so that it is lost and sent again.
    pub(crate) fn abandoned(&self, held: LeaseRef) {
        self.holdings().abandoned(held);
        self.changed.notify_waiters();
    }

    /// A call other than the heartbeat was answered with a fault that trying again does not pass. The server may only
    /// be behind (it has just started, or the node registered at another one), so the heartbeat is asked.
    pub(crate) async fn doubted(&self, call: &str, fault: &Fault) {
        if self.complaints.lock().unwrap_or_else(PoisonError::into_inner).is_due(fault, Instant::now()) {
            tracing::warn!(node = %self.node, call, %fault, "a call failed");
        } else {
            tracing::debug!(node = %self.node, call, %fault, "a call failed");
        }
        self.doubt.notify_one();
        tokio::time::sleep(self.tuning.backoff_most).await;
    }

    /// How long work that must never overlap goes on after its lease was known to be the agent's. Its end takes up to
    /// the grace period, and the lease has to last until then.
    pub(crate) fn term(&self) -> Duration {
        self.lease_ttl.saturating_sub(self.grace).max(self.lease_ttl / 2)
    }

    /// A server took a renewal that was asked for then.
    pub(crate) fn renewed(&self, held: &[LeaseRef], asked: Instant) {
        *self.heard.lock().expect("nothing panics while it holds this") = asked;
        self.holdings().renewed(held, asked);
        self.guards.extend(|held| self.deadlines(held));
        self.renewed.notify_waiters();
    }

    /// When a guard ends this work, unless the lease is renewed. None when the agent does not hold it, or its host has no
    /// clock for guards.
    pub(crate) fn deadlines(&self, held: LeaseRef) -> Option<Deadlines> {
        let assured = self.holdings().assured(held)?;
        Some(guards::deadlines(self.clock.since_boot(assured)?, self.lease_ttl, self.term()))
    }

    /// Waits until the lease of work that must never overlap is known to be the agent's. What arrives late, or waited
    /// for its lane, may have been given to another node meanwhile.
    pub(crate) async fn begin(&self, held: LeaseRef) {
        let mut is_asked = false;
        loop {
            let renewed = self.renewed.notified();
            if self.holdings().begin(held, self.term(), self.clock.now()) {
                self.renewed.notify_waiters();
                return;
            }
            // Once: a server that cannot renew it is not asked in a tight loop.
            if !std::mem::replace(&mut is_asked, true) {
                self.doubt.notify_one();
            }
            renewed.await;
        }
    }

    /// Waits until what the agent holds is as `is` wants it.
    pub(crate) async fn until(&self, is: impl Fn(&Holdings) -> bool) {
        loop {
            let changed = self.changed.notified();
            if is(&self.holdings()) {
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
            error: Some("cancelled before it began".to_owned()),
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
        assert!(complaints.is_due(&occupied(0), at(0)));
        assert!(!complaints.is_due(&occupied(1), at(5)), "only its words are others");
        assert!(complaints.is_due(&unknown, at(6)));
        assert!(!complaints.is_due(&occupied(2), at(59)));
        assert!(complaints.is_due(&occupied(3), at(60)));
        assert!(!complaints.is_due(&occupied(4), at(61)));
    }
}
