//! Checks that the feed has no gaps and that the tables can be rebuilt from it.

use std::collections::BTreeSet;

use downbeat_core::{Change, Event};
use downbeat_store::{Executions as _, MemoryStore, Store};

use super::evidence::{Evidence, Tables};
use super::{Checker, Findings, clusters};

/// Applies the feed to an empty store, one event at a time. No event may be refused.
pub(super) async fn replay(events: &[Event]) -> Result<Tables, String> {
    let store = MemoryStore::new();
    let mut followed = BTreeSet::new();
    for event in events {
        let mut change = event.change.clone();
        // The feed does not show what was committed together, which the store demands: the end must be there, followed once.
        if let Change::ExecutionsAdded { after, .. } = &mut change
            && let Some(end) = after.take()
        {
            let ended = store.execution(end.execution).await.expect("the memory store does not fail");
            let has_ended = ended.is_some_and(|execution| execution.state.status() == end.status);
            if !has_ended || !followed.insert(end.execution) {
                return Err(format!("event {} follows {end:?}, which it cannot", event.seq));
            }
        }
        let committed = store.commit(event.server, &[change]).await;
        if let Err(refusal) = &committed.expect("the memory store does not fail").outcomes[0] {
            return Err(format!("event {} ({}) is refused: {refusal}", event.seq, event.change.kind()));
        }
    }
    Ok(Tables::of(&store).await)
}

pub(super) fn check(evidence: &Evidence) -> Findings {
    let mut findings = Findings::of(Checker::Feed);
    // Pruning removes the oldest events: it ends with one that is old enough.
    let oldest = evidence.kept.first().map_or(evidence.last_seq + 1, |event| event.seq);
    let last_removed =
        usize::try_from(oldest).ok().and_then(|oldest| evidence.events.get(oldest.checked_sub(2)?));
    let is_old =
        |event: &Event| evidence.truth.pruned_before.is_some_and(|before| event.change.at() < before);
    let first = if last_removed.is_some_and(is_old) { oldest } else { 1 };
    for (expected, event) in (first..).zip(&evidence.kept) {
        if event.seq != expected {
            findings.add(format!("event {expected} is missing; {} follows", event.seq));
            break;
        }
        let index = usize::try_from(expected - 1).expect("sequence numbers are small here");
        let committed = evidence.events.get(index);
        // `clusters` checks that these are blank.
        let is_removed = committed.is_some_and(|event| evidence.homes.removed(event).is_some());
        if committed != Some(event) && !(is_removed && clusters::is_blank(event)) {
            findings.add(format!("event {expected} is not the one that was committed: {event:?}"));
        }
    }
    if evidence.kept.last().map_or(first - 1, |event| event.seq) != evidence.last_seq {
        findings.add(format!("the feed does not end with the last event, {}", evidence.last_seq));
    }
    let replayed = match &evidence.replayed {
        Ok(replayed) => replayed,
        Err(why) => {
            findings.add(format!("the feed cannot be replayed: {why}"));
            return findings;
        }
    };
    let tables = &evidence.tables;
    for (id, run) in &tables.runs {
        if replayed.runs.get(id) != Some(run) {
            findings.add(format!("replayed, run {id} is {:?}, not {run:?}", replayed.runs.get(id)));
        }
    }
    for (id, execution) in &tables.executions {
        if replayed.executions.get(id) != Some(execution) {
            let other = replayed.executions.get(id);
            findings.add(format!("replayed, execution {id} is {other:?}, not {execution:?}"));
        }
    }
    if replayed.clusters != tables.clusters {
        let (left, right) = (&replayed.clusters, &tables.clusters);
        findings.add(format!("after the replay the clusters are {left:?}, expected {right:?}"));
    }
    if replayed.jobs != tables.jobs {
        findings
            .add(format!("after the replay the jobs are {:?}, expected {:?}", replayed.jobs, tables.jobs));
    }
    if replayed.nodes != tables.nodes {
        findings
            .add(format!("after the replay the nodes are {:?}, expected {:?}", replayed.nodes, tables.nodes));
    }
    if (replayed.runs.len(), replayed.executions.len()) != (tables.runs.len(), tables.executions.len()) {
        findings.add("the replayed tables have extra rows".to_owned());
    }
    findings
}
