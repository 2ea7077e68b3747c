//! Ends the leases of standing tasks whose agent is alive but does not report their end, as the engine of runs does for
//! other work.

use std::time::Duration;

use downbeat_core::execution::Execution;
use downbeat_core::ids::ExecutionId;
use downbeat_core::work::Parent;
use downbeat_core::{Change, Span, Timestamp, limits};
use downbeat_store as store;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::parts::Parts;

const LOOK_EVERY: Duration = Duration::from_secs(10);
const GRACE: Span = Span::from_secs(limits::REPORT_GRACE_S);

/// Looks for overdue standing tasks of the clusters that this server owns, until `stop` is cancelled.
pub(crate) async fn end_overdue(parts: Parts, stop: CancellationToken) {
    while stop.run_until_cancelled(tokio::time::sleep(LOOK_EVERY)).await.is_some() {
        if let Some(Err(error)) = stop.run_until_cancelled(look(&parts)).await {
            warn!(%error, "cannot end standing tasks that are overdue; trying again");
        }
    }
}

async fn look(parts: &Parts) -> Result<(), store::Error> {
    let now = parts.clock.now();
    let held = parts.standing.held(parts.server);
    // A task is leased after it was created: most need no closer look.
    let old: Vec<ExecutionId> = held
        .into_iter()
        .filter(|(execution, created_at)| overdue_since(parts, *execution, *created_at, now).is_some())
        .map(|(execution, _)| execution)
        .collect();
    for ids in old.chunks(limits::EXECUTIONS_PER_COMMIT) {
        let executions = parts.store.executions_by_id(ids).await?;
        let lost: Vec<Change> =
            executions.iter().filter_map(|execution| lost(parts, execution, now)).collect();
        if !lost.is_empty() {
            parts.journal.commit(lost).await?;
        }
    }
    Ok(())
}

/// Returns the timeout of an execution that was leased at a time, if its end should have been reported by now.
fn overdue_since(parts: &Parts, id: ExecutionId, leased_at: Timestamp, now: Timestamp) -> Option<Duration> {
    let timeout = parts.dispatcher.board().work(id)?.timeout;
    let due = leased_at.checked_add(timeout).ok()?;
    // Agents could not report while no server ran.
    let reported_by = due.max(parts.serving.since(now)).checked_add(GRACE.0).ok()?;
    (reported_by <= now).then_some(timeout)
}

fn lost(parts: &Parts, execution: &Execution, now: Timestamp) -> Option<Change> {
    if !execution.state.status().is_open() {
        return None;
    }
    let lease = execution.state.lease()?;
    let timeout = Span(overdue_since(parts, execution.id, lease.granted_at, now)?);
    Some(Change::ExecutionLost {
        of: Parent::Run(execution.run().clone()),
        execution: execution.id,
        token: lease.token,
        silence: None,
        reason: format!("its agent did not report the end within {GRACE} after the timeout of {timeout}"),
        at: now,
    })
}
