//! Owns the model's one write path: every change goes through the store's real guards, and what a commit did is
//! looked at before anything else happens.

use std::sync::Arc;

use downbeat_core::execution::{Lease, State};
use downbeat_core::ids::ExecutionId;
use downbeat_core::node::NodeStatus;
use downbeat_core::{Applied, Change};
use downbeat_store::{Committed, Ledger};

use super::setup::{Broken, Protocol, run_id, time};
use super::world::{Grant, Phase, World, node_id, node_index, session_id, session_number};

impl Protocol {
    /// Commits, and lets everybody who owns the run hear of it.
    pub(crate) fn commit(&self, world: &mut World, mut changes: Vec<Change>) -> Vec<Applied> {
        let before = Arc::clone(&world.ledger);
        let ledger = Arc::make_mut(&mut world.ledger);
        let shown: Vec<Option<u64>> = changes.iter().map(epoch).collect();
        for change in &mut changes {
            self.broken.bend(ledger, change, &world.grants);
        }
        // Whoever replays a single change does again what was just done: that needs no proof.
        let replayed = changes.len() > 1 || self.broken == Broken::ForgetfulFeed;
        let ground = replayed.then(|| ledger.clone());
        let committed = ledger.commit(&changes);
        let feed = self.feed(&changes, &committed);
        world.breaches.old_owner |= wrote_as_old_owner(&before, &shown, &committed);
        world.breaches.ended_moved |= ended_moved(&before, &world.ledger);
        if let Some(ground) = ground {
            world.breaches.feed |= !feed_explains(ground, &world.ledger, &feed);
        }
        let applied = changes.iter().zip(&committed.seqs).filter(|(_, seq)| seq.is_some());
        applied.for_each(|(change, _)| note(world, change));
        for (_, change) in feed.into_iter().filter(|(_, change)| concerns_engine(change)) {
            let World { servers, ledger, .. } = world;
            servers.iter_mut().for_each(|server| server.hear(change, ledger));
        }
        committed.outcomes
    }

    /// What was applied, in the order of its numbers.
    fn feed<'a>(&self, changes: &'a [Change], committed: &Committed) -> Vec<(u64, &'a Change)> {
        let numbered = changes.iter().zip(&committed.seqs);
        let mut feed: Vec<_> = numbered.filter_map(|(change, seq)| Some(((*seq)?, change))).collect();
        feed.sort_by_key(|(seq, _)| *seq);
        if self.broken == Broken::ForgetfulFeed {
            feed.retain(|(_, change)| !matches!(change, Change::ExecutionLost { .. }));
        }
        feed
    }
}

/// The epoch that a change shows as its right.
fn epoch(change: &Change) -> Option<u64> {
    match change {
        Change::ExecutionsAdded { epoch, .. }
        | Change::ExecutionCancelRequested { epoch, .. }
        | Change::ExecutionGivenUp { epoch, .. }
        | Change::ExecutionSkipped { epoch, .. }
        | Change::RunMoved { epoch, .. } => Some(*epoch),
        _ => None,
    }
}

fn wrote_as_old_owner(before: &Ledger, shown: &[Option<u64>], committed: &Committed) -> bool {
    let Some((_, current)) = before.run(&run_id()) else { return false };
    let applied = shown.iter().zip(&committed.outcomes).filter(|(_, outcome)| outcome.is_ok());
    applied.filter_map(|(epoch, _)| *epoch).any(|epoch| epoch != current)
}

fn ended_moved(before: &Ledger, after: &Ledger) -> bool {
    let mut ended = before.executions().filter(|execution| !execution.state.status().is_open());
    let run = before.run(&run_id());
    ended.any(|execution| after.execution(execution.id) != Some(execution))
        || run.is_some_and(|(state, _)| state.is_terminal() && after.run(&run_id()) != run)
}

/// Numbers follow each other, and whoever has the tables from before and applies the events one by one has the tables
/// from after.
fn feed_explains(mut replica: Ledger, after: &Ledger, feed: &[(u64, &Change)]) -> bool {
    feed.iter().all(|(seq, change)| {
        let again = replica.commit(std::slice::from_ref(*change));
        again.outcomes[0].is_ok() && again.seqs[0] == Some(*seq)
    }) && replica == *after
}

