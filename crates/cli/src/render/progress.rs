//! Owns the line about a step that has ended.

use downbeat_api::StepProgress;
use downbeat_core::execution::Status;

use super::hosts::counts;
use super::table::{Tone, one_line, painted};
use super::time::short;

/// `step 0 exec run: 3/3 succeeded in 12ms`.
pub(crate) fn step_line(step: &StepProgress) -> String {
    let mut parts = Vec::new();
    let (all, succeeded, skipped) =
        (step.instances, step.count(Status::Succeeded), step.count(Status::Skipped));
    if all > 0 && step.reused == all {
        parts.push(painted("reused", Tone::Good));
    } else if succeeded > 0 || skipped < all {
        let tone = if succeeded == all { Tone::Good } else { Tone::Plain };
        let without_attempt = match counts(&[(step.reused, "reused"), (step.cached, "cached")]).as_str() {
            "" => String::new(),
            counts => format!(" ({counts})"),
        };
        parts.push(painted(&format!("{succeeded}/{all} succeeded{without_attempt}"), tone));
    }
    for (count, word, tone) in [
        (step.failed(), "failed", Tone::Bad),
        (step.count(Status::Cancelled), "cancelled", Tone::Bad),
        (skipped, "skipped", Tone::Dim),
    ] {
        if count > 0 {
            parts.push(painted(&format!("{count} {word}"), tone));
        }
    }
    let took = step.longest.map(|longest| format!(" in {}", short(longest))).unwrap_or_default();
    let tries = if step.attempts > 1 { format!(" after {} attempts", step.attempts) } else { String::new() };
    let why = step.why.as_deref().map(|why| format!(" ({})", one_line(why))).unwrap_or_default();
    format!("step {} {}: {}{took}{tries}{why}", step.step, step.task, parts.join(", "))
}
