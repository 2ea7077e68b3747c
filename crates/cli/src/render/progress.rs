//! Owns how a step stands over all of its nodes: the counts, and the line about one that has ended.

use std::time::Duration;

use downbeat_core::Span;
use downbeat_core::execution::Status;
use downbeat_server::http::view::{InstanceResult, Run, Step, Where};

use super::run::attempts_made;
use super::table::{Tone, one_line, painted};
use super::time::short;

/// How one step stands, over all of its nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) index: u32,
    pub(crate) name: String,
    /// How many instances it has in all.
    pub(crate) wanted: u64,
    pub(crate) running: u64,
    pub(crate) succeeded: u64,
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

    /// `may_come_back` says whether an instance that did not succeed may yet be tried again.
    pub(super) fn of(step: &Step, run: &Run, may_come_back: impl Fn(&str, &InstanceResult) -> bool) -> Self {
        let mut tally = Self {
            index: step.index,
            name: step.name.clone(),
            wanted: match &step.place {
                Where::Nodes(nodes) => nodes.len() as u64,
                Where::Placed(_) => 1,
            },
            ..Self::default()
        };
        let mut longest = Duration::ZERO;
        for (node, result) in run.results.get(&step.index).into_iter().flatten() {
            match result.status {
                Status::Pending => {}
                Status::Leased | Status::Running => tally.running += 1,
                Status::Succeeded => tally.succeeded += 1,
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
                    (Some(error), _) => Some(format!("{node}: {error}")),
                    (None, Some(reason)) => Some(reason.clone()),
                    (None, None) => None,
                };
            }
        }
        tally.longest = Some(Span(longest)).filter(|longest| longest.0 > Duration::ZERO);
        tally
    }
}

/// `step 0 exec run: 3/3 succeeded in 12ms`.
pub(crate) fn step_line(tally: &Tally) -> String {
    let mut parts = Vec::new();
    if tally.succeeded > 0 || tally.skipped < tally.wanted {
        let tone = if tally.succeeded == tally.wanted { Tone::Good } else { Tone::Plain };
        parts.push(painted(&format!("{}/{} succeeded", tally.succeeded, tally.wanted), tone));
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
