//! Decides the next steps of the nodes of the clusters that this server owns, and commits them.

use std::time::Duration;

use downbeat_core::change::EndOf;
use downbeat_core::execution::{Execution, State};
use downbeat_core::ids::{ClusterId, ExecutionId, NodeId, RunId};
use downbeat_core::standing::{Start, Walks};
use downbeat_core::work::Origin;
use downbeat_core::{Change, Dice, Refusal, Timestamp, limits};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use super::projection::Following;
use crate::journal::CommitError;
use crate::parts::Parts;

/// The pause before a failed commit is repeated.
const RETRY: Duration = Duration::from_millis(200);
/// Why a pending execution of a deleted node is withdrawn.
const NODE_DELETED: &str = "the node was deleted";

/// The decisions for some nodes of one cluster.
struct Decided {
    cluster: ClusterId,
    nodes: Vec<NodeId>,
    changes: Vec<Change>,
}

/// Decides and commits until `stop` is cancelled.
pub(crate) async fn walk(parts: Parts, stop: CancellationToken) {
    let mut dice = Dice::new(parts.chance.seed());
    while stop.run_until_cancelled(parts.standing.woken()).await.is_some() {
        while let Some(decided) = decide(&parts, &mut dice) {
            if !decided.changes.is_empty() && !commit(&parts, decided, &mut dice, &stop).await {
                return;
            }
        }
    }
}

/// Decides for the nodes that are due, at most for as many as one commit holds.
fn decide(parts: &Parts, dice: &mut Dice) -> Option<Decided> {
    let now = parts.clock.now();
    parts.standing.decide(parts.server, |walks, epoch| decide_for(walks, epoch, now, dice))
}

fn decide_for(walks: &mut Walks, epoch: u64, now: Timestamp, dice: &mut Dice) -> Decided {
    let nodes = walks.take_due(limits::EXECUTIONS_PER_COMMIT);
    let run = walks.run().clone();
    let skipped = |execution: ExecutionId, reason: &str| Change::ExecutionSkipped {
        run: run.clone(),
        execution,
        epoch,
        reason: reason.to_owned(),
        at: now,
    };
    let mut changes: Vec<Change> =
        walks.take_left().into_iter().map(|execution| skipped(execution, NODE_DELETED)).collect();
    let (mut executions, mut sessions) = (Vec::new(), Vec::new());
    for step in nodes.iter().filter_map(|node| walks.step(*node, now)) {
        changes.extend(step.withdrawals.iter().map(|one| skipped(one.execution, one.reason)));
        if let Some(start) = step.start {
            executions.push(execution(&run, step.node, start, dice));
            sessions.push(start.session);
        }
    }
    if !executions.is_empty() {
        let (version, rollout, after) = (Some(walks.cluster().version), None, None);
        changes.push(Change::ExecutionsAdded {
            run,
            epoch,
            executions,
            rollout,
            version,
            sessions,
            after,
            at: now,
        });
    }
    Decided { cluster: walks.cluster().id, nodes, changes }
}

/// Decides which tasks a node starts when these ends are committed: changes for the same commit, to be reserved and released
/// like those of any submitter. If one is refused, [`walk`] decides again.
pub(crate) fn follow_ups(
    parts: &Parts,
    node: NodeId,
    ends: Vec<(RunId, EndOf)>,
    dice: &mut Dice,
) -> Vec<Change> {
    let now = parts.clock.now();
    let follow_up = |(run, after): (RunId, EndOf)| {
        let Following { epoch, version, start } =
            parts.standing.start_after(parts.server, node, &run, after, now)?;
        let (executions, sessions) = (vec![execution(&run, node, start, dice)], vec![start.session]);
        let (rollout, version, after) = (None, Some(version), Some(after));
        Some(Change::ExecutionsAdded { run, epoch, executions, rollout, version, sessions, after, at: now })
    };
    ends.into_iter().filter_map(follow_up).collect()
}

