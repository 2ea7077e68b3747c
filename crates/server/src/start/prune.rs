//! Removes what the settings of retention do not keep, old executions of standing tasks, and debug commands that ended long
//! ago. The store removes in small transactions with pauses between them: a call may take as long as an hour.

use downbeat_core::retention::{StandingKept, StandingRule};
use downbeat_core::{Timestamp, debug};
use downbeat_store::{self as store, Removed};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::parts::Parts;
use crate::volume;

/// How many runs, or executions of standing tasks, are removed in one call.
const PRUNE_MOST: u32 = 500;

pub(super) async fn prune(parts: Parts, stop: CancellationToken) {
    let every = parts.settings.clean_every.0;
    while stop.run_until_cancelled(tokio::time::sleep(every)).await.is_some() {
        // Whatever is left in the middle is removed by the next server.
        stop.run_until_cancelled(clean(&parts)).await;
    }
}

/// Removes everything that is too old now.
pub(super) async fn clean(parts: &Parts) {
    prune_debug(parts).await;
    // Without retention by age no run is old; the other cleanup of this call still runs.
    let before = parts.settings.retention().old_before(parts.clock.now());
    prune_standing(parts, before).await;
    if let Err(error) = prune_old(parts, before).await {
        warn!(%error, "cannot remove old runs");
    }
    if let Err(error) = prune_excess(parts).await {
        warn!(%error, "cannot remove the oldest runs, events and output");
    }
}

async fn prune_old(parts: &Parts, before: Timestamp) -> Result<(), store::Error> {
    loop {
        let runs = parts.store.prune(before, PRUNE_MOST).await?;
        if runs > 0 {
            info!(runs, "removed runs older than the retention");
        }
        if runs < u64::from(PRUNE_MOST) {
            return Ok(());
        }
    }
}

/// Removes the oldest of what the store holds too much of.
async fn prune_excess(parts: &Parts) -> Result<(), store::Error> {
    let rules = parts.settings.retention();
    if !rules.is_limited() {
        return Ok(());
    }
    loop {
        let held = volume::read(parts.store.as_ref()).await?;
        let excess = rules.excess(&held, parts.clock.now());
        if excess.is_nothing() {
            return Ok(());
        }
        let Removed { runs, events, output_bytes } = parts.store.prune_excess(&excess, PRUNE_MOST).await?;
        if (runs, events, output_bytes) == (0, 0, 0) {
            // The rest is too young, open, or output of standing tasks.
            return Ok(());
        }
        info!(runs, events, output_bytes, "removed the oldest runs, events and output");
    }
}

/// Removes old executions of standing tasks: those beyond the last few of each node and task, and those of tasks and nodes
/// that were deleted before `before`.
async fn prune_standing(parts: &Parts, before: Timestamp) {
    let rule = StandingRule { attempts: parts.settings.keep_executions, before };
    let kept = StandingKept::of(rule, parts.standing.clusters().iter().map(AsRef::as_ref));
    loop {
        match parts.store.prune_standing(&kept, PRUNE_MOST).await {
            Ok(executions) => {
                if executions > 0 {
                    info!(executions, "removed old executions of standing tasks");
                }
                if executions < u64::from(PRUNE_MOST) {
                    return;
                }
            }
            Err(error) => {
                warn!(%error, "cannot remove old executions of standing tasks");
                return;
            }
        }
    }
}

/// Removes the debug commands that core no longer keeps.
pub(super) async fn prune_debug(parts: &Parts) {
    let before = debug::kept_since(parts.clock.now());
    loop {
        match parts.store.prune_debug(before, PRUNE_MOST).await {
            Ok(commands) => {
                if commands > 0 {
                    info!(commands, "removed debug commands");
                }
                if commands < u64::from(PRUNE_MOST) {
                    return;
                }
            }
            Err(error) => {
                warn!(%error, "cannot remove old debug commands");
                return;
            }
        }
    }
}
