//! Owns a replica's knowledge of its primary: which server it is, how far the copy is behind, and whether
//! the copy can be read.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use downbeat_api::Replica;
use downbeat_core::{Span, Timestamp};
use jiff::SignedDuration;
use tokio_util::sync::CancellationToken;

/// After this long without a beat, the lag of the copy is unknown.
const SILENT_AFTER: SignedDuration = SignedDuration::from_secs(15);

/// After this many connections without any advance, the copy cannot follow: something in the stream stops it each time.
const STUCK_AFTER: u32 = 2;

/// The age of a copy. The clocks of the two servers may differ, so the age is measured against the fastest
/// beat of this connection.
#[derive(Clone, Copy, Debug, Default)]
struct Age {
    /// The replica's clock minus the primary's, as far as known.
    offset: Option<SignedDuration>,
    /// When the copy was last complete, on the primary's clock.
    whole_at: Option<Timestamp>,
}

impl Age {
    fn connected(&mut self, heard_at: Timestamp, primary_time: Timestamp) {
        let offset = heard_at.duration_since(primary_time);
        // Converted to the new primary's clock, so that a change of the primary makes no difference.
        self.whole_at = self.whole_at.zip(self.offset).map(|(whole_at, before)| whole_at + before - offset);
        self.offset = Some(offset);
    }

    fn beat(&mut self, heard_at: Timestamp, primary_time: Timestamp, whole: bool) {
        let offset = heard_at.duration_since(primary_time);
        self.offset = Some(self.offset.map_or(offset, |least| least.min(offset)));
        if whole {
            self.whole_at = Some(primary_time);
        }
    }

    fn behind(self, now: Timestamp) -> Option<SignedDuration> {
        let (offset, whole_at) = (self.offset?, self.whole_at?);
        Some((now.duration_since(whole_at) - offset).max(SignedDuration::ZERO))
    }
}

#[derive(Debug, Default)]
struct State {
    primary: String,
    connected: bool,
    copied: bool,
    seq: u64,
    primary_seq: Option<u64>,
    heard_at: Option<Timestamp>,
    primary_time: Option<Timestamp>,
    age: Age,
    copies: u64,
    /// Why the last connection ended, until the copy advances or hears that it is complete.
    error: Option<String>,
    /// How many connections in succession ended without that.
    fruitless: u32,
    /// Ends the streams that were opened on the current copy.
    streams: CancellationToken,
}

impl State {
    fn is_stuck(&self) -> bool {
        self.fruitless >= STUCK_AFTER
    }

    /// Notes that the copy advanced, or was heard to be complete.
    fn advanced(&mut self, now: Timestamp) {
        self.heard_at = Some(now);
        self.error = None;
        self.fruitless = 0;
    }
}

/// A handle to this knowledge; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Following {
    state: Arc<Mutex<State>>,
    closing: CancellationToken,
}

impl Following {
    /// `copied`: a complete copy up to `seq` exists from an earlier start.
    pub(crate) fn new(primary: String, copied: bool, seq: u64, closing: CancellationToken) -> Self {
        let state = State { primary, copied, seq, streams: closing.child_token(), ..State::default() };
        Self { state: Arc::new(Mutex::new(state)), closing }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it holds this")
    }

    pub(crate) fn primary(&self) -> String {
        self.state().primary.clone()
    }

    pub(crate) fn is_copied(&self) -> bool {
        self.state().copied
    }

    /// Returns whether each of the last connections ended without any advance.
    pub(super) fn is_stuck(&self) -> bool {
        self.state().is_stuck()
    }

    /// Returns the primary's time when it last sent a beat.
    pub(crate) fn heard_of(&self) -> Option<Timestamp> {
        self.state().primary_time
    }

    /// Cancelled when the server stops, and when the copy is replaced: its event numbers may then differ.
    pub(crate) fn streams(&self) -> CancellationToken {
        self.state().streams.clone()
    }

    /// Notes a connection. It says nothing about the copy: readiness does not count from here.
    pub(super) fn connected(
        &self,
        primary: &str,
        primary_seq: Option<u64>,
        heard_at: Timestamp,
        primary_time: Timestamp,
    ) {
        let mut state = self.state();
        state.primary = primary.to_owned();
        state.connected = true;
        state.primary_seq = primary_seq.or(state.primary_seq);
        state.age.connected(heard_at, primary_time);
    }

    pub(super) fn disconnected(&self, error: String) {
        let mut state = self.state();
        if std::mem::take(&mut state.connected) {
            state.fruitless += 1;
        }
        state.error = Some(error);
    }

    /// Notes that the copy has all events up to `seq`.
    pub(super) fn applied(&self, now: Timestamp, seq: u64) {
        let mut state = self.state();
        state.seq = seq;
        state.advanced(now);
    }

    pub(super) fn copied(&self, now: Timestamp, seq: u64) {
        let former = {
            let mut state = self.state();
            state.advanced(now);
            state.seq = seq;
            state.copied = true;
            state.copies += 1;
            std::mem::replace(&mut state.streams, self.closing.child_token())
        };
        former.cancel();
    }

    /// Notes a beat: `heard_at` on this server's clock, `primary_time` on the primary's.
    pub(super) fn beat(&self, heard_at: Timestamp, seq: u64, primary_time: Timestamp) {
        let mut state = self.state();
        let whole = state.copied && state.seq >= seq;
        state.primary_seq = Some(seq);
        state.advanced(heard_at);
        state.primary_time = Some(primary_time);
        state.age.beat(heard_at, primary_time, whole);
    }

