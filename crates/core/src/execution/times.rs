//! Corrects an agent's times. Its clock may be hours off, so its times are only for display, and are moved into the span
//! that the server knows: from the grant of the lease to the receipt of the report.

use jiff::{SignedDuration, Timestamp};

use super::record::Outcome;

/// Moves the times of an outcome into the span of its lease. The duration that the agent measured is kept if it fits:
/// with a fast clock the end is set to the receipt, with a slow clock the start is set to the grant. An outcome without
/// a receipt comes from a release that recorded none, and is not changed.
pub fn fit_into_lease(mut outcome: Outcome, granted_at: Timestamp) -> Outcome {
    let Some(received_at) = outcome.received_at else { return outcome };
    let latest = received_at.max(granted_at);
    let longest = latest.duration_since(granted_at);
    let measured = outcome.finished_at.duration_since(outcome.started_at);
    let duration = measured.clamp(SignedDuration::ZERO, longest);
    outcome.started_at = outcome.started_at.clamp(granted_at, latest - duration);
    outcome.finished_at = outcome.started_at + duration;
    outcome
}

/// Moves a start into the span between the grant of its lease and its receipt.
pub(super) fn start_within(at: Timestamp, granted: Timestamp, received: Option<Timestamp>) -> Timestamp {
    received.map_or(at, |received| at.clamp(granted, received.max(granted)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Params;
    use crate::execution::Verdict;

    const GRANTED: i64 = 1_000;
    const RECEIVED: i64 = 1_100;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn kept(started: i64, finished: i64, received: Option<i64>) -> (i64, i64) {
        let outcome = Outcome {
            verdict: Verdict::Succeeded,
            exit_code: None,
            error: None,
            outputs: Params::new(),
            started_at: at(started),
            finished_at: at(finished),
            received_at: received.map(at),
        };
        let kept = fit_into_lease(outcome, at(GRANTED));
        (kept.started_at.as_second(), kept.finished_at.as_second())
    }

    #[test]
    fn times_of_an_agent_stay_within_its_lease_and_keep_their_duration() {
        for (what, (started, finished), expected) in [
            ("right", (1_010, 1_060), (1_010, 1_060)),
            ("exactly the span", (1_000, 1_100), (1_000, 1_100)),
            ("two hours fast", (8_210, 8_260), (1_050, 1_100)),
            ("two hours slow", (-6_190, -6_140), (1_000, 1_050)),
            ("a little fast", (1_060, 1_110), (1_050, 1_100)),
            ("finished before it started", (1_060, 1_050), (1_060, 1_060)),
            ("longer than the lease", (-900_000, 900_000), (1_000, 1_100)),
            ("the ends of the calendar", (-377_705_023_201, 253_402_207_200), (1_000, 1_100)),
        ] {
            assert_eq!(kept(started, finished, Some(RECEIVED)), expected, "{what}");
        }
        assert_eq!(kept(8_210, 8_260, None), (8_210, 8_260), "of a release without receipts");
        assert_eq!(kept(900, 950, Some(990)), (1_000, 1_000), "the server's clock was set back");
    }

    #[test]
    fn a_start_lies_between_its_grant_and_its_receipt() {
        for (reported, kept) in [(1_050, 1_050), (9_999, 1_100), (-5, 1_000)] {
            assert_eq!(start_within(at(reported), at(GRANTED), Some(at(RECEIVED))), at(kept), "{reported}");
        }
        assert_eq!(start_within(at(5), at(GRANTED), None), at(5));
    }
}
