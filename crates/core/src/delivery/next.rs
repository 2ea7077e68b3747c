//! Decides what follows a try of a delivery: nothing, another try, or giving up.

use std::time::Duration;

use jiff::Timestamp;

use crate::dice::Dice;

/// Tries of one delivery, over about an hour and a half.
pub const TRIES: u32 = 8;
/// The pause after the first try; each next one is three times as long.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const FACTOR: u32 = 3;
/// The longest pause that a service may ask for.
const RETRY_AFTER_MOST: Duration = Duration::from_secs(3600);

/// How a try ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempted {
    /// The service answered with this HTTP status, and asked for this pause.
    Answered { code: u16, retry_after: Option<Duration> },
    /// An e-mail was accepted.
    Accepted,
    /// Nothing was accepted, and a later try may succeed.
    Unavailable,
    /// No later try can succeed.
    Impossible,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Delivered,
    RetryAt(Timestamp),
    GiveUp,
}

/// Decides what follows the try with this number, from 1.
pub fn next(tries: u32, attempted: Attempted, now: Timestamp, dice: &mut Dice) -> Next {
    let asked = match attempted {
        Attempted::Accepted | Attempted::Answered { code: 200..=299, .. } => return Next::Delivered,
        Attempted::Impossible => return Next::GiveUp,
        Attempted::Answered { code, retry_after } if is_temporary(code) => retry_after,
        Attempted::Answered { .. } => return Next::GiveUp,
        Attempted::Unavailable => None,
    };
    if tries >= TRIES {
        return Next::GiveUp;
    }
    let pause = FIRST_PAUSE * FACTOR.pow(tries.saturating_sub(1));
    // Deliveries that failed together are not tried together.
    let pause = pause + dice.up_to(pause / 4);
    let pause = pause.max(asked.unwrap_or_default().min(RETRY_AFTER_MOST));
    Next::RetryAt(now.saturating_add(pause).expect("a pause is not a calendar unit"))
}

/// Returns whether a service that answers with this status may accept the same request later.
fn is_temporary(code: u16) -> bool {
    matches!(code, 408 | 425 | 429 | 500..)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(code: u16) -> Attempted {
        Attempted::Answered { code, retry_after: None }
    }

    fn asked(code: u16, seconds: u64) -> Attempted {
        Attempted::Answered { code, retry_after: Some(Duration::from_secs(seconds)) }
    }

    /// Returns the pause in seconds, or the word for an end.
    fn decided(tries: u32, attempted: Attempted) -> Result<i64, &'static str> {
        let now = Timestamp::from_second(1_000_000).unwrap();
        match next(tries, attempted, now, &mut Dice::new(1)) {
            Next::Delivered => Err("delivered"),
            Next::GiveUp => Err("given up"),
            Next::RetryAt(at) => Ok(at.as_second() - now.as_second()),
        }
    }

    #[test]
    fn success_ends_a_delivery_and_a_refusal_too() {
        for (attempted, expected) in [
            (Attempted::Accepted, "delivered"),
            (answered(200), "delivered"),
            (answered(204), "delivered"),
            (answered(299), "delivered"),
            (asked(200, 60), "delivered"),
            (answered(304), "given up"),
            (answered(400), "given up"),
            (answered(404), "given up"),
            (answered(410), "given up"),
            (Attempted::Impossible, "given up"),
        ] {
            for tries in [1, 7, 8] {
                assert_eq!(decided(tries, attempted), Err(expected), "{attempted:?}");
            }
        }
    }

    #[test]
    fn temporary_failures_are_retried_with_growing_pauses() {
        let temporary = [408, 425, 429, 500, 502, 503, 599].map(answered).into_iter();
        for attempted in temporary.chain([Attempted::Unavailable]) {
            let pauses = [5, 15, 45, 135, 405, 1215, 3645];
            for (tries, least) in (1..).zip(pauses) {
                let pause = decided(tries, attempted).unwrap();
                assert!((least..=least * 5 / 4).contains(&pause), "{attempted:?} {tries}: {pause}");
            }
            assert_eq!(decided(TRIES, attempted), Err("given up"));
        }
    }

    #[test]
    fn a_service_may_ask_for_a_longer_pause_within_bounds() {
        for (tries, asks, range) in
            [(1, 0, 5..=6), (1, 3, 5..=6), (1, 90, 90..=90), (1, u64::MAX, 3600..=3600), (7, 60, 3645..=4556)]
        {
            let pause = decided(tries, asked(429, asks)).unwrap();
            assert!(range.contains(&pause), "{asks}: {pause}");
        }
    }
}