    pub(crate) fn lag(&self, now: Timestamp) -> Replica {
        let state = self.state();
        Replica {
            primary: state.primary.clone(),
            connected: state.connected,
            seq: state.seq,
            lag_events: state.primary_seq.map(|seq| seq.saturating_sub(state.seq)),
            lag: state.age.behind(now).map(|age| Span(whole_milliseconds(age))),
            copies: state.copies,
            error: state.error.clone(),
        }
    }

    /// Returns whether the copy is complete and its lag is known.
    pub(crate) fn readiness(&self, now: Timestamp) -> Result<(), String> {
        let state = self.state();
        let why = state.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        if !state.copied {
            return Err(format!("the copy of {} is not complete yet{why}", state.primary));
        }
        if state.is_stuck() {
            return Err(format!("the copy of {} cannot go on after event {}{why}", state.primary, state.seq));
        }
        match state.heard_at {
            Some(at) if now.duration_since(at) < SILENT_AFTER => Ok(()),
            _ => Err(format!("the lag of the copy behind {} is unknown{why}", state.primary)),
        }
    }
}

fn whole_milliseconds(age: SignedDuration) -> Duration {
    Duration::from_millis(u64::try_from(age.as_millis()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millisecond(1_800_000_000_000 + ms).unwrap()
    }

    fn following(copied: bool) -> Following {
        Following::new("http://a".to_owned(), copied, 10, CancellationToken::new())
    }

    fn ms(following: &Following, now: i64) -> Option<u128> {
        following.lag(at(now)).lag.map(|span| span.0.as_millis())
    }

    #[test]
    fn the_lag_is_the_age_of_the_copy_whatever_the_clocks_say() {
        for skew in [-3_600_000, 0, 5_000] {
            let following = following(true);
            assert_eq!((ms(&following, 0), following.lag(at(0)).lag_events), (None, None));
            following.connected("http://b", None, at(0), at(skew - 5));
            following.beat(at(1_000), 10, at(1_000 + skew - 5));
            assert_eq!((ms(&following, 1_000), following.lag(at(1_000)).lag_events), (Some(0), Some(0)));
            // A beat that waited behind events that were slow to apply.
            following.beat(at(4_000), 10, at(2_000 + skew - 5));
            assert_eq!(ms(&following, 4_000), Some(2_000));
            // The copy is not complete, so its age grows.
            following.beat(at(5_000), 13, at(5_000 + skew - 5));
            assert_eq!((ms(&following, 5_000), following.lag(at(5_000)).lag_events), (Some(3_000), Some(3)));
            following.applied(at(5_400), 13);
            following.beat(at(5_500), 13, at(5_500 + skew - 5));
            assert_eq!((ms(&following, 5_600), following.lag(at(5_500)).lag_events), (Some(100), Some(0)));
        }
    }

    #[test]
    fn another_primarys_clock_makes_no_difference() {
        let following = following(true);
        following.connected("http://a", None, at(0), at(0));
        following.beat(at(0), 10, at(0));
        following.connected("http://b", None, at(2_000), at(9_000));
        assert_eq!(ms(&following, 3_000), Some(3_000));
    }

    #[test]
    fn a_replica_is_ready_when_it_has_a_copy_and_hears_of_its_primary() {
        let following = following(false);
        assert!(following.readiness(at(0)).unwrap_err().contains("not complete"));
        following.connected("http://a", Some(30), at(0), at(0));
        following.copied(at(0), 20);
        assert_eq!(following.lag(at(0)).lag_events, Some(10));
        assert_eq!(following.readiness(at(1)), Ok(()));
        following.disconnected("connection refused".to_owned());
        assert_eq!(following.readiness(at(14_000)), Ok(()));
        let why = following.readiness(at(16_000)).unwrap_err();
        assert!(why.contains("unknown") && why.contains("connection refused"), "{why}");
    }

    #[test]
    fn a_connection_alone_does_not_make_a_replica_ready() {
        let following = following(true);
        following.connected("http://a", Some(50), at(0), at(0));
        assert!(following.readiness(at(1)).unwrap_err().contains("unknown"));
        assert_eq!(following.lag(at(1)).lag_events, Some(40));
        following.applied(at(2), 11);
        assert_eq!(following.readiness(at(3)), Ok(()));
        following.beat(at(4), 11, at(4));
        assert_eq!(following.readiness(at(15_003)), Ok(()));
        assert!(following.readiness(at(15_005)).is_err());
    }

    #[test]
    fn a_replica_that_fails_twice_at_the_same_event_is_not_ready_and_says_so() {
        let following = following(true);
        following.beat(at(0), 10, at(0));
        let fail = |ms| {
            following.connected("http://a", Some(12), at(ms), at(ms));
            following.disconnected("a line is too long".to_owned());
        };
        fail(100);
        assert_eq!(following.readiness(at(200)), Ok(()));
        // A primary that cannot be reached is another matter: the copy is as good as its age.
        following.disconnected("connection refused".to_owned());
        assert_eq!(following.readiness(at(300)), Ok(()));
        fail(400);
        let why = following.readiness(at(500)).unwrap_err();
        assert!(why.contains("after event 10") && why.contains("a line is too long"), "{why}");
        following.connected("http://a", Some(12), at(600), at(600));
        assert!(following.readiness(at(600)).is_err());
        assert!(following.lag(at(600)).error.is_some());
        following.applied(at(700), 11);
        assert_eq!(following.readiness(at(700)), Ok(()));
        assert_eq!(following.lag(at(700)).error, None);
    }

    #[test]
    fn streams_end_when_the_copy_is_replaced() {
        let following = following(true);
        let streams = following.streams();
        following.applied(at(0), 11);
        assert!(!streams.is_cancelled());
        following.copied(at(0), 5);
        assert!(streams.is_cancelled() && !following.streams().is_cancelled());
    }
}
