//! Counts the situations that stories contained: a test in which a situation never occurs would always pass.

use std::collections::BTreeMap;

use downbeat_core::execution::Status;

use super::parts::{Given, Stop, Why};
use super::story::Story;

/// The situations that must occur in some of the stories.
pub(crate) const KINDS: [&str; 48] = [
    "all items carried over",
    "budget spent",
    "cancelled between rounds",
    "cancelled after the timeout",
    "cleanup",
    "cleanup takes too long",
    "death",
    "earlier result",
    "earlier result in a roll-out",
    "items",
    "items from an output",
    "items under a bound",
    "no items",
    "no list",
    "no node fits for too long",
    "nothing depends on anything",
    "room is short",
    "round",
    "several changes at once",
    "fail-fast started",
    "lost",
    "node deleted",
    "node offline",
    "output missing",
    "output used",
    "overdue",
    "paused",
    "race",
    "restart",
    "restart that finds changes",
    "stopped",
    "retried",
    "retried from a task",
    "untouched nodes",
    "within the budget",
    "skip: stopped",
    "skip: failure",
    "skip: wave never began",
    "skip: node left",
    "skip: nothing failed",
    "skip: dependency failed",
    "skip: dependency skipped",
    "skip: no dependency failed",
    "skip: node offline",
    "skip: node untouched",
    "skip: node not concerned",
    "skip: failed on this node",
    "skip: nothing failed on this node",
];

const SKIPS: [(&str, Why); 13] = [
    ("skip: stopped", Why::Stopped),
    ("skip: failure", Why::Failure),
    ("skip: wave never began", Why::WaveNeverBegan),
    ("skip: node left", Why::NodeLeft),
    ("skip: nothing failed", Why::NothingFailed),
    ("skip: dependency failed", Why::DependencyFailed),
    ("skip: dependency skipped", Why::DependencySkipped),
    ("skip: no dependency failed", Why::NoDependencyFailed),
    ("skip: node offline", Why::NodeOffline),
    ("skip: node untouched", Why::NodeUntouched),
    ("skip: node not concerned", Why::NodeNotConcerned),
    ("skip: failed on this node", Why::FailedOnThisNode),
    ("skip: nothing failed on this node", Why::NothingFailedOnThisNode),
];

/// The number of times each situation occurred, so that a test can check that none is missing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts(pub(crate) BTreeMap<&'static str, u64>);

impl Counts {
    pub(super) fn note(&mut self, what: &'static str, happened: bool) {
        if happened {
            *self.0.entry(what).or_default() += 1;
        }
    }

    pub(crate) fn add(&mut self, other: &Counts) {
        for (what, count) in &other.0 {
            *self.0.entry(what).or_default() += count;
        }
    }
}

impl Story<'_> {
    pub(super) fn note(&self, counts: &mut Counts) {
        let tables = &self.tables;
        let rollout = self.case.definition.rollout.is_some();
        let skipped =
            |why: Why| tables.instances.iter().any(|i| i.attempts.iter().any(|a| a.why == Some(why)));
        counts.add(&self.seen);
        counts.note("stopped", tables.stop.is_some());
        counts.note("cleanup", tables.cleanup.is_some());
        let cut = |stop| tables.cleanup.is_some() && tables.stop == Some(stop);
        counts.note("cleanup takes too long", cut(Stop::TimedOut));
        counts.note("cancelled after the timeout", cut(Stop::Cancelled));
        counts.note("fail-fast started", tables.fail_fast.is_some() && !rollout);
        counts.note("budget spent", tables.fail_fast.is_some() && rollout);
        counts
            .note("within the budget", rollout && tables.fail_fast.is_none() && !tables.failures.is_empty());
        let used = |given: fn(Given) -> bool| {
            let tried =
                |i: usize| tables.instances[i].status().is_some_and(|status| status != Status::Skipped);
            (0..tables.instances.len()).any(|i| tried(i) && given(tables.given(i)))
        };
        counts.note("output used", used(|given| matches!(given, Given::Values(_))));
        counts.note("output missing", used(|given| given == Given::Missing));
        counts.note("untouched nodes", rollout && (0..self.case.nodes).any(|node| !tables.is_touched(node)));
        let attempts = || tables.instances.iter().flat_map(|instance| &instance.attempts);
        let cached = attempts().any(|attempt| attempt.cached);
        counts.note("earlier result", cached);
        counts.note("earlier result in a roll-out", cached && rollout);
        counts.note("no node fits for too long", attempts().any(|attempt| attempt.unfit));
        let tasks = &self.case.definition.tasks;
        let loose =
            tables.graph && tasks.len() > 1 && tasks.iter().all(|entry| entry.depends_on().is_empty());
        counts.note("nothing depends on anything", loose);
        self.note_items(counts);
        for (what, why) in SKIPS {
            counts.note(what, skipped(why));
        }
    }

    fn note_items(&self, counts: &mut Counts) {
        let tables = &self.tables;
        for (index, part) in tables.parts.iter().enumerate() {
            let Some(each) = self.case.definition.tasks[part.entry].for_each() else { continue };
            let of_part = || tables.instances.iter().filter(|instance| instance.part == index);
            counts.note("no list", of_part().any(|instance| instance.item.is_none() && instance.was_tried()));
            let Some(items) = &part.items else { continue };
            counts.note("items", !items.is_empty());
            counts.note("no items", items.is_empty());
            counts.note("items from an output", tables.sources[part.entry].is_some());
            let bounded = each.max_parallel.is_some_and(|most| items.len() > most as usize);
            counts.note("items under a bound", bounded);
            let carried = !items.is_empty() && of_part().all(|instance| instance.carried);
            counts.note("all items carried over", carried);
        }
    }
}
