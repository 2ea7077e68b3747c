//! Removes runs that are older than the retention, old executions of standing tasks, and debug commands that ended long
//! ago.

use std::time::Duration;

use downbeat_core::ids::RunId;
use downbeat_core::standing::StandingTask;
use downbeat_core::{Timestamp, debug};
use jiff::SignedDuration;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::parts::Parts;

/// How often old runs are removed, and how many at once.
const PRUNE_EVERY: Duration = Duration::from_secs(60);
const PRUNE_MOST: u32 = 500;

pub(super) async fn prune(parts: Parts, stop: CancellationToken) {
    let days = i64::from(parts.settings.retention_days);
    while stop.run_until_cancelled(tokio::time::sleep(PRUNE_EVERY)).await.is_some() {
        prune_debug(&parts, &stop).await;
        // Without retention, or with one longer than the calendar, no run is removed; the other cleanup still runs.
        let kept = SignedDuration::from_hours(24 * days);
        let before = parts.clock.now().checked_sub(kept).ok().filter(|_| days > 0);
        let before = before.unwrap_or(Timestamp::UNIX_EPOCH);
        prune_standing(&parts, before, &stop).await;
        loop {
            match parts.store.prune(before, PRUNE_MOST).await {
                Ok(0) => break,
                Ok(runs) => {
                    info!(runs, "removed runs older than the retention");
                    if runs < u64::from(PRUNE_MOST) || stop.is_cancelled() {
                        break;
                    }
                }
                Err(error) => {
                    warn!(%error, "cannot remove old runs");
                    break;
                }
            }
        }
    }
}

/// Removes old executions of standing tasks: those beyond the last few of each node and task, and those of tasks that were
/// deleted before `before`.
pub(super) async fn prune_standing(parts: &Parts, before: Timestamp, stop: &CancellationToken) {
    let keep = parts.settings.keep_executions.max(1);
    let deleted: Vec<(RunId, Vec<u32>)> = parts
        .standing
        .clusters()
        .iter()
        .map(|cluster| {
            let is_old = |task: &&StandingTask| task.deleted_at.is_some_and(|at| at < before);
            let steps = cluster.list.deleted.iter().filter(is_old).map(|task| task.number).collect();
            (RunId::standing(cluster.id), steps)
        })
        .filter(|(_, steps): &(RunId, Vec<u32>)| !steps.is_empty())
        .collect();
    while !stop.is_cancelled() {
        match parts.store.prune_standing(&deleted, keep, PRUNE_MOST).await {
            Ok(0) => return,
            Ok(executions) => info!(executions, "removed old executions of standing tasks"),
            Err(error) => {
                warn!(%error, "cannot remove old executions of standing tasks");
                return;
            }
        }
    }
}

/// Removes the debug commands that core no longer keeps.
pub(super) async fn prune_debug(parts: &Parts, stop: &CancellationToken) {
    let before = debug::kept_since(parts.clock.now());
    while !stop.is_cancelled() {
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
