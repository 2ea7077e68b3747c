//! Owns a server's work on a run: it lets the real engine decide, commits the result, and drops the run when a commit
//! shows that another server owns it.

use std::collections::VecDeque;
use std::sync::Arc;

use downbeat_core::execution::{Execution, Lease, State};
use downbeat_core::ids::{ExecutionId, LeaseToken};
use downbeat_core::level::LEVEL;
use downbeat_core::node::Reach;
use downbeat_core::run::RunRecord;
use downbeat_core::run::engine::{Progress, Stop, Turn};
use downbeat_core::state::Tables;
use downbeat_core::{Applied, Change, Dice, Refusal};
use uuid::Uuid;

use super::setup::{Broken, Protocol, Sighting, run_id, server_id, time};
use super::world::{Grant, Observed, Owner, Server, World, is_offline, node_id, node_index, session_id};

/// Whether the committer receives the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Heard,
    Lost,
}

/// The initial state of new executions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Birth {
    Pending,
    /// Placed ones get a lease on this node.
    Leased(usize),
}

/// Returns an unused token.
pub(crate) fn token(execution: ExecutionId, grants: &[Grant]) -> LeaseToken {
    let earlier = grants.iter().filter(|grant| grant.execution == execution).count();
    LeaseToken(Uuid::from_u128(execution.0.as_u128().wrapping_add(1 + earlier as u128)))
}

pub(crate) fn lease(execution: ExecutionId, node: usize, session: u8, grants: &[Grant]) -> Lease {
    Lease {
        token: token(execution, grants),
        node: node_id(node),
        session: session_id(session),
        granted_at: time(1),
    }
}

impl Protocol {
    /// Creates the run and commits its first turn with it.
    pub(crate) fn submit(&self, world: &mut World) {
        let record = &self.record;
        let progress = Progress::new(Arc::clone(&self.plan), run_id(), record.live.epoch, record.state());
        let mut owner = Owner::new(progress, VecDeque::new(), Observed::nothing());
        let mut changes =
            vec![Change::RunCreated { run: record.clone(), max_pending: None, max_open: None, firing: None }];
        changes.extend(owner.turn(&world.tables, |progress, turn| progress.begin(turn)));
        world.servers[0] = Server::Owner(Arc::new(owner));
        self.commit(world, changes);
    }

    /// Takes the run over. The run is not loaded yet.
    pub(crate) fn take(&self, world: &mut World, server: usize, answer: Answer) {
        let epoch = world.run().epoch;
        let epoch = epoch + 1;
        // The mailbox is open before the commit, so that nothing is missed.
        world.servers[server] = Server::Taken { epoch, mailbox: VecDeque::new() };
        let taken = Change::RunTaken { run: run_id(), owner: server_id(server), epoch, at: time(epoch) };
        let outcomes = self.commit(world, vec![taken]);
        if answer == Answer::Lost || outcomes[0].is_err() {
            world.servers[server] = Server::Idle;
        }
    }

    /// Loads the run and continues it.
    pub(crate) fn load(&self, world: &mut World, server: usize, answer: Answer) -> Option<()> {
        let Server::Taken { epoch, mailbox } = &world.servers[server] else { return None };
        let record = RunRecord { live: world.run().clone(), ..self.record.clone() };
        let executions: Vec<Execution> = world.tables.executions.values().cloned().collect();
        let stop = record.live.cancel_requested_at.map(|_| Stop::Cancelled);
        let observed = Observed::loaded(&world.tables, stop.is_some());
        let plan = Arc::clone(&self.plan);
        let (progress, begins) = if self.broken == Broken::FromTheStart {
            (Progress::new(plan, run_id(), *epoch, record.state()), true)
        } else {
            (Progress::restore(plan, &record, *epoch, &executions, stop), false)
        };
        let mut owner = Owner::new(progress, mailbox.clone(), observed);
        let changes =
            owner.turn(
                &world.tables,
                |progress, turn| if begins { progress.begin(turn) } else { progress.go_on(turn) },
            );
        owner.absorb(&world.tables);
        let ended = owner.progress.is_ended();
        if changes.is_empty() && answer == Answer::Lost {
            return None;
        }
        world.servers[server] = Server::Owner(Arc::new(owner));
        // A refusal is ignored here: the next commit shows it as well.
        self.commit(world, changes);
        if ended || answer == Answer::Lost {
            world.servers[server] = Server::Idle;
        }
        Some(())
    }

