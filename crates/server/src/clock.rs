//! Owns the server's only access to the time of day.
//!
//! All servers of a store decide by one clock that never jumps. Its reference is the store's clock, if it has
//! one, otherwise this machine's: a store without a clock has one server. `steady` decides how the reference
//! is followed. Servers agree because they follow the same reference at the same rate, start with the time
//! of the others, and step forward to any later time that another server has recorded: a server that was
//! suspended is behind.

mod steady;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use downbeat_core::Timestamp;
use downbeat_core::ids::ServerId;
use downbeat_store::{self as store, ServerRecord, Store};
use jiff::SignedDuration;
use tokio::time::Instant;
use tracing::{info, warn};

use self::steady::Steady;

/// This machine's clock: microseconds or better. It may jump.
pub type Wall = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Readings of the store's clock that took longer than this are ignored: they could be wrong by as much. The
/// clocks of two servers may differ by as much.
const PRECISE: Duration = Duration::from_millis(500);
/// How often this machine's clock is read.
const READ_EVERY: Duration = Duration::from_secs(1);
/// A difference to the reference that is worth a line in the log.
const JUMP: SignedDuration = SignedDuration::from_secs(60);

/// The source of `now`; cheap to clone.
#[derive(Clone)]
pub(crate) struct Clock {
    wall: Wall,
    begun: Instant,
    state: Arc<Mutex<State>>,
}

struct State {
    steady: Steady,
    /// False if the store has no clock, or it was not read yet.
    follows_store: bool,
    has_jumped: bool,
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Clock").field("now", &self.now()).finish_non_exhaustive()
    }
}

