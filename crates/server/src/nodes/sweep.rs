//! Owns the sweep: silent nodes become stale, then offline; leases that were not renewed end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use downbeat_core::collections::{HashMap, HashSet};
use downbeat_core::execution::Execution;
use downbeat_core::ids::NodeId;
use downbeat_core::node::NodeStatus;
use downbeat_core::state::NodeLive;
use downbeat_core::{Change, Silence, Timestamp, limits};
use downbeat_store as store;
use jiff::SignedDuration;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::journal::CommitError;
use crate::parts::Parts;
use crate::settings::Settings;

/// Silent nodes whose leases are read in one query.
const NODES_AT_ONCE: usize = 500;

/// Since when this server has received heartbeats and reports without a break: earlier silence does not count. Cheap to
/// clone.
#[derive(Clone, Debug)]
pub(crate) struct Serving {
    looks: Arc<Mutex<Looks>>,
    /// A look for breaks that comes this long after the one before is late: the process was frozen.
    late: Duration,
}

#[derive(Debug)]
struct Looks {
    since: Timestamp,
    last: Timestamp,
}

impl Serving {
    pub(crate) fn new(now: Timestamp, settings: &Settings) -> Self {
        let looks = Arc::new(Mutex::new(Looks { since: now, last: now }));
        Self { looks, late: tick(settings) * 4 + Duration::from_secs(1) }
    }

    fn looks(&self) -> MutexGuard<'_, Looks> {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A process that was frozen may ask before it looked for breaks again.
    pub(crate) fn since(&self, now: Timestamp) -> Timestamp {
        let looks = self.looks();
        if self.is_late(&looks, now) { now } else { looks.since }
    }

    pub(crate) fn begin(&self, since: Timestamp) {
        self.looks().since = since;
    }

    /// Records a look for breaks. Returns whether it is late.
    fn look(&self, now: Timestamp) -> bool {
        let mut looks = self.looks();
        let is_late = self.is_late(&looks, now);
        looks.last = now;
        is_late
    }

    fn is_late(&self, looks: &Looks, now: Timestamp) -> bool {
        now.duration_since(looks.last) > signed(self.late)
    }
}

/// Returns the pause between two looks at the nodes.
fn tick(settings: &Settings) -> Duration {
    (settings.heartbeat_interval.0 / 4).clamp(Duration::from_millis(50), Duration::from_millis(2_500))
}

/// Sweeps until `stop` is cancelled. Several servers may sweep at once: every change is guarded.
pub(crate) async fn sweep(parts: Parts, stop: CancellationToken) {
    let tick = tick(&parts.settings);
    let breaks = Breaks { parts: &parts, tick };
    let now = parts.clock.now();
    parts.serving.look(now);
    parts.serving.begin(now);
    while stop.run_until_cancelled(tokio::time::sleep(tick)).await.is_some() {
        let is_broken = breaks.happened()
            || tokio::select! {
                biased;
                () = breaks.next() => true,
                checked = check_nodes(&parts) => {
                    checked.inspect_err(|error| warn!(%error, "cannot check for silent nodes")).is_err()
                }
            };
        if is_broken {
            parts.serving.begin(parts.clock.now());
        }
    }
}

/// Finds breaks: times in which no lease could be renewed, because the store was unavailable or slow, or because this
/// process was frozen. It also looks while nodes are checked, which may take long in a large cluster.
struct Breaks<'a> {
    parts: &'a Parts,
    tick: Duration,
}

impl Breaks<'_> {
    /// Returns whether there is a break now, or was one since the last look.
    fn happened(&self) -> bool {
        let parts = self.parts;
        let is_frozen = parts.serving.look(parts.clock.now());
        let is_stalled = parts.heartbeats.stalled_for() > parts.serving.late;
        // A server that cannot write its own heartbeat cannot renew leases either: the store may be
        // readable but not writable.
        let signs = parts.last_sign.is_fresh(parts.settings.server_stale_after.0);
        is_frozen || is_stalled || !signs || !parts.journal.is_available()
    }

    async fn next(&self) {
        loop {
            tokio::time::sleep(self.tick).await;
            if self.happened() {
                return;
            }
        }
    }
}

/// Checks all silent nodes, in portions: each is one query and a few commits.
async fn check_nodes(parts: &Parts) -> Result<(), store::Error> {
    let now = parts.clock.now();
    let shortest = parts.settings.lease_ttl.0.min(parts.settings.node_stale_after.0);
    for nodes in parts.store.silent_nodes(now - signed(shortest)).await?.chunks(NODES_AT_ONCE) {
        let silent: Vec<Silent<'_>> =
            nodes.iter().map(|(id, node)| Silent::of(*id, node, parts, now)).collect();
        let unrenewed: Vec<NodeId> = silent.iter().filter(|one| one.has_expired).map(|one| one.id).collect();
        let mut held: HashMap<NodeId, Vec<Execution>> = HashMap::default();
        if !unrenewed.is_empty() {
            for execution in parts.store.held_by(&unrenewed).await? {
                if let Some(lease) = execution.state.lease() {
                    held.entry(lease.node).or_default().push(execution);
                }
            }
        }
        let ended = |one: &Silent<'_>| one.changes(held.get(&one.id).map_or(&[], Vec::as_slice), parts, now);
        let changes: Vec<Change> = silent.iter().flat_map(ended).collect();
        commit(parts, changes).await?;
    }
    Ok(())
}