    /// Observes the next committed change, and commits the result.
    pub(crate) fn observe(
        &self,
        world: &mut World,
        server: usize,
        answer: Answer,
        birth: Birth,
    ) -> Option<()> {
        let tables = Arc::clone(&world.tables);
        let owner = owner(world, server)?;
        let mut changes = owner.observe(&tables);
        owner.absorb(&tables);
        if let Birth::Leased(node) = birth
            && !reserve(world, &mut changes, node)
        {
            return None;
        }
        let outcomes = self.commit(world, changes.clone());
        match answer {
            Answer::Heard => self.settle(world, server, &outcomes),
            Answer::Lost => owner_of(world, server).retry = release(changes),
        }
        Some(())
    }

    /// Retries a commit whose response was lost.
    pub(crate) fn try_again(&self, world: &mut World, server: usize) -> Option<()> {
        let changes = std::mem::take(&mut owner(world, server)?.retry);
        let outcomes = self.commit(world, changes);
        self.seen.note(Sighting::CommitTriedAgain);
        self.settle(world, server, &outcomes);
        Some(())
    }

    fn settle(&self, world: &mut World, server: usize, outcomes: &[Applied]) {
        let disowned = outcomes.contains(&Err(Refusal::StaleEpoch));
        if disowned {
            self.seen.note(Sighting::OldOwnerRefused);
        }
        if disowned || owner_of(world, server).progress.is_ended() {
            world.servers[server] = Server::Idle;
        }
    }
}

fn owner(world: &mut World, server: usize) -> Option<&mut Owner> {
    match &mut world.servers[server] {
        Server::Owner(owner) => Some(Arc::make_mut(owner)),
        Server::Idle | Server::Taken { .. } => None,
    }
}

fn owner_of(world: &mut World, server: usize) -> &mut Owner {
    owner(world, server).expect("it has just owned the run")
}

/// Leases new executions to nodes that wait for work.
fn reserve(world: &World, changes: &mut [Change], placed: usize) -> bool {
    let mut any = false;
    for change in changes {
        let Change::ExecutionsAdded { executions, .. } = change else { continue };
        for execution in executions {
            if execution.state == (State::Pending { not_before: None }) {
                let node = execution.pinned.and_then(node_index).unwrap_or(placed);
                let lease = lease(execution.id, node, world.registered(node), &world.grants);
                execution.state = State::Leased { lease, stop: false };
                any = true;
            }
        }
    }
    any
}

fn release(mut changes: Vec<Change>) -> Vec<Change> {
    for change in &mut changes {
        let Change::ExecutionsAdded { executions, .. } = change else { continue };
        for execution in executions {
            if matches!(execution.state, State::Leased { .. }) {
                execution.state = State::Pending { not_before: None };
            }
        }
    }
    changes
}

impl Owner {
    fn new(progress: Progress, mailbox: VecDeque<Change>, observed: Observed) -> Self {
        Self { progress, mailbox, retry: Vec::new(), made: 0, observed }
    }

    /// Observes the next committed change, and returns the resulting changes.
    fn observe(&mut self, tables: &Tables) -> Vec<Change> {
        let Some(change) = self.mailbox.pop_front() else { return Vec::new() };
        self.observed = self.observed.and(tables, &change);
        self.turn(tables, |progress, turn| match &change {
            Change::NodeMoved { node, .. } => progress.nodes_gone(&[*node], turn),
            change => progress.observe(change, turn),
        })
    }

    /// Observes changes without consequences.
    pub(crate) fn absorb(&mut self, tables: &Tables) {
        while !self.mailbox.is_empty() {
            let mut trial = self.clone();
            if !trial.observe(tables).is_empty() {
                return;
            }
            *self = trial;
        }
    }

    /// Lets the engine decide. Ids are derived from the epoch and a counter, so they are always the same.
    fn turn(&mut self, tables: &Tables, act: impl FnOnce(&mut Progress, &mut Turn<'_>)) -> Vec<Change> {
        let epoch = self.progress.epoch();
        let mut dice = Dice::new((epoch << 32) | (self.made << 8));
        let reach = |node| if is_offline(tables, node) { Reach::Offline } else { Reach::Here };
        let now = time(epoch);
        act(
            &mut self.progress,
            &mut Turn {
                now,
                dice: &mut dice,
                reach: &reach,
                facts: &|_| None,
                fits: &|_| Ok(()),
                level: LEVEL,
                serving_since: now,
            },
        );
        let changes = self.progress.take_changes(now);
        for change in &changes {
            if let Change::ExecutionsAdded { executions, .. } = change {
                self.made += executions.len() as u64;
            }
        }
        changes
    }
}
