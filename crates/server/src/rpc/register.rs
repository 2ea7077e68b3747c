//! Registers a new session of a node. Leases of the old session are lost at once, without waiting for their
//! expiry, except for results that the agent still has.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use downbeat_core::cluster::OnRegister;
use downbeat_core::collections::HashSet;
use downbeat_core::execution::{Execution, Lease};
use downbeat_core::ids::{ClusterId, ExecutionId, NodeId, RunId, SessionId};
use downbeat_core::node::{Decision, Installation, Newcomer, NodeRecord, Registration, Rule};
use downbeat_core::portion::json_bytes;
use downbeat_core::run::engine::COMMIT;
use downbeat_core::{Change, Refusal, Timestamp, limits};
use downbeat_proto::message::{Fault, LeaseRef, Register, Registered};
use downbeat_store::{ExecutionFilter, Page};
use jiff::SignedDuration;
use tracing::info;

use super::host::{deleted, no_cluster, superseded, unavailable};
use super::{Host, Result};

/// How often a registration is decided again because its node changed in between.
const TRIES: u32 = 5;

impl Host {
    pub(super) async fn register_node(&self, register: Register) -> Result<Registered> {
        let Register { cluster, node, session, description, instance, undelivered, life } = register;
        let derived = NodeId::derive(cluster, &description.hostname);
        if node != derived {
            return Err(Fault::Rejected(format!(
                "node id `{node}` does not match hostname `{}` in cluster `{cluster}`; expected `{derived}`",
                description.hostname
            )));
        }
        description.check().map_err(|bad| Fault::Rejected(bad.to_string()))?;
        if self.parts.store.cluster(&cluster.to_string()).await.map_err(unavailable)?.is_none() {
            return Err(no_cluster(cluster));
        }
        let most = self.parts.settings.max_nodes;
        if self.parts.dispatcher.board().is_full(cluster, node, most as usize) {
            return Err(Fault::Rejected(format!(
                "cluster `{cluster}` has the maximum of {most} nodes that are not offline; raise `max_nodes` of the servers"
            )));
        }
        let installation = (!instance.0.is_empty()).then(|| Installation::new(&instance.0, life));
        let newcomer = Newcomer { session, installation };
        let kept = self.undelivered(node, session, &undelivered).await?;
        let (mut tries, mut decided_at, mut first) = (TRIES, Timestamp::MIN, None);
        let (is_another, reset) = loop {
            let mut known = self.parts.store.node(node).await.map_err(unavailable)?;
            // A session that was registered during this call is alive. Its commit may have taken so long that it seems to
            // have been silent since.
            let session_now = known.as_ref().map(|known| known.session);
            if *first.get_or_insert(session_now) != session_now
                && let Some(known) = &mut known
            {
                known.seen_at = known.seen_at.max(self.parts.clock.now());
            }
            let is_deleted = self.is_deleted(node, session).await?;
            let former = match self.rule().decide(known.as_ref(), is_deleted, &newcomer) {
                Decision::Accept(former) => former,
                Decision::Occupied(why) => return Err(Fault::Occupied(why)),
                Decision::Superseded => return Err(superseded(node)),
                Decision::NotFound => return Err(deleted(node)),
            };
            let attempts = match known {
                Some(_) => Vec::new(),
                None => self.earlier_attempts(cluster, node).await?,
            };
            // After the registration that it replaces, even if a clock jumps: of two calls, the slow one must lose, and
            // results of standing tasks belong to the session after whose registration they were created.
            let (was_known, kept_since) = (known.is_some(), self.kept_since(cluster, known.as_ref()));
            let before = known.map_or(decided_at, |known| known.registered_at.max(decided_at));
            let least = before.checked_add(SignedDuration::from_micros(1)).unwrap_or(before);
            let at = least.max(self.parts.clock.now());
            let registration = Registration {
                node,
                cluster,
                session,
                description: description.clone(),
                installation: newcomer.installation.clone(),
                undelivered: kept.iter().copied().collect(),
                kept_since,
                attempts,
                former,
                at,
            };
            match &self.parts.journal.commit(vec![Change::NodeRegistered { registration }]).await?[0] {
                Ok(()) => {
                    let has_tasks =
                        self.parts.standing.status(cluster).is_some_and(|status| status.tasks > 0);
                    let reset = was_known && kept_since.is_none() && has_tasks;
                    break (former.displaced().is_some(), reset);
                }
                // The clock of the server that decided it is ahead.
                Err(Refusal::DecidedLater(at)) => decided_at = *at,
                Err(_) => {}
            }
            // The node changed between the read and the commit: decide again.
            tries -= 1;
            if tries == 0 {
                return Err(Fault::Unavailable(format!(
                    "other agents are registering as node `{node}`; try again"
                )));
            }
        };
        let reason = if is_another { "another agent replaced this one" } else { "the agent restarted" };
        // After the commit nothing more is leased to former sessions.
        let former =
            |execution: &Execution, lease: &Lease| lease.session != session && !kept.contains(&execution.id);
        self.end_leases(node, reason, former).await?;
        self.parts.dispatcher.wake();
        let (hostname, results) = (&description.hostname, kept.len());
        info!(%node, hostname, %session, results, reset, "node registered");
        Ok(Registered { reset })
    }

