//! Owns how an agent becomes its node: hello, then register, for as long as it takes. It retries after any response,
//! with a growing pause, except three: the cluster does not exist, the node was deleted, or a newer session of it exists.

use std::time::Duration;

use downbeat_core::Dice;
use downbeat_core::ids::{NodeId, SessionId};
use downbeat_core::node::Description;
use downbeat_proto::message::{
    Fault, Hello, LeaseRef, OLDEST_PROTOCOL, PROTOCOL, Register, Welcome, agreed_protocol,
};
use parking_lot::Mutex;
use tracing::warn;

use crate::error::Error;
use crate::installation::Installation;
use crate::links::{CallLink, Links, pause};
use crate::settings::Tuning;

/// The data that an agent registers with; the same in one run of the agent.
#[derive(Debug)]
pub(crate) struct Joining {
    pub(crate) cluster: String,
    pub(crate) description: Description,
    pub(crate) session: SessionId,
    pub(crate) installation: Installation,
    /// Results of earlier sessions that are still to be delivered.
    pub(crate) undelivered: Mutex<Vec<LeaseRef>>,
    pub(crate) tuning: Tuning,
    pub(crate) dice: Mutex<Dice>,
}

#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) node: NodeId,
    pub(crate) welcome: Welcome,
}

/// The result of an attempt to become the node.
#[derive(Debug)]
pub(crate) enum JoinResult<D> {
    Joined(Joined),
    /// The agent did not register with this server, for this reason.
    Declined(D),
}

/// Returns whether the network or the server failed. `Links` handles these.
fn may_pass(fault: &Fault) -> bool {
    matches!(fault, Fault::Unavailable(_) | Fault::TimedOut(_))
}

impl Joining {
    /// Removes results that a server has, or that no longer count.
    pub(crate) fn delivered(&self, done: &[LeaseRef]) {
        let mut undelivered = self.undelivered.lock();
        if !undelivered.is_empty() {
            undelivered.retain(|held| !done.contains(held));
        }
    }

    /// Returns whether results of earlier sessions are still to be delivered.
    pub(crate) fn has_undelivered(&self) -> bool {
        !self.undelivered.lock().is_empty()
    }

    /// Waits until a server has registered this agent, or `decline` returns a reason not to register with a server that
    /// responded to hello. Calls `refused` with each refusal.
    pub(crate) async fn join<D>(
        &self,
        links: &Links,
        decline: impl Fn(&Welcome, NodeId) -> Option<D>,
        refused: impl Fn(&Fault),
    ) -> Result<JoinResult<D>, Error> {
        let mut refusals = 0;
        loop {
            match self.attempt(links, &decline).await {
                Ok(came) => return Ok(came),
                Err(fault) => {
                    refused(&fault);
                    self.put_off(&fault, &mut refusals).await?;
                }
            }
        }
    }

    /// Waits until the next attempt, or returns the error if there is none.
    async fn put_off(&self, fault: &Fault, refusals: &mut u32) -> Result<(), Error> {
        // The pause is in connecting to the next server.
        if may_pass(fault) {
            return Ok(());
        }
        if let Some(error) = Error::from_session(fault) {
            return Err(error);
        }
        *refusals += 1;
        let pause = self.pause(*refusals);
        tracing::error!(
            hostname = %self.description.hostname, session = %self.session, %fault,
            "the server refused this agent; retrying in {}s", pause.as_secs_f64().ceil()
        );
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// Hello and registration use one link: servers of one cluster may be of two releases.
    async fn attempt<D>(
        &self,
        links: &Links,
        decline: impl Fn(&Welcome, NodeId) -> Option<D>,
    ) -> Result<JoinResult<D>, Fault> {
        let link = links.control_link().await;
        let welcome = self.hello(links, &link).await?;
        let node = NodeId::derive(welcome.cluster, &self.description.hostname);
        if let Some(why) = decline(&welcome, node) {
            links.move_on(&link);
            return Ok(JoinResult::Declined(why));
        }
        let register = Register {
            cluster: welcome.cluster,
            node,
            session: self.session,
            description: self.description.clone(),
            instance: self.installation.id.clone(),
            undelivered: self.undelivered.lock().clone(),
            life: self.installation.life,
        };
        let answer = link.register(register).await;
        links.note_result(&link, &answer).await;
        if answer.as_ref().is_err_and(|fault| !may_pass(fault)) {
            links.move_on(&link);
        }
        if answer?.reset {
            warn!("this node was registered before: it starts the standing tasks of its cluster over");
        }
        Ok(JoinResult::Joined(Joined { node, welcome }))
    }

    async fn hello(&self, links: &Links, link: &CallLink) -> Result<Welcome, Fault> {
        let hello = Hello {
            cluster: self.cluster.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol: PROTOCOL,
        };
        let answer = link.hello(hello).await;
        links.note_result(link, &answer).await;
        let answer = match answer {
            // A server returns the newest protocol that both support. A newer one is an error.
            Ok(welcome) if agreed_protocol(welcome.protocol) != Some(welcome.protocol) => {
                Err(Fault::Rejected(format!(
                    "the server uses protocol {}, this agent supports {OLDEST_PROTOCOL} to {PROTOCOL}: upgrade the older of the two",
                    welcome.protocol
                )))
            }
            Ok(welcome) => {
                links.set_lease_ttl(welcome.lease_ttl);
                Ok(welcome)
            }
            // Before the registration no fault can be about this session: an older server returns `not found`
            // for an unknown cluster.
            Err(Fault::NotFound(why) | Fault::Superseded(why)) => Err(Fault::Unknown(why)),
            Err(fault) => Err(fault),
        };
        if answer.as_ref().is_err_and(|fault| !may_pass(fault)) {
            links.move_on(link);
        }
        answer
    }

    pub(crate) fn pause(&self, refusals: u32) -> Duration {
        pause(refusals, self.tuning.refused_least, self.tuning.refused_most, &mut self.dice.lock())
    }
}
