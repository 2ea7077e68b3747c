//! Owns the progress of a step over all of its nodes or items: the counts, and the line about a step that has ended.

use downbeat_api::StepProgress;
use downbeat_core::Span;
use downbeat_core::execution::Status;

use super::table::{Tone, one_line, painted};
use super::time::short;

/// The progress of one step over all of its nodes or items.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) index: u32,
    pub(crate) name: String,
    /// The number of instances.
    pub(crate) wanted: u64,
    pub(crate) running: u64,
    pub(crate) succeeded: u64,
    /// The succeeded ones whose result came from the cache.
    pub(crate) cached: u64,
    /// The succeeded ones that an earlier run had done.
    pub(crate) reused: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
    pub(crate) cancelled: u64,
    /// The failed and cancelled ones that may be retried.
    pub(crate) undecided: u64,
    /// The highest number of attempts of an instance.
    pub(crate) attempts: u32,
    /// The duration of the slowest instance.
    pub(crate) longest: Option<Span>,
    /// The reason of the first instance that failed or was skipped.
    pub(crate) why: Option<String>,
}

impl From<&StepProgress> for Tally {
    fn from(step: &StepProgress) -> Self {
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
    /// Returns the number of instances whose result is final.
    pub(crate) fn ended(&self) -> u64 {
        (self.succeeded + self.failed + self.skipped + self.cancelled).saturating_sub(self.undecided)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended() >= self.wanted
    }

    /// Returns the number of instances whose result is not final.
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
        let without_attempt = [(tally.reused, "reused"), (tally.cached, "cached")];
        let without_attempt: Vec<String> = without_attempt
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, word)| format!("{count} {word}"))
            .collect();
        let without_attempt = if without_attempt.is_empty() {
            String::new()
        } else {
            format!(" ({})", without_attempt.join(", "))
        };
        parts
            .push(painted(&format!("{}/{} succeeded{without_attempt}", tally.succeeded, tally.wanted), tone));
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
