//! Owns when two worlds are equal: when nothing that can follow distinguishes them. Ids are assigned in order of time,
//! so executions are compared by step, node, attempt and their creator's epoch. Servers are interchangeable, and so are
//! the two nodes: a world equals its mirror image.

use std::hash::{Hash, Hasher};

use downbeat_core::Change;
use downbeat_core::execution::{Execution, State, Verdict};
use downbeat_core::ids::ExecutionId;
use downbeat_core::state::Tables;

use super::world::{
    Grant, Memory, NODES, Observed, Owner, Phase, Server, World, is_offline, node_id, node_index,
    session_number,
};

/// One step of a hash: cheap also without optimisation.
fn mix(hash: u64, value: u64) -> u64 {
    let mut z = (hash.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 32)
}

fn all(values: &[u64]) -> u64 {
    values.iter().fold(0x0d0b_ea70, |hash, value| mix(hash, *value))
}

fn verdict(verdict: Verdict) -> u64 {
    match verdict {
        Verdict::Succeeded => 1,
        Verdict::Failed => 2,
        Verdict::Cancelled => 3,
    }
}

/// The tables, or their mirror image.
#[derive(Clone, Copy)]
struct View<'a> {
    tables: &'a Tables,
    mirrored: bool,
}

fn views(tables: &Tables) -> [View<'_>; 2] {
    [false, true].map(|mirrored| View { tables, mirrored })
}

impl View<'_> {
    /// Returns the node at this position of the view.
    fn seen(self, node: usize) -> usize {
        if self.mirrored { NODES - 1 - node } else { node }
    }

    fn place(self, node: Option<usize>) -> u64 {
        node.map_or(0, |node| self.seen(node) as u64 + 1)
    }

    fn name(self, execution: &Execution) -> u64 {
        all(&[
            u64::from(execution.step()),
            self.place(execution.pinned.and_then(node_index)),
            u64::from(execution.attempt),
            execution.created_at.as_second().unsigned_abs(),
        ])
    }

    fn named(self, id: ExecutionId) -> u64 {
        self.tables.executions.get(&id).map_or_else(|| id.0.as_u64_pair().0, |execution| self.name(execution))
    }

    fn execution(self, execution: &Execution) -> u64 {
        let state = &execution.state;
        let lease = state.lease().map_or(0, |lease| {
            all(&[self.place(node_index(lease.node)), u64::from(session_number(lease.session))])
        });
        let detail = match state {
            State::Leased { stop, .. } | State::Running { stop, .. } => u64::from(*stop),
            State::Failed { outcome, .. } | State::Cancelled { outcome, .. } => u64::from(outcome.is_some()),
            State::Pending { .. } | State::Succeeded { .. } | State::Skipped { .. } | State::Lost { .. } => 0,
        };
        let is_final = u64::from(execution.failed_for_good.is_some());
        all(&[self.name(execution), state.status() as u64, lease, detail, is_final])
    }

    /// Hashes the parts of the tables that a decision reads.
    fn digest(self) -> u64 {
        self.tables.executions.values().map(|execution| self.execution(execution)).fold(0, u64::wrapping_add)
    }

    fn change(self, change: &Change) -> u64 {
        let detail = match change {
            Change::ExecutionsAdded { executions, .. } => {
                executions.iter().map(|one| self.execution(one)).fold(0, u64::wrapping_add)
            }
            Change::ExecutionFinished { execution, outcome, .. } => {
                all(&[self.named(*execution), verdict(outcome.verdict)])
            }
            Change::ExecutionLeased { execution, .. }
            | Change::ExecutionStarted { execution, .. }
            | Change::ExecutionLost { execution, .. }
            | Change::ApprovalDecided { execution, .. }
            | Change::ExecutionCancelRequested { execution, .. }
            | Change::ExecutionGivenUp { execution, .. }
            | Change::ExecutionSkipped { execution, .. }
            | Change::InstanceFailed { execution, .. } => self.named(*execution),
            Change::NodeMoved { node, .. } | Change::NodeDeleted { node, .. } => {
                self.place(node_index(*node))
            }
            Change::RunMoved { path, .. } => path.last().map_or(0, |state| *state as u64),
            Change::ClusterCreated { .. }
            | Change::ClusterChanged { .. }
            | Change::ClusterDeleted { .. }
            | Change::JobApplied { .. }
            | Change::JobPauseSet { .. }
            | Change::JobDeleted { .. }
            | Change::JobDecided { .. }
            | Change::BackfillCreated { .. }
            | Change::BackfillMoved { .. }
            | Change::BackfillCancelled { .. }
            | Change::JobNotTriggered { .. }
            | Change::TriggersFollowed { .. }
            | Change::RunCreated { .. }
            | Change::RunTaken { .. }
            | Change::RunChecked { .. }
            | Change::RunActed { .. }
            | Change::RunWoken { .. }
            | Change::RunCancelRequested { .. }
            | Change::RunPauseSet { .. }
            | Change::RunAdmitted { .. }
            | Change::NodeRegistered { .. }
            | Change::NodeDrainSet { .. }
            | Change::NodeProblemsSet { .. }
            | Change::DeliveryQueued { .. }
            | Change::DeliveryTaken { .. }
            | Change::DeliveryTried { .. }
            | Change::DeliveryRequested { .. }
            | Change::Unknown { .. } => 0,
        };
        all(&[u64::from(change.phase()), detail])
    }

    /// Returns the offline nodes, which decisions read too.
    fn offline(self) -> u64 {
        let offline = (0..NODES).filter(|node| is_offline(self.tables, node_id(*node)));
        offline.map(|node| 1 << self.seen(node)).sum()
    }

    fn changes<'a>(self, list: impl Iterator<Item = &'a Change>) -> u64 {
        list.fold(1, |hash, one| mix(hash, self.change(one)))
    }

    fn server(self, server: &Server) -> u64 {
        match server {
            Server::Idle => 0,
            Server::Taken { epoch, mailbox } => all(&[1, *epoch, self.changes(mailbox.iter())]),
            Server::Owner(owner) => {
                let Owner { progress, mailbox, retry, made: _, observed } = &**owner;
                all(&[
                    2,
                    progress.epoch(),
                    observed.ordered[usize::from(self.mirrored)],
                    observed.unordered[usize::from(self.mirrored)],
                    self.changes(mailbox.iter()),
                    self.changes(retry.iter()),
                ])
            }
        }
    }

    fn grant(self, grant: &Grant) -> u64 {
        let phase = match grant.phase {
            Phase::Sent => 1,
            Phase::Running => 2,
            Phase::Finished(result) => 0x10 + verdict(result),
            Phase::Gone(result, memory) => {
                let memory = match memory {
                    Memory::Recorded => 1,
                    Memory::Refused => 2,
                    Memory::Forgotten => 3,
                };
                0x100 + result.map_or(0, verdict) + 0x10 * memory
            }
        };
        all(&[
            self.named(grant.execution),
            self.seen(grant.node) as u64,
            u64::from(grant.session),
            phase,
            u64::from(grant.results),
            u64::from(grant.ended),
        ])
    }

    fn world(self, world: &World) -> u64 {
        let breaches = world.breaches;
        let mut hash = all(&[
            world.run().state() as u64,
            world.run().epoch,
            self.digest(),
            u64::from(world.faults),
            u64::from(breaches.old_owner)
                + 2 * u64::from(breaches.ended_moved)
                + 4 * u64::from(breaches.feed),
        ]);
        let mut servers = world.servers.each_ref().map(|server| self.server(server));
        servers.sort_unstable();
        hash = servers.into_iter().fold(hash, mix);
        for node in (0..NODES).map(|node| self.seen(node)) {
            let registered =
                self.tables.nodes.get(&node_id(node)).map_or(0, |node| session_number(node.session));
            hash = mix(hash, u64::from(world.agents[node]) << 8 | u64::from(registered));
        }
        hash = mix(hash, self.offline());
        let grants = world.grants.iter().map(|grant| self.grant(grant)).fold(0, u64::wrapping_add);
        mix(hash, grants)
    }
}

