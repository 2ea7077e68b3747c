//! Owns the pace of cleaning: each transaction is small, and a pause follows it.

use std::time::Duration;

use downbeat_core::retention;

/// How fast rows are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Leaves most of the time to commits.
    Gentle,
    /// Does not pause: nobody else writes, or the next write waits for the end of the removal.
    Fast,
}

impl Pace {
    /// Pauses after a transaction that took this long.
    pub(crate) async fn pause(self, took: Duration) {
        if self == Pace::Gentle {
            tokio::time::sleep(retention::pause_after(took)).await;
        }
    }
}