fn execution(run: &RunId, node: NodeId, start: Start, dice: &mut Dice) -> Execution {
    Execution {
        // Guards find executions by the time in their ids.
        id: ExecutionId(dice.uuid_at(start.created_at)),
        of: Origin::Step { run: run.clone(), step: start.number, item: None },
        pinned: Some(node),
        round: 1,
        attempt: start.attempt,
        former: start.former,
        params: None,
        reused: None,
        limits: None,
        cache_key: None,
        failed_for_good: None,
        created_at: start.created_at,
        state: State::Pending { not_before: None },
    }
}

/// Returns the same executions, each in a change of its own; nothing for other changes.
fn apart(change: Change) -> Vec<Change> {
    let Change::ExecutionsAdded { run, epoch, executions, rollout, version, sessions, after, at } = change
    else {
        return Vec::new();
    };
    let alone = |(execution, session)| Change::ExecutionsAdded {
        run: run.clone(),
        epoch,
        executions: vec![execution],
        rollout,
        version,
        sessions: vec![session],
        after,
        at,
    };
    executions.into_iter().zip(sessions).map(alone).collect()
}

/// Commits decisions. The same ones are repeated while the store is unavailable, so that none takes effect twice. Returns
/// false if the server stops.
async fn commit(parts: &Parts, decided: Decided, dice: &mut Dice, stop: &CancellationToken) -> bool {
    let Decided { cluster, nodes, mut changes } = decided;
    parts.dispatcher.reserve(&mut changes, parts.clock.now(), dice);
    loop {
        let committed = tokio::select! {
            biased;
            committed = parts.journal.commit(changes.clone()) => committed,
            () = stop.cancelled() => return false,
        };
        let outcomes = match committed {
            Ok(outcomes) => outcomes,
            Err(CommitError::Rejected(why)) => {
                error!(%cluster, why, "the store will never accept these steps of standing tasks");
                parts.dispatcher.release(&mut changes);
                return true;
            }
            Err(error) => {
                warn!(%cluster, %error, "cannot commit steps of standing tasks; trying again");
                parts.dispatcher.release(&mut changes);
                if stop.run_until_cancelled(tokio::time::sleep(RETRY)).await.is_none() {
                    return false;
                }
                continue;
            }
        };
        let mut again = Vec::new();
        let mut is_outdated = false;
        for (mut change, outcome) in changes.into_iter().zip(outcomes) {
            let Err(refusal) = outcome else { continue };
            parts.dispatcher.refused(&change, &refusal);
            parts.dispatcher.release(std::slice::from_mut(&mut change));
            match refusal {
                // Another run has just taken a node for itself: the executions wait for it.
                Refusal::NodeHeld(_) => again.push(change),
                Refusal::StaleVersion => is_outdated = true,
                // A node has registered, or was deleted: its step is decided again, and the others need not wait for it.
                Refusal::StaleSession | Refusal::NotFound => match apart(change) {
                    all if all.len() > 1 => again.extend(all),
                    one => is_outdated |= !one.is_empty(),
                },
                // Another server owns the run, the cluster was deleted, or an earlier try of this commit succeeded.
                _ => debug!(%cluster, change = change.kind(), %refusal, "refused"),
            }
        }
        if is_outdated {
            // The same decision would be refused again until this server has read what another one changed.
            if stop.run_until_cancelled(catch_up(parts)).await.is_none() {
                return false;
            }
            parts.standing.decide_again(cluster, &nodes);
        }
        if again.is_empty() {
            return true;
        }
        changes = again;
    }
}

/// Waits until this server has performed all that is committed now, or for a moment if the store is unavailable.
async fn catch_up(parts: &Parts) {
    match parts.store.last_seq().await {
        Ok(committed) => parts.feed.reached(committed).await,
        Err(_) => tokio::time::sleep(RETRY).await,
    }
}