impl Clock {
    pub(crate) fn new(wall: Wall) -> Self {
        let steady = Steady::start(wall().as_microsecond(), 0);
        let state = State { steady, follows_store: false, has_jumped: false };
        Self { wall, begun: Instant::now(), state: Arc::new(Mutex::new(state)) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn monotonic_us(&self) -> i64 {
        micros(self.begun.elapsed())
    }

    /// Returns the time in whole microseconds, as the stores keep it.
    pub(crate) fn now(&self) -> Timestamp {
        let (mut state, monotonic_us) = (self.state(), self.monotonic_us());
        if !state.follows_store && monotonic_us - state.steady.read_at() >= micros(READ_EVERY) {
            state.read((self.wall)().as_microsecond(), 0, monotonic_us);
        }
        Timestamp::from_microsecond(state.steady.now(monotonic_us)).unwrap_or(Timestamp::MAX)
    }

    /// Returns the time left until `then`, or zero.
    pub(crate) fn until(&self, then: Timestamp) -> Duration {
        Duration::try_from(then.duration_since(self.now())).unwrap_or(Duration::ZERO)
    }

    /// Sets the clock when a server starts: by its reference, but to the time of the servers that are alive,
    /// and not before any recorded heartbeat. Otherwise a clock that was set back before the start would keep
    /// silent nodes online for as long. Servers write a heartbeat every `pause`.
    pub(crate) async fn begin(&self, store: &dyn Store, pause: Duration) -> Result<(), store::Error> {
        self.set_by(store).await?;
        let servers = store.servers().await?;
        let newest = newest(&servers);
        let differs =
            |newest: Timestamp| self.now() > newest + longest(pause) || self.now() + PRECISE < newest;
        if store.is_shared() && newest.is_some_and(differs) {
            // Either they are gone, or their clock differs from the store's, which was set. A recorded heartbeat is
            // too old to start with: this server would be behind the others by as much.
            if let Some(time) = next_sign(store, &servers, pause).await? {
                let (mut state, monotonic_us) = (self.state(), self.monotonic_us());
                state.steady = Steady::start(time.as_microsecond(), monotonic_us);
            }
        }
        let seen = store.presence().await?.into_iter().map(|(_, _, seen_at)| seen_at).max();
        if let Some(recorded) = newest.max(seen)
            && let Some(ahead) = self.not_before(recorded)
            && ahead > JUMP
        {
            warn!(
                ahead_s = ahead.as_secs(),
                "the store contains later times than the clock shows, which was set back; times are ahead of it until \
                 the difference is made up, by 36 s in an hour"
            );
        }
        Ok(())
    }

    /// Reads the store's clock, if it has one.
    pub(crate) async fn set_by(&self, store: &dyn Store) -> Result<(), store::Error> {
        let asked = Instant::now();
        let Some(reading) = store.now().await? else { return Ok(()) };
        self.set(reading, asked, Instant::now());
        Ok(())
    }

    /// Notes that the store returned `reading` somewhere between two instants.
    fn set(&self, reading: Timestamp, asked: Instant, answered: Instant) {
        let doubt_us = micros(answered.duration_since(asked)) / 2;
        let (reading_us, monotonic_us) =
            (reading.as_microsecond() + doubt_us, micros(answered.duration_since(self.begun)));
        let mut state = self.state();
        if !state.follows_store {
            state.follows_store = true;
            state.steady = Steady::start(reading_us, monotonic_us);
        } else if doubt_us <= micros(PRECISE) / 2 {
            state.read(reading_us, doubt_us, monotonic_us);
        }
    }

    /// Steps forward if a server has recorded a later time. Returns whether that is ahead by more than clocks may differ:
    /// this server was suspended, or has started with an older time. Then silence until now does not count. Smaller
    /// steps matter, too: a recorded time is some time old, so that the other clock is further ahead than it shows.
    pub(crate) fn follow(&self, servers: &[ServerRecord]) -> bool {
        let ahead = newest(servers).and_then(|newest| self.not_before(newest));
        let Some(ahead) = ahead.filter(|ahead| *ahead > precise()) else { return false };
        warn!(
            ahead_s = ahead.as_secs_f64(),
            "other servers are ahead in time: this one was suspended; it follows them"
        );
        true
    }

    /// Steps forward to a recorded time. Returns by how much, if it was ahead.
    fn not_before(&self, recorded: Timestamp) -> Option<SignedDuration> {
        let ahead = recorded.duration_since(self.now());
        self.state().steady.not_before(recorded.as_microsecond(), self.monotonic_us());
        (ahead > SignedDuration::ZERO).then_some(ahead)
    }
}

impl State {
    fn read(&mut self, reading_us: i64, doubt_us: i64, monotonic_us: i64) {
        let ahead_us = self.steady.read(reading_us, doubt_us, monotonic_us);
        let has_jumped = SignedDuration::from_micros(ahead_us).abs() > JUMP;
        if has_jumped != std::mem::replace(&mut self.has_jumped, has_jumped) {
            if has_jumped {
                let clock = if self.follows_store { "the store's clock" } else { "this machine's clock" };
                warn!(
                    ahead_s = ahead_us / 1_000_000,
                    "{clock} was set, or this machine was suspended; times follow it slowly, by 36 s in an hour"
                );
            } else {
                info!("times have caught up with the clock");
            }
        }
    }
}

fn precise() -> SignedDuration {
    SignedDuration::try_from(PRECISE).unwrap_or(SignedDuration::MAX)
}

/// Returns the longest time between two heartbeats of a server that is alive.
fn longest(pause: Duration) -> Duration {
    pause + pause / 2
}

fn newest(servers: &[ServerRecord]) -> Option<Timestamp> {
    servers.iter().map(|server| server.seen_at).max()
}

/// Waits for the next heartbeat of a server. Returns its time, or `None` if all servers are gone.
async fn next_sign(
    store: &dyn Store,
    before: &[ServerRecord],
    pause: Duration,
) -> Result<Option<Timestamp>, store::Error> {
    let known = |id: ServerId| before.iter().find(|server| server.id == id).map(|server| server.seen_at);
    let until = Instant::now() + longest(pause);
    while Instant::now() < until {
        tokio::time::sleep(pause / 8).await;
        let servers = store.servers().await?;
        let signed = servers
            .into_iter()
            .filter(|server| known(server.id).is_none_or(|seen_at| server.seen_at > seen_at));
        if let Some(time) = newest(&signed.collect::<Vec<_>>()) {
            return Ok(Some(time));
        }
    }
    Ok(None)
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
