//! Decides whether an earlier result is recent enough to be used again.

use jiff::{SignedDuration, Timestamp};

use super::definition::Cache;

impl Cache {
    /// Returns whether a result that a server received at `received_at` may be used now. Both times are from server
    /// clocks, never from an agent's. A time that is in the future by more than the age comes from a wrong clock, and
    /// the result is not used.
    pub fn accepts(&self, received_at: Timestamp, now: Timestamp) -> bool {
        let most = self.max_age.and_then(|most| SignedDuration::try_from(most.0).ok());
        most.is_none_or(|most| now.duration_since(received_at).abs() <= most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::Span;

    #[test]
    fn a_result_is_taken_until_it_is_too_old() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let minute = Cache { max_age: Some(Span::from_secs(60)) };
        for (cache, now, accepted) in [
            (minute, 1_060, true),
            (minute, 1_061, false),
            // The clock was set back a little.
            (minute, 990, true),
            (minute, 939, false),
            (Cache::default(), 1_000_000, true),
        ] {
            assert_eq!(cache.accepts(at(1_000), at(now)), accepted, "{cache:?} at {now}");
        }
    }
}
