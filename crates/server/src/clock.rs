//! Owns the server's only look at the time of day.

use std::time::Duration;

use downbeat_core::Timestamp;

/// Where `now` comes from.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock;

impl Clock {
    /// Whole microseconds: what the stores keep.
    pub(crate) fn now(self) -> Timestamp {
        let now = Timestamp::now();
        Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now)
    }

    /// How long it is until then; nothing when it is past.
    pub(crate) fn until(self, then: Timestamp) -> Duration {
        Duration::try_from(then.duration_since(self.now())).unwrap_or(Duration::ZERO)
    }
}