    /// Returns the last attempt at each standing task on a node that does not exist: it may have been deleted.
    async fn earlier_attempts(&self, cluster: ClusterId, node: NodeId) -> Result<Vec<(u32, u32)>> {
        let known = self.parts.standing.cluster_by_id(cluster);
        if known.is_none_or(|cluster| cluster.list.next_number == 0) {
            return Ok(Vec::new());
        }
        let mut attempts: BTreeMap<u32, u32> = BTreeMap::new();
        let run = Some(RunId::standing(cluster));
        let filter = ExecutionFilter { run, node: Some(node), ..ExecutionFilter::default() };
        let mut page = Page::first(limits::PAGE_MOST);
        loop {
            let listed = self.parts.store.bare_executions(&filter, &page).await.map_err(unavailable)?;
            for execution in &listed.rows {
                let last = attempts.entry(execution.step()).or_insert(execution.attempt);
                *last = execution.attempt.max(*last);
            }
            match listed.next {
                Some(next) => page.start = next,
                None => return Ok(attempts.into_iter().collect()),
            }
        }
    }

    /// Returns since when successes of standing tasks count for a node that registers again.
    fn kept_since(&self, cluster: ClusterId, stored: Option<&NodeRecord>) -> Option<Timestamp> {
        let cluster = self.parts.standing.cluster_by_id(cluster)?;
        let keeps = cluster.on_register == OnRegister::Resume;
        stored.filter(|_| keeps).map(|stored| stored.kept_since.unwrap_or(stored.registered_at))
    }

    pub(super) fn rule(&self) -> Rule {
        let now = self.parts.clock.now();
        Rule {
            stale_after: self.parts.settings.node_stale_after.0,
            serving_since: self.parts.serving.since(now),
            now,
        }
    }

    /// Returns the announced results that belong to a former session and whose leases are still current.
    async fn undelivered(
        &self,
        node: NodeId,
        session: SessionId,
        announced: &[LeaseRef],
    ) -> Result<BTreeSet<ExecutionId>> {
        if announced.is_empty() {
            return Ok(BTreeSet::new());
        }
        let announced: HashSet<&LeaseRef> = announced.iter().take(limits::UNDELIVERED).collect();
        let held = self.parts.store.held_by(&[node]).await.map_err(unavailable)?;
        let counts = |execution: &Execution| {
            execution.state.lease().is_some_and(|lease| {
                let held = LeaseRef { execution: execution.id, token: lease.token };
                lease.session != session && announced.contains(&held)
            })
        };
        Ok(held.iter().filter(|execution| counts(execution)).map(|execution| execution.id).collect())
    }

    /// Ends the leases of a node that `selects` returns true for, in portions: others need not wait for all of them.
    pub(super) async fn end_leases(
        &self,
        node: NodeId,
        reason: &str,
        selects: impl Fn(&Execution, &Lease) -> bool,
    ) -> Result<()> {
        let now = self.parts.clock.now();
        let held = self.parts.store.held_by(&[node]).await.map_err(unavailable)?;
        let lost = held.into_iter().filter_map(|execution| {
            let lease = *execution.state.lease()?;
            selects(&execution, &lease).then(|| Change::ExecutionLost {
                of: execution.of.parent(),
                execution: execution.id,
                token: lease.token,
                silence: None,
                reason: reason.to_owned(),
                at: now,
            })
        });
        let mut lost: Vec<Change> = lost.collect();
        while !lost.is_empty() {
            self.parts.journal.commit(COMMIT.take(&mut lost, json_bytes)).await?;
        }
        Ok(())
    }
}
