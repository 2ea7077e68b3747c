//! Checks that the event feed has no gap and no repetition, is equal on all servers, and reached the followers.

use super::Findings;
use crate::evidence::{Event, Evidence};

pub(super) fn gapless(evidence: &Evidence, findings: &mut Findings) {
    for (server, feed) in evidence.feeds.iter().enumerate() {
        let wrong = feed.iter().zip(1..).find(|(event, seq)| event.seq != *seq);
        if let Some((event, seq)) = wrong {
            let text = format!("server {server}: event {} where {seq} belongs", event.seq);
            findings.note("the feed has no gap", text);
        }
    }
    let Some((first, others)) = evidence.feeds.split_first() else {
        findings.note("the feed can be read", "no server listed it");
        return;
    };
    for (server, feed) in others.iter().enumerate() {
        if feed.len() != first.len() {
            let text =
                format!("server {} has {} events, server 0 has {}", server + 1, feed.len(), first.len());
            findings.note("the feed is the same everywhere", text);
        } else if let Some((a, b)) = first.iter().zip(feed).find(|(a, b)| a != b) {
            findings.note("the feed is the same everywhere", format!("server {}: {a:?}, {b:?}", server + 1));
        }
    }
}

pub(super) fn watched(evidence: &Evidence, findings: &mut Findings) {
    let Some(feed) = evidence.feeds.first() else { return };
    for (watcher, got) in evidence.watched.iter().enumerate() {
        let wrong = got.iter().zip(1..).find(|((seq, _), expected)| seq != expected);
        if let Some(((seq, _), expected)) = wrong {
            let text = format!("watcher {watcher}: event {seq} where {expected} belongs");
            findings.note("streams resume without gap or repetition", text);
        }
        if got.len() != feed.len() {
            let text = format!("watcher {watcher} got {} of {} events", got.len(), feed.len());
            findings.note("streams are complete", text);
        }
        // The events of a deleted cluster lose their kind.
        let is_same = |kind: &str, event: &Event| kind == event.kind || event.kind == "removed";
        let other = got.iter().zip(feed).find(|((_, kind), event)| !is_same(kind, event));
        if let Some(((seq, kind), event)) = other {
            let text = format!("watcher {watcher}: {seq} was {kind} and is {}", event.kind);
            findings.note("streams match the records", text);
        }
    }
}