impl Observed {
    /// An owner that starts with the run itself.
    pub(crate) fn nothing() -> Self {
        Self { ordered: [0; 2], unordered: [0; 2] }
    }

    /// An owner that starts from the tables.
    pub(crate) fn loaded(tables: &Tables, stopping: bool) -> Self {
        let ordered = views(tables).map(|view| all(&[view.digest(), view.offline(), u64::from(stopping)]));
        Self { ordered, unordered: [0; 2] }
    }

    pub(crate) fn and(mut self, tables: &Tables, observed: &Change) -> Self {
        let commutes = match observed {
            Change::ExecutionLeased { .. } | Change::ExecutionsAdded { .. } => true,
            Change::ExecutionFinished { outcome, .. } => outcome.verdict == Verdict::Succeeded,
            _ => false,
        };
        for (side, view) in views(tables).into_iter().enumerate() {
            let hash = mix(view.change(observed), view.offline());
            if commutes {
                self.unordered[side] = self.unordered[side].wrapping_add(hash);
            } else {
                self.ordered[side] = all(&[self.ordered[side], self.unordered[side], hash]);
                self.unordered[side] = 0;
            }
        }
        self
    }
}

impl World {
    fn fingerprint(&self) -> u64 {
        let [plain, mirrored] = views(&self.tables).map(|view| view.world(self));
        plain.min(mirrored)
    }
}

impl Hash for World {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(self.fingerprint());
    }
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint() == other.fingerprint()
    }
}
