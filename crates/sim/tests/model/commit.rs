//! Owns the model's only write path: every change goes through the store's real guards, and each commit is checked at
//! once.

use std::ops::RangeInclusive;
use std::sync::Arc;

use downbeat_core::execution::{Lease, State};
use downbeat_core::ids::ExecutionId;
use downbeat_core::node::NodeStatus;
use downbeat_core::state::{Tables, Verdicts};
use downbeat_core::{Applied, Change};

use super::setup::{Broken, Protocol, run_id, time};
use super::world::{Grant, Phase, World, node_id, node_index, session_id, session_number};

impl Protocol {
    /// Commits, and delivers the changes to every server that owns the run.
    pub(crate) fn commit(&self, world: &mut World, mut changes: Vec<Change>) -> Vec<Applied> {
        let before = Arc::clone(&world.tables);
        let tables = Arc::make_mut(&mut world.tables);
        let shown: Vec<Option<u64>> = changes.iter().map(epoch).collect();
        for change in &mut changes {
            self.broken.bend(tables, change, &world.grants);
        }
        // Replaying a single change repeats the same call, so it proves nothing.
        let replayed = changes.len() > 1 || self.broken == Broken::ForgetfulFeed;
        let ground = replayed.then(|| tables.clone());
        let Verdicts { outcomes, applied, .. } = tables.apply_all(&changes);
        let first_seq = world.last_seq + 1;
        world.last_seq += applied.len() as u64;
        let feed = self.feed((first_seq..).zip(applied.iter().map(|&place| &changes[place])));
        world.breaches.old_owner |= wrote_as_old_owner(&before, &shown, &outcomes);
        world.breaches.ended_moved |= ended_moved(&before, &world.tables);
        if let Some(ground) = ground {
            world.breaches.feed |= !feed_explains(ground, &world.tables, first_seq..=world.last_seq, &feed);
        }
        changes
            .iter()
            .zip(&outcomes)
            .filter(|(_, outcome)| outcome.is_ok())
            .for_each(|(change, _)| note(world, change));
        for (_, change) in feed.into_iter().filter(|(_, change)| concerns_engine(change)) {
            let World { servers, tables, .. } = world;
            servers.iter_mut().for_each(|server| server.receive(change, tables));
        }
        outcomes
    }

    /// Returns the applied changes with their numbers.
    fn feed<'a>(&self, numbered: impl Iterator<Item = (u64, &'a Change)>) -> Vec<(u64, &'a Change)> {
        let mut feed: Vec<_> = numbered.collect();
        if self.broken == Broken::ForgetfulFeed {
            feed.retain(|(_, change)| !matches!(change, Change::ExecutionLost { .. }));
        }
        feed
    }
}

/// Returns the epoch that a change carries.
fn epoch(change: &Change) -> Option<u64> {
    match change {
        Change::ExecutionsAdded { epoch, .. }
        | Change::ExecutionCancelRequested { epoch, .. }
        | Change::ExecutionGivenUp { epoch, .. }
        | Change::ExecutionSkipped { epoch, .. }
        | Change::InstanceFailed { epoch, .. }
        | Change::RunMoved { epoch, .. } => Some(*epoch),
        _ => None,
    }
}

fn wrote_as_old_owner(before: &Tables, shown: &[Option<u64>], outcomes: &[Applied]) -> bool {
    let Some(current) = before.runs.get(&run_id()).map(|run| run.epoch) else { return false };
    let applied = shown.iter().zip(outcomes).filter(|(_, outcome)| outcome.is_ok());
    applied.filter_map(|(epoch, _)| *epoch).any(|epoch| epoch != current)
}

fn ended_moved(before: &Tables, after: &Tables) -> bool {
    let mut ended = before.executions.values().filter(|execution| !execution.state.status().is_open());
    let run = before.runs.get(&run_id());
    let state = |id| after.executions.get(id).map(|execution| &execution.state);
    ended.any(|execution| state(&execution.id) != Some(&execution.state))
        || run.is_some_and(|run| run.is_ended() && after.runs.get(&run_id()) != Some(run))
}

