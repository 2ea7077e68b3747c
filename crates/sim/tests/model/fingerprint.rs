//! Owns when two worlds are the same: when nothing that can follow tells them apart. Ids are drawn in the order in
//! which things happened, so executions are compared by step, node, attempt and the epoch of who made them.

use std::hash::{Hash, Hasher};

use downbeat_core::Change;
use downbeat_core::execution::{Execution, State, Verdict};
use downbeat_core::ids::ExecutionId;
use downbeat_store::Ledger;

use super::world::{
    Grant, Memory, Observed, Owner, Phase, Server, World, node_id, node_index, session_number,
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

fn place(node: Option<usize>) -> u64 {
    node.map_or(0, |node| node as u64 + 1)
}

fn name(execution: &Execution) -> u64 {
    all(&[
        u64::from(execution.step),
        place(execution.pinned.and_then(node_index)),
        u64::from(execution.attempt),
        execution.created_at.as_second().unsigned_abs(),
    ])
}

fn named(ledger: &Ledger, id: ExecutionId) -> u64 {
    ledger.execution(id).map_or_else(|| id.0.as_u64_pair().0, name)
}

fn state(state: &State) -> u64 {
    let lease = state.lease().map_or(0, |lease| {
        all(&[place(node_index(lease.node)), u64::from(session_number(lease.session))])
    });
    let detail = match state {
        State::Leased { stop, .. } | State::Running { stop, .. } => u64::from(*stop),
        State::Failed { outcome, .. } | State::Cancelled { outcome, .. } => u64::from(outcome.is_some()),
        State::Pending { .. } | State::Succeeded { .. } | State::Skipped { .. } | State::Lost { .. } => 0,
    };
    all(&[state.status() as u64, lease, detail])
}

/// What is in the tables that a decision looks at.
pub(crate) fn tables(ledger: &Ledger) -> u64 {
    ledger
        .executions()
        .map(|execution| all(&[name(execution), state(&execution.state)]))
        .fold(0, u64::wrapping_add)
}

fn change(ledger: &Ledger, change: &Change) -> u64 {
    let of = |execution: &ExecutionId| named(ledger, *execution);
    let detail = match change {
        Change::ExecutionsAdded { executions, .. } => {
            executions.iter().map(|one| all(&[name(one), state(&one.state)])).fold(0, u64::wrapping_add)
        }
        Change::ExecutionFinished { execution, outcome, .. } => {
            all(&[of(execution), verdict(outcome.verdict)])
        }
        Change::ExecutionLeased { execution, .. }
        | Change::ExecutionStarted { execution, .. }
        | Change::ExecutionLost { execution, .. }
        | Change::ExecutionCancelRequested { execution, .. }
        | Change::ExecutionGivenUp { execution, .. }
        | Change::ExecutionSkipped { execution, .. } => of(execution),
        Change::RunMoved { path, .. } => path.last().map_or(0, |state| *state as u64),
        Change::RunCreated { .. }
        | Change::RunTaken { .. }
        | Change::RunCancelRequested { .. }
        | Change::NodeRegistered { .. }
        | Change::NodeMoved { .. }
        | Change::NodeDrainSet { .. } => 0,
    };
    all(&[u64::from(change.phase()), detail])
}

impl Observed {
    /// An owner that begins with the run itself.
    pub(crate) fn nothing() -> Self {
        Self { ordered: 0, unordered: 0 }
    }

    /// An owner that begins with what the tables hold.
    pub(crate) fn loaded(ledger: &Ledger, stopping: bool) -> Self {
        Self { ordered: all(&[tables(ledger), u64::from(stopping)]), unordered: 0 }
    }

    pub(crate) fn and(self, ledger: &Ledger, observed: &Change) -> Self {
        let hash = change(ledger, observed);
        let commutes = match observed {
            Change::ExecutionLeased { .. } | Change::ExecutionsAdded { .. } => true,
            Change::ExecutionFinished { outcome, .. } => outcome.verdict == Verdict::Succeeded,
            _ => false,
        };
        if commutes {
            Self { unordered: self.unordered.wrapping_add(hash), ..self }
        } else {
            Self { ordered: all(&[self.ordered, self.unordered, hash]), unordered: 0 }
        }
    }
}

fn changes<'a>(ledger: &Ledger, list: impl Iterator<Item = &'a Change>) -> u64 {
    list.fold(1, |hash, one| mix(hash, change(ledger, one)))
}

fn server(ledger: &Ledger, server: &Server) -> u64 {
    match server {
        Server::Idle => 0,
        Server::Taken { epoch, mailbox } => all(&[1, *epoch, changes(ledger, mailbox.iter())]),
        Server::Owner(owner) => {
            let Owner { progress, mailbox, retry, made: _, observed } = &**owner;
            all(&[
                2,
                progress.epoch(),
                observed.ordered,
                observed.unordered,
                changes(ledger, mailbox.iter()),
                changes(ledger, retry.iter()),
            ])
        }
    }
}

fn grant(ledger: &Ledger, grant: &Grant) -> u64 {
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
        named(ledger, grant.execution),
        grant.node as u64,
        u64::from(grant.session),
        phase,
        u64::from(grant.results),
        u64::from(grant.ended),
    ])
}

impl World {
    pub(crate) fn fingerprint(&self, run: &downbeat_core::ids::RunId) -> u64 {
        let ledger = &*self.ledger;
        let (state, epoch) = ledger.run(run).expect("the run is created at the beginning");
        let mut hash = all(&[
            state as u64,
            epoch,
            tables(ledger),
            u64::from(self.faults),
            u64::from(self.breaches.old_owner),
            u64::from(self.breaches.ended_moved),
            u64::from(self.breaches.feed),
        ]);
        // It makes no difference which server is which.
        let mut servers: Vec<u64> = self.servers.iter().map(|one| server(ledger, one)).collect();
        servers.sort_unstable();
        hash = servers.into_iter().fold(hash, mix);
        for (node, agent) in self.agents.iter().enumerate() {
            hash = mix(hash, u64::from(*agent));
            let registered = ledger.session(node_id(node)).map_or(0, session_number);
            hash = mix(hash, u64::from(registered));
        }
        let grants = self.grants.iter().map(|one| grant(ledger, one)).fold(0, u64::wrapping_add);
        mix(hash, grants)
    }
}

impl Hash for World {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(self.fingerprint(&super::setup::run_id()));
    }
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        let run = super::setup::run_id();
        self.fingerprint(&run) == other.fingerprint(&run)
    }
}
