//! Owns how a step stands over all of its nodes or items: the counts, and the line about one that has ended.

use std::time::Duration;

use downbeat_core::Span;
use downbeat_core::execution::Status;
use downbeat_server::http::view::{InstanceResult, Run, Step, Where};
use serde_json::Value;

use super::run::attempts_made;
use super::table::{Tone, one_line, painted};
use super::time::short;

/// How one step stands, over all of its nodes or items.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) index: u32,
    pub(crate) name: String,
    /// How many instances it has in all.
    pub(crate) wanted: u64,
    pub(crate) running: u64,
    pub(crate) succeeded: u64,
    /// Of the succeeded ones, those whose result came from the cache.
    pub(crate) cached: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
    pub(crate) cancelled: u64,
    /// Of the failed and cancelled ones, those that may yet be tried again.
    pub(crate) undecided: u64,
    /// The most attempts that an instance took.
    pub(crate) attempts: u32,
    /// How long the slowest instance took.
    pub(crate) longest: Option<Span>,
    /// The first word on why something went wrong or was left out.
    pub(crate) why: Option<String>,
}

impl Tally {
    /// Instances that have ended for good.
    pub(crate) fn ended(&self) -> u64 {
        self.succeeded + self.failed + self.skipped + self.cancelled - self.undecided
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended() >= self.wanted
    }

    /// `may_come_back` says whether an instance that did not succeed may yet be tried again, and `is_over` whether more
    /// items may come than are there.
    pub(super) fn of(
        step: &Step,
        run: &Run,
        is_over: bool,
        may_come_back: impl Fn(&str, &InstanceResult) -> bool,
    ) -> Self {
        let results = run.results.get(&step.index);
        let there = results.map_or(0, |results| results.len() as u64);
        // Skipped as a whole, or its items could not be worked out.
        let as_a_whole = results.is_some_and(|results| results.values().any(|result| result.item.is_none()));
        let mut tally = Self {
            index: step.index,
            name: step.name.clone(),
            wanted: match (&step.place, step.for_each.as_ref().map(|each| &each.items)) {
                (Where::Nodes(nodes), _) => nodes.len() as u64,
                (Where::Placed(_), None) => 1,
                (Where::Placed(_), Some(_)) if as_a_whole => there,
                (Where::Placed(_), Some(Value::Array(items))) => items.len() as u64,
                // How many there are shows only when what follows them begins.
                (Where::Placed(_), Some(_)) if is_over => there.max(1),
                (Where::Placed(_), Some(_)) => there + 1,
            },
            ..Self::default()
        };
        let mut longest = Duration::ZERO;
        for (node, result) in run.results.get(&step.index).into_iter().flatten() {
            match result.status {
                Status::Pending => {}
                Status::Leased | Status::Running => tally.running += 1,
                Status::Succeeded => {
                    tally.succeeded += 1;
                    tally.cached += u64::from(result.cached);
                }
                Status::Failed | Status::Lost => tally.failed += 1,
                Status::Skipped => tally.skipped += 1,
                Status::Cancelled => tally.cancelled += 1,
            }
            if may_come_back(node, result) {
                tally.undecided += 1;
            }
            tally.attempts = tally.attempts.max(attempts_made(result));
            longest = longest.max(result.duration.unwrap_or_default().0);
            if tally.why.is_none() {
                tally.why = match (&result.error, &result.reason) {
                    (Some(error), _) => Some(format!("{}: {error}", whose(node, result))),
                    (None, Some(reason)) => Some(reason.clone()),
                    (None, None) => None,
                };
            }
        }
        tally.longest = Some(Span(longest)).filter(|longest| longest.0 > Duration::ZERO);
        tally
    }
}

/// `web-01`, or `item 3 on web-01`.
pub(super) fn whose(node: &str, result: &InstanceResult) -> String {
    match (result.item, &result.node) {
        (None, _) => node.to_owned(),
        (Some(item), Some(node)) => format!("item {item} on {node}"),
        (Some(item), None) => format!("item {item}"),
    }
}

/// `step 0 exec run: 3/3 succeeded in 12ms`.
pub(crate) fn step_line(tally: &Tally) -> String {
    let mut parts = Vec::new();
    if tally.succeeded > 0 || tally.skipped < tally.wanted {
        let tone = if tally.succeeded == tally.wanted { Tone::Good } else { Tone::Plain };
        let cached = if tally.cached > 0 { format!(" ({} cached)", tally.cached) } else { String::new() };
        parts.push(painted(&format!("{}/{} succeeded{cached}", tally.succeeded, tally.wanted), tone));
    }
    for (count, word, tone) in [
        (tally.failed, "failed", Tone::Bad),
        (tally.cancelled, "cancelled", Tone::Bad),
        (tally.skipped, "skipped", Tone::Dim),
    ] {
        if count > 0 {
            parts.push(painted(&format!("{count} {word}"), tone));
        }
    }
    let took = tally.longest.map(|longest| format!(" in {}", short(longest))).unwrap_or_default();
    let tries =
        if tally.attempts > 1 { format!(" after {} attempts", tally.attempts) } else { String::new() };
    let why = tally.why.as_deref().map(|why| format!(" ({})", one_line(why))).unwrap_or_default();
    format!("step {} {}: {}{took}{tries}{why}", tally.index, tally.name, parts.join(", "))
}
