//! Owns how a step stands over all of its nodes or items: the counts, and the line about one that has ended.

use downbeat_api::StepStanding;
use downbeat_core::Span;
use downbeat_core::execution::Status;

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
    /// Of the succeeded ones, those that an earlier run had done.
    pub(crate) reused: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
    pub(crate) cancelled: u64,
    /// Of the failed and cancelled ones, those that may be retried.
    pub(crate) undecided: u64,
    /// The most attempts that an instance took.
    pub(crate) attempts: u32,
    /// How long the slowest instance took.
    pub(crate) longest: Option<Span>,
    /// Why the first instance that went wrong or was left out did or was.
    pub(crate) why: Option<String>,
}

impl From<&StepStanding> for Tally {
    fn from(step: &StepStanding) -> Self {
        Self {
            index: step.step,
            name: step.task.clone(),
            wanted: step.instances,
            running: step.count(Status::Leased) + step.count(Status::Running),
            succeeded: step.count(Status::Succeeded),
            cached: step.cached,
            reused: step.reused,
            failed: step.count(Status::Failed) + step.count(Status::Lost),
            skipped: step.count(Status::Skipped),
            cancelled: step.count(Status::Cancelled),
            undecided: step.undecided,
            attempts: step.attempts,
            longest: step.longest,
            why: step.why.clone(),
        }
    }
}

impl Tally {
    /// Instances that have ended for good.
    pub(crate) fn ended(&self) -> u64 {
        (self.succeeded + self.failed + self.skipped + self.cancelled).saturating_sub(self.undecided)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended() >= self.wanted
    }

    /// Instances that have not ended.
    pub(crate) fn open(&self) -> u64 {
        self.wanted.saturating_sub(self.ended())
    }
}

/// `step 0 exec run: 3/3 succeeded in 12ms`.
pub(crate) fn step_line(tally: &Tally) -> String {
    let mut parts = Vec::new();
    if tally.wanted > 0 && tally.reused == tally.wanted {
        parts.push(painted("reused", Tone::Good));
    } else if tally.succeeded > 0 || tally.skipped < tally.wanted {
        let tone = if tally.succeeded == tally.wanted { Tone::Good } else { Tone::Plain };
        let taken = [(tally.reused, "reused"), (tally.cached, "cached")];
        let taken: Vec<String> = taken
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, word)| format!("{count} {word}"))
            .collect();
        let taken = if taken.is_empty() { String::new() } else { format!(" ({})", taken.join(", ")) };
        parts.push(painted(&format!("{}/{} succeeded{taken}", tally.succeeded, tally.wanted), tone));
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
