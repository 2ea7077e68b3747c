//! Owns the server's only access to the time of day.
//!
//! All servers of a store decide by one clock: the store's, if it has one. It is read now and then; in
//! between a monotonic clock continues, so that a jump of this machine's clock has no effect. A store
//! without a clock has one server, and that server's clock counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use downbeat_core::Timestamp;
use downbeat_store::{self as store, Store};
use tokio::time::Instant;

/// This machine's clock: microseconds or better. It may jump.
pub type Wall = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Readings of the store's clock that took longer than this are ignored: they could be wrong by as much.
const PRECISE: Duration = Duration::from_millis(500);
/// The store's clock was not read yet.
const UNKNOWN: i64 = i64::MIN;

/// The source of `now`; cheap to clone.
#[derive(Clone)]
pub(crate) struct Clock {
    wall: Wall,
    begun: Instant,
    /// The store's time when this clock started, in microseconds.
    offset: Arc<AtomicI64>,
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Clock").field("now", &self.now()).finish_non_exhaustive()
    }
}

impl Clock {
    pub(crate) fn new(wall: Wall) -> Self {
        Self { wall, begun: Instant::now(), offset: Arc::new(AtomicI64::new(UNKNOWN)) }
    }

    /// Returns the time in whole microseconds, as the stores keep it.
    pub(crate) fn now(&self) -> Timestamp {
        let micros = match self.offset.load(Ordering::Acquire) {
            UNKNOWN => (self.wall)().as_microsecond(),
            offset => offset.saturating_add(micros(self.begun.elapsed())),
        };
        Timestamp::from_microsecond(micros).unwrap_or(Timestamp::MAX)
    }

    /// Returns the time left until `then`, or zero.
    pub(crate) fn until(&self, then: Timestamp) -> Duration {
        Duration::try_from(then.duration_since(self.now())).unwrap_or(Duration::ZERO)
    }

    pub(crate) async fn set_by(&self, store: &dyn Store) -> Result<(), store::Error> {
        let asked = Instant::now();
        let Some(reading) = store.now().await? else { return Ok(()) };
        self.set(reading, asked, Instant::now());
        Ok(())
    }

    /// Sets the clock: the store returned `reading` somewhere between two instants. A difference within that
    /// uncertainty is ignored, so that the clock does not run backwards without need.
    fn set(&self, reading: Timestamp, asked: Instant, answered: Instant) {
        let uncertainty = micros(answered.duration_since(asked)) / 2;
        let known = self.offset.load(Ordering::Acquire);
        if known != UNKNOWN && uncertainty > micros(PRECISE) / 2 {
            return;
        }
        let offset = reading.as_microsecond() + uncertainty - micros(answered.duration_since(self.begun));
        if known == UNKNOWN || (offset - known).abs() > uncertainty {
            self.offset.store(offset, Ordering::Release);
        }
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn wall(seconds: i64) -> (Wall, Arc<Mutex<Timestamp>>) {
        let time = Arc::new(Mutex::new(at(seconds)));
        let shared = Arc::clone(&time);
        (Arc::new(move || *shared.lock().unwrap()), time)
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_clock_in_the_store_the_machines_own_counts() {
        let (wall, time) = wall(100);
        let clock = Clock::new(wall);
        assert_eq!(clock.now(), at(100));
        *time.lock().unwrap() = at(90);
        assert_eq!(clock.now(), at(90));
    }

    #[tokio::test(start_paused = true)]
    async fn the_stores_clock_counts_on_whatever_the_machines_own_does() {
        let (wall, time) = wall(100);
        let clock = Clock::new(wall);
        clock.set(at(5_000), Instant::now(), Instant::now());
        assert_eq!(clock.now(), at(5_000));
        *time.lock().unwrap() = at(9_999_999);
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(clock.now(), at(5_003));
    }

    #[tokio::test(start_paused = true)]
    async fn half_of_the_round_trip_is_added_and_a_slow_answer_changes_nothing() {
        let clock = Clock::new(wall(0).0);
        let asked = Instant::now();
        tokio::time::advance(Duration::from_millis(200)).await;
        clock.set(at(50), asked, Instant::now());
        assert_eq!(clock.now(), at(50) + Duration::from_millis(100));
        let asked = Instant::now();
        tokio::time::advance(Duration::from_secs(20)).await;
        clock.set(at(50), asked, Instant::now());
        assert_eq!(clock.now(), at(70) + Duration::from_millis(100));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_within_its_own_doubt_does_not_move_the_clock() {
        let clock = Clock::new(wall(0).0);
        clock.set(at(50), Instant::now(), Instant::now());
        let asked = Instant::now();
        tokio::time::advance(Duration::from_millis(20)).await;
        // 11 ms from the middle is outside the uncertainty of 10 ms: accepted. 9 ms is not.
        clock.set(at(50) + Duration::from_millis(1), asked, Instant::now());
        assert_eq!(clock.now(), at(50) + Duration::from_millis(20));
        clock.set(at(50) + Duration::from_millis(30), asked, Instant::now());
        assert_eq!(clock.now(), at(50) + Duration::from_millis(40));
    }
}