/// Commits the consequences of silence. In order: a node that is offline is not checked again, so its leases end before
/// or with its move. A change that the store will never accept is left out, because the other nodes must not wait for it.
/// If it is the end of a lease, its node does not go offline.
async fn commit(parts: &Parts, mut changes: Vec<Change>) -> Result<(), store::Error> {
    // Nodes with a lease whose end was rejected.
    let mut holding: HashSet<NodeId> = HashSet::default();
    while !changes.is_empty() {
        let rest = changes.split_off(changes.len().min(limits::EXECUTIONS_PER_COMMIT));
        let mut portion = std::mem::replace(&mut changes, rest);
        portion.retain(|change| !takes_one_offline(change, &holding));
        if portion.is_empty() {
            continue;
        }
        match parts.journal.commit(portion.clone()).await {
            Err(CommitError::Rejected(_)) => {}
            committed => {
                committed?;
                continue;
            }
        }
        let (mut moves, losses): (Vec<Change>, Vec<Change>) =
            portion.into_iter().partition(|change| matches!(change, Change::NodeMoved { .. }));
        let outcomes = parts.journal.commit_apart(&losses).await?;
        let rejected = losses.iter().zip(outcomes).filter(|(_, outcome)| outcome.is_none());
        holding.extend(rejected.filter_map(|(loss, _)| silent_node(loss)));
        moves.retain(|change| !takes_one_offline(change, &holding));
        parts.journal.commit_apart(&moves).await?;
    }
    Ok(())
}

/// Returns whether one of these nodes goes offline with the change.
fn takes_one_offline(change: &Change, nodes: &HashSet<NodeId>) -> bool {
    matches!(change, Change::NodeMoved { node, to: NodeStatus::Offline, .. } if nodes.contains(node))
}

/// Returns the node whose lease ends with this change because it is silent.
fn silent_node(change: &Change) -> Option<NodeId> {
    let Change::ExecutionLost { silence, .. } = change else { return None };
    silence.as_ref().map(|silence| silence.node)
}

/// A silent node.
struct Silent<'a> {
    id: NodeId,
    node: &'a NodeLive,
    heard: Timestamp,
    silent_for: Duration,
    /// No lease was renewed for as long as leases last, or the node goes offline.
    has_expired: bool,
}

impl<'a> Silent<'a> {
    fn of(id: NodeId, node: &'a NodeLive, parts: &Parts, now: Timestamp) -> Self {
        let heard = node.seen_at.max(parts.serving.since(now));
        let silent_for = Duration::try_from(now.duration_since(heard)).unwrap_or(Duration::ZERO);
        let to = parts.settings.health().status(silent_for);
        let has_expired = silent_for >= parts.settings.lease_ttl.0 || to == NodeStatus::Offline;
        Self { id, node, heard, silent_for, has_expired }
    }

    /// Returns the consequences of the silence.
    fn changes(&self, held: &[Execution], parts: &Parts, now: Timestamp) -> Vec<Change> {
        let Self { id, node, .. } = *self;
        let health = parts.settings.health();
        // However long leases last: what a node ran is lost when it goes offline.
        let term = signed(parts.settings.lease_ttl.0.min(health.offline_after));
        let leases = held.iter().filter_map(|execution| Some((execution, execution.state.lease()?)));
        let (over, current): (Vec<_>, Vec<_>) =
            leases.partition(|(_, lease)| lease.is_over(self.heard, term, now));
        let to = health.status_with(self.silent_for, !current.is_empty());
        let offline = to == NodeStatus::Offline;
        let reason = if offline { "the node went offline" } else { "the lease expired" };
        let lost = over.into_iter().map(|(execution, lease)| Change::ExecutionLost {
            of: execution.of.parent(),
            execution: execution.id,
            token: lease.token,
            silence: Some(Silence { node: id, since: node.seen_at }),
            reason: reason.to_owned(),
            at: now,
        });
        let mut changes: Vec<Change> = lost.collect();
        if to > node.status {
            changes.push(Change::NodeMoved {
                node: id,
                session: node.session,
                from: node.status,
                to,
                silent_since: Some(node.seen_at),
                at: now,
            });
        }
        changes
    }
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}
