//! Owns the rules that hold in every reachable world, and the worlds that must be reachable.

use downbeat_core::execution::{Execution, State, Status};
use downbeat_core::ids::NodeId;
use downbeat_core::plan::StepIx;
use downbeat_core::run::RunState;
use stateright::Property;

use super::setup::Protocol;
use super::world::{Grant, Memory, Phase, World, session_number};

pub(crate) const ONE_RESULT: &str = "an execution has at most one applied result";
pub(crate) const ONE_LEASE: &str = "at most one attempt of an instance has a lease";
pub(crate) const ONE_ATTEMPT: &str = "at most one attempt of an instance is open";
pub(crate) const OLD_OWNER: &str = "an old owner never changes the run";
pub(crate) const BARRIER: &str = "no step starts before its dependencies have ended everywhere";
pub(crate) const RECEIPT: &str = "an acknowledged result stays in the store forever";
pub(crate) const OUTBOX: &str = "an agent's finished work is reported before its next session registers";
pub(crate) const FEED: &str = "the feed has no gap and replaying it results in the tables";
pub(crate) const ENDED: &str = "an ended execution never changes";
pub(crate) const NOTHING_LEFT: &str = "a run that has ended has nothing open";
pub(crate) const COMPLETED: &str = "a completed run has one success of every instance";
pub(crate) const ENDS: &str = "every run ends, despite all faults";

pub(crate) fn properties(protocol: &Protocol) -> Vec<Property<Protocol>> {
    let mut properties = vec![
        Property::always(ONE_RESULT, |_, world| one_result(world)),
        Property::always(ONE_LEASE, |_, world| one_lease(world)),
        Property::always(ONE_ATTEMPT, |_, world| one_attempt(world)),
        Property::always(OLD_OWNER, |_, world: &World| !world.breaches.old_owner),
        Property::always(BARRIER, barrier_holds),
        Property::always(RECEIPT, |_, world| receipts_hold(world)),
        Property::always(OUTBOX, |_, world| outbox_holds(world)),
        Property::always(FEED, |_, world: &World| !world.breaches.feed),
        Property::always(ENDED, |_, world: &World| !world.breaches.ended_moved),
        Property::always(NOTHING_LEFT, |_, world| nothing_left(world)),
        Property::always(COMPLETED, completed_holds),
        // No path is a cycle: every step uses a fault or makes progress. So this checks that each path, however long
        // and unfair, reaches a world in which the run has ended.
        Property::eventually(ENDS, |_, world| has_ended(world)),
    ];
    if protocol.faults > 0 {
        properties.extend([
            Property::sometimes("a run completes", |_, world| is(world, RunState::Completed)),
            Property::sometimes("a run that was taken over completes", |_, world| {
                is(world, RunState::Completed) && epoch(world) > 1
            }),
            Property::sometimes("a run whose agent died completes", |_, world: &World| {
                is(world, RunState::Completed) && world.agents.iter().any(|session| *session > 1)
            }),
            Property::sometimes("a lost attempt is resent, and the run completes", |_, world| {
                is(world, RunState::Completed) && of_status(world, Status::Lost).count() > 0
            }),
            Property::sometimes("a result arrives after its lease was lost", |_, world: &World| {
                let late = |grant: &&Grant| grant.verdict().is_some() && grant.results == 0 && grant.ended;
                world.grants.iter().any(|grant| late(&grant))
            }),
            Property::sometimes("two servers believe that they own the run", |_, world: &World| {
                world.servers.iter().all(|server| server.epoch().is_some())
            }),
        ]);
    }
    if protocol.detail.silence && protocol.plan.entries.iter().any(|entry| entry.set.is_some()) {
        properties.push(Property::sometimes(
            "work is given up because its node is offline",
            |_, world: &World| {
                world
                    .tables
                    .executions
                    .values()
                    .any(|one| matches!(one.state, State::Failed { lease: None, .. }))
            },
        ));
    }
    if protocol.detail.cancel {
        properties.push(Property::sometimes("a run is cancelled", |_, world| is(world, RunState::Cancelled)));
    }
    properties
}

fn is(world: &World, state: RunState) -> bool {
    world.run().state() == state
}

fn epoch(world: &World) -> u64 {
    world.run().epoch
}

fn has_ended(world: &World) -> bool {
    world.run().state().is_terminal()
}

fn of_status(world: &World, status: Status) -> impl Iterator<Item = &Execution> {
    world.tables.executions.values().filter(move |execution| execution.state.status() == status)
}

fn instance(execution: &Execution) -> (u32, Option<NodeId>) {
    (execution.step(), execution.pinned)
}

fn one_result(world: &World) -> bool {
    world.grants.iter().all(|grant| {
        let same = world.grants.iter().filter(|other| other.execution == grant.execution);
        same.map(|grant| grant.results).sum::<u8>() <= 1
    })
}

fn one_lease(world: &World) -> bool {
    let open: Vec<_> = world
        .grants
        .iter()
        .filter(|grant| !grant.ended)
        .map(|grant| instance(world.execution(grant.execution)))
        .collect();
    all_different(&open)
}

fn one_attempt(world: &World) -> bool {
    let open: Vec<_> = world
        .tables
        .executions
        .values()
        .filter(|execution| execution.state.status().is_open())
        .map(instance)
        .collect();
    all_different(&open)
}

fn all_different<T: PartialEq>(list: &[T]) -> bool {
    list.iter().enumerate().all(|(at, one)| !list[..at].contains(one))
}

fn barrier_holds(protocol: &Protocol, world: &World) -> bool {
    let plan = &protocol.plan;
    world.tables.executions.values().all(|execution| {
        let entry = plan.entry_of_step(StepIx(execution.step()));
        entry.after.iter().all(|before| {
            let instances = plan.nodes_of(*before).map_or(1, <[_]>::len);
            plan.entries[*before].steps().all(|step| {
                let of_step = || world.tables.executions.values().filter(move |other| other.step() == step.0);
                let first = of_step().filter(|other| other.attempt == 1).count();
                first >= instances && of_step().all(|other| !other.state.status().is_open())
            })
        })
    })
}

fn receipts_hold(world: &World) -> bool {
    let acknowledged =
        world.grants.iter().filter(|grant| matches!(grant.phase, Phase::Gone(_, Memory::Recorded)));
    acknowledged.into_iter().all(|grant| {
        let state = &world.execution(grant.execution).state;
        let by_it = state.lease().is_some_and(|lease| lease.token == grant.token);
        let ended = matches!(state, State::Succeeded { .. } | State::Failed { .. } | State::Cancelled { .. });
        by_it && ended && grant.results == 1
    })
}

fn outbox_holds(world: &World) -> bool {
    world.tables.executions.values().filter(|execution| execution.state.status().is_open()).all(|execution| {
        let Some(lease) = execution.state.lease() else { return true };
        let grant = world.grant(lease.token);
        let superseded = world.registered(grant.node) > session_number(lease.session);
        !(superseded && grant.verdict().is_some())
    })
}

fn nothing_left(world: &World) -> bool {
    !has_ended(world) || world.tables.executions.values().all(|execution| !execution.state.status().is_open())
}

fn completed_holds(protocol: &Protocol, world: &World) -> bool {
    if !is(world, RunState::Completed) {
        return true;
    }
    let succeeded: Vec<_> = of_status(world, Status::Succeeded).map(instance).collect();
    let recorded = |execution: &Execution| {
        world.grants.iter().any(|grant| grant.execution == execution.id && grant.results == 1)
    };
    succeeded.len() == protocol.plan.instances()
        && all_different(&succeeded)
        && of_status(world, Status::Succeeded).all(recorded)
}
