//! Finds the events that a server has to follow again when it starts.

use std::collections::BTreeSet;

use downbeat_core::ids::RunId;
use downbeat_core::{Change, Event, Portion, limits};
use downbeat_store::{self as store, EventFilter};

use crate::service::Service;

/// Events that are read again at most. Servers write a mark far more often.
const BACK: u64 = 20_000;

/// What the events before the start of a server say.
#[derive(Debug)]
pub(super) struct Past {
    /// The event from which all later ones are followed again.
    pub(super) mark: u64,
    /// The runs after the mark that exist, or were refused.
    pub(super) settled: BTreeSet<RunId>,
}

/// Reads backwards from an event to the last mark. Notes which jobs were changed on the way: earlier events do not start
/// them.
pub(super) async fn past(service: &Service, last: u64) -> Result<Past, store::Error> {
    let mut past = Past { mark: last, settled: BTreeSet::new() };
    if !service.parts.jobs.follow_events() {
        return Ok(past);
    }
    let step = limits::EVENTS_AT_ONCE as u64;
    // A mark is written some events after those that it covers: the events in between are read, too.
    let (mut first, mut mark) = (last, None);
    while first > mark.unwrap_or(0) && last - first < BACK {
        let from = first.saturating_sub(step);
        for event in events(service, from, first).await? {
            match &event.change {
                Change::TriggersFollowed { until, .. } => mark = mark.max(Some(*until)),
                Change::RunCreated { run, .. } => _ = past.settled.insert(run.id.clone()),
                Change::JobNotTriggered { run, .. } => _ = past.settled.insert(run.clone()),
                Change::JobApplied { job, .. } => service.parts.jobs.starts_after(&job.key, event.seq),
                Change::JobPauseSet { job, .. } => service.parts.jobs.starts_after(job, event.seq),
                _ => {}
            }
        }
        first = from;
    }
    past.mark = mark.unwrap_or(first);
    Ok(past)
}

/// Returns the events after `since` up to `last`, or the first of them.
pub(super) async fn events(service: &Service, since: u64, last: u64) -> Result<Vec<Event>, store::Error> {
    let mut found: Vec<Event> = Vec::new();
    let portion = Portion { rows: limits::EVENTS_AT_ONCE, bytes: limits::EVENTS_AT_ONCE_BYTES };
    let mut position = since;
    while position < last {
        let filter = EventFilter { since: position, run: None };
        let some = service.parts.store.events(&filter, portion).await?;
        // Events that are no longer kept.
        let Some(end) = some.last().map(|event| event.seq) else { break };
        position = end;
        found.extend(some.into_iter().filter(|event| event.seq <= last));
    }
    Ok(found)
}