/// Checks that the numbers have no gap, and that applying the events one by one to the old tables results in the new
/// ones.
fn feed_explains(
    mut replica: Tables,
    after: &Tables,
    seqs: RangeInclusive<u64>,
    feed: &[(u64, &Change)],
) -> bool {
    let mut changes = feed.iter().map(|(_, change)| std::slice::from_ref(*change));
    feed.iter().map(|(seq, _)| *seq).eq(seqs)
        && changes.all(|change| replica.apply_all(change).outcomes[0].is_ok())
        && replica == *after
}

fn concerns_engine(change: &Change) -> bool {
    match change {
        Change::ExecutionsAdded { executions, .. } => {
            executions.iter().any(|execution| matches!(execution.state, State::Leased { .. }))
        }
        Change::ExecutionLeased { .. }
        | Change::ExecutionFinished { .. }
        | Change::ExecutionLost { .. }
        | Change::ApprovalDecided { .. }
        | Change::ExecutionCancelRequested { .. }
        | Change::ExecutionGivenUp { .. }
        | Change::ExecutionSkipped { .. }
        | Change::RunCancelRequested { .. }
        | Change::RunPauseSet { .. }
        | Change::RunAdmitted { .. }
        | Change::NodeDeleted { .. } => true,
        Change::NodeMoved { to, .. } => *to == NodeStatus::Offline,
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
        | Change::ExecutionStarted { .. }
        | Change::InstanceFailed { .. }
        | Change::RunCreated { .. }
        | Change::RunTaken { .. }
        | Change::RunChecked { .. }
        | Change::RunActed { .. }
        | Change::RunWoken { .. }
        | Change::RunMoved { .. }
        | Change::NodeRegistered { .. }
        | Change::NodeDrainSet { .. }
        | Change::NodeProblemsSet { .. }
        | Change::DeliveryQueued { .. }
        | Change::DeliveryTaken { .. }
        | Change::DeliveryTried { .. }
        | Change::DeliveryRequested { .. }
        | Change::Unknown { .. } => false,
    }
}

/// Updates the list of leases.
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
    /// Lets this change pass a guard that is broken on purpose.
    fn bend(self, tables: &mut Tables, change: &mut Change, grants: &[Grant]) {
        match self {
            Broken::NoFencing => no_fencing(tables, change, grants),
            Broken::NoEpochGuard => no_epoch_guard(tables, change),
            Broken::NoPendingGuard => {
                if let Change::ExecutionLeased { execution, .. } = change {
                    force(tables, *execution, State::Pending { not_before: None });
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

fn no_fencing(tables: &mut Tables, change: &Change, grants: &[Grant]) {
    let Change::ExecutionFinished { execution, token, .. } = change else { return };
    let Some(grant) = grants.iter().find(|grant| grant.token == *token) else { return };
    let (node, session) = (node_id(grant.node), session_id(grant.session));
    let lease = Lease { token: *token, node, session, granted_at: time(1) };
    force(tables, *execution, State::Leased { lease, stop: false });
}

/// Sets an execution's state without any guard.
fn force(tables: &mut Tables, id: ExecutionId, state: State) {
    if let Some(execution) = tables.executions.get_mut(&id) {
        execution.state = state;
    }
}

fn no_epoch_guard(tables: &Tables, change: &mut Change) {
    let Some(current) = tables.runs.get(&run_id()).map(|run| run.epoch) else { return };
    match change {
        Change::ExecutionsAdded { epoch, .. }
        | Change::ExecutionCancelRequested { epoch, .. }
        | Change::ExecutionGivenUp { epoch, .. }
        | Change::ExecutionSkipped { epoch, .. }
        | Change::InstanceFailed { epoch, .. }
        | Change::RunMoved { epoch, .. } => *epoch = current,
        _ => {}
    }
}