fn concerns_engine(change: &Change) -> bool {
    match change {
        Change::ExecutionsAdded { executions, .. } => {
            executions.iter().any(|execution| matches!(execution.state, State::Leased { .. }))
        }
        Change::ExecutionLeased { .. }
        | Change::ExecutionFinished { .. }
        | Change::ExecutionLost { .. }
        | Change::ExecutionCancelRequested { .. }
        | Change::ExecutionGivenUp { .. }
        | Change::ExecutionSkipped { .. }
        | Change::RunCancelRequested { .. }
        | Change::RunPauseSet { .. }
        | Change::RunAdmitted { .. }
        | Change::NodeDeleted { .. } => true,
        Change::NodeMoved { to, .. } => *to == NodeStatus::Offline,
        Change::ExecutionStarted { .. }
        | Change::RunCreated { .. }
        | Change::RunTaken { .. }
        | Change::RunMoved { .. }
        | Change::NodeRegistered { .. }
        | Change::NodeDrainSet { .. }
        | Change::NodeProblemsSet { .. }
        | Change::Unknown { .. } => false,
    }
}

/// Keeps the list of leases.
fn note(world: &mut World, change: &Change) {
    match change {
        Change::ExecutionLeased { execution, lease, .. } => {
            world.grants.push(granted(*execution, lease));
        }
        Change::ExecutionsAdded { executions, .. } => {
            for execution in executions {
                if let State::Leased { lease, .. } = &execution.state {
                    world.grants.push(granted(execution.id, lease));
                }
            }
        }
        Change::ExecutionFinished { token, .. } => {
            let grant = world.grant_mut(*token);
            grant.results += 1;
            grant.ended = true;
        }
        Change::ExecutionLost { token, .. } => world.grant_mut(*token).ended = true,
        _ => {}
    }
}

fn granted(execution: ExecutionId, lease: &Lease) -> Grant {
    Grant {
        execution,
        token: lease.token,
        node: node_index(lease.node).expect("leases go to the two nodes"),
        session: session_number(lease.session),
        phase: Phase::Sent,
        results: 0,
        ended: false,
    }
}

impl Broken {
    /// Makes a guard let this change through.
    fn bend(self, ledger: &mut Ledger, change: &mut Change, grants: &[Grant]) {
        match self {
            Broken::NoFencing => no_fencing(ledger, change, grants),
            Broken::NoEpochGuard => no_epoch_guard(ledger, change),
            Broken::NoPendingGuard => {
                if let Change::ExecutionLeased { execution, .. } = change {
                    ledger.force(*execution, State::Pending { not_before: None });
                }
            }
            Broken::Nothing
            | Broken::NoOutbox
            | Broken::EarlyReceipt
            | Broken::FromTheStart
            | Broken::ActsOnRumours
            | Broken::NoTakeOver
            | Broken::ForgetfulFeed => {}
        }
    }
}

fn no_fencing(ledger: &mut Ledger, change: &Change, grants: &[Grant]) {
    let Change::ExecutionFinished { execution, token, .. } = change else { return };
    let Some(grant) = grants.iter().find(|grant| grant.token == *token) else { return };
    let (node, session) = (node_id(grant.node), session_id(grant.session));
    let lease = Lease { token: *token, node, session, granted_at: time(1) };
    ledger.force(*execution, State::Leased { lease, stop: false });
}

fn no_epoch_guard(ledger: &Ledger, change: &mut Change) {
    let Some((_, current)) = ledger.run(&run_id()) else { return };
    match change {
        Change::ExecutionsAdded { epoch, .. }
        | Change::ExecutionCancelRequested { epoch, .. }
        | Change::ExecutionGivenUp { epoch, .. }
        | Change::ExecutionSkipped { epoch, .. }
        | Change::RunMoved { epoch, .. } => *epoch = current,
        _ => {}
    }
}
