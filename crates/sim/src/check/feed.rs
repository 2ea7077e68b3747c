//! Checks that the feed has no gaps and that the tables can be rebuilt from it.

use downbeat_core::Event;
use downbeat_store::{MemoryStore, Store};

use super::evidence::{Evidence, Tables};
use super::{Checker, Findings};

/// Applies the feed to an empty store, one event at a time. No event may be refused.
pub(super) async fn replay(events: &[Event]) -> Result<Tables, String> {
    let store = MemoryStore::new();
    for event in events {
        let committed = store.commit(event.server, std::slice::from_ref(&event.change)).await;
        if let Err(refusal) = &committed.expect("the memory store does not fail").outcomes[0] {
            return Err(format!("event {} ({}) is refused: {refusal}", event.seq, event.change.kind()));
        }
    }
    Ok(Tables::of(&store).await)
}

pub(super) fn check(evidence: &Evidence) -> Findings {
    let mut findings = Findings::of(Checker::Feed);
    for (expected, event) in (1..).zip(&evidence.events) {
        if event.seq != expected {
            findings.add(format!("event {expected} is missing; {} follows", event.seq));
            break;
        }
    }
    if evidence.events.last().map_or(0, |event| event.seq) != evidence.last_seq {
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
    if replayed.nodes != tables.nodes {
        findings
            .add(format!("after the replay the nodes are {:?}, expected {:?}", replayed.nodes, tables.nodes));
    }
    if (replayed.runs.len(), replayed.executions.len()) != (tables.runs.len(), tables.executions.len()) {
        findings.add("the replayed tables have extra rows".to_owned());
    }
    findings
}
