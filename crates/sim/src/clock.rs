//! Owns time: the true time, and the clocks of the hosts and of the store, which may be wrong and jump.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// The start of every seed, in seconds since the epoch.
const BEGINNING_S: i64 = 1_750_000_000;

/// True time. The runtime's clock is paused, so it only advances when every task waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TrueClock {
    begun: Instant,
}

impl TrueClock {
    pub(crate) fn start() -> Self {
        Self { begun: Instant::now() }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    pub(crate) fn now(&self) -> Timestamp {
        let beginning = Timestamp::from_second(BEGINNING_S).expect("the start is a valid time");
        let elapsed_us = i64::try_from(self.elapsed().as_micros()).unwrap_or(i64::MAX);
        beginning + SignedDuration::from_micros(elapsed_us)
    }
}

/// The clock of a host or of the store: it has an offset and a drift.
#[derive(Clone, Debug)]
pub(crate) struct HostClock {
    truth: TrueClock,
    error: Arc<Mutex<Error>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Error {
    offset_us: i64,
    drift_ppm: i64,
}

impl HostClock {
    pub(crate) fn new(truth: TrueClock, offset_us: i64, drift_ppm: i64) -> Self {
        Self { truth, error: Arc::new(Mutex::new(Error { offset_us, drift_ppm })) }
    }

    pub(crate) fn now(&self) -> Timestamp {
        let error = *self.error.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed_us = i64::try_from(self.truth.elapsed().as_micros()).unwrap_or(i64::MAX);
        let drifted_us = elapsed_us / 1_000 * error.drift_ppm / 1_000;
        self.truth.now() + SignedDuration::from_micros(error.offset_us + drifted_us)
    }

    pub(crate) fn jump(&self, by_us: i64) {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).offset_us += by_us;
    }
}
