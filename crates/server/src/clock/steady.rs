//! Decides what time it is: a pure function of the readings of a reference clock and of a monotonic clock.
//!
//! The reference may jump by hours: somebody sets it, or this machine was suspended. The steady clock never
//! jumps with it. It counts on with the monotonic clock and approaches the reference at a bounded rate, so
//! that a duration is wrong by at most that rate.

/// The steady clock gains or loses at most one part in this many: a lease of 30 s is wrong by at most 0.3 s,
/// and a reference that was set by an hour is reached after 100 hours. Clocks of real machines drift by less
/// than one part in 2,000, so the steady clock always keeps up with them.
const SLEW: i64 = 100;

/// All times are in microseconds: `monotonic_us` since the start of the process, all others since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Steady {
    /// The time at `monotonic_us`.
    time_us: i64,
    monotonic_us: i64,
    /// How far the reference was ahead at that time.
    ahead_us: i64,
}

impl Steady {
    /// Starts at the first reading.
    pub(super) fn start(reading_us: i64, monotonic_us: i64) -> Self {
        Self { time_us: reading_us, monotonic_us, ahead_us: 0 }
    }

    pub(super) fn now(&self, monotonic_us: i64) -> i64 {
        let elapsed_us = monotonic_us.saturating_sub(self.monotonic_us).max(0);
        let most_us = elapsed_us / SLEW;
        self.time_us.saturating_add(elapsed_us).saturating_add(self.ahead_us.clamp(-most_us, most_us))
    }

    /// Notes a reading of the reference that may be wrong by `doubt_us`. A difference within the doubt is
    /// ignored. Returns how far the reference is ahead, or behind if negative.
    pub(super) fn read(&mut self, reading_us: i64, doubt_us: i64, monotonic_us: i64) -> i64 {
        let now_us = self.now(monotonic_us);
        let ahead_us = reading_us.saturating_sub(now_us);
        let ahead_us = if ahead_us.saturating_abs() <= doubt_us { 0 } else { ahead_us };
        *self = Self { time_us: now_us, monotonic_us: self.monotonic_us.max(monotonic_us), ahead_us };
        ahead_us
    }

    /// Steps forward to a time that was already recorded: it cannot be in the future.
    pub(super) fn not_before(&mut self, recorded_us: i64, monotonic_us: i64) {
        if recorded_us > self.now(monotonic_us) {
            let monotonic_us = self.monotonic_us.max(monotonic_us);
            let reference_us = self.time_us + (monotonic_us - self.monotonic_us) + self.ahead_us;
            *self = Self { time_us: recorded_us, monotonic_us, ahead_us: reference_us - recorded_us };
        }
    }

    pub(super) fn read_at(&self) -> i64 {
        self.monotonic_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000;
    const HOUR: i64 = 3_600 * S;

    /// Starts at 1,000 s, and reads the reference every second for `seconds`: it is off by `jump_us` from the
    /// first of these readings on.
    fn after_jump(jump_us: i64, seconds: i64) -> Steady {
        let mut clock = Steady::start(1_000 * S, 0);
        for second in 1..=seconds {
            clock.read(1_000 * S + second * S + jump_us, 0, second * S);
        }
        clock
    }

    #[test]
    fn a_jump_of_the_reference_is_approached_by_one_part_in_a_hundred() {
        for (jump_us, seconds, off_us) in [
            // The first reading is after a second: the jump has an effect from then on.
            (0, 100, 0),
            (HOUR, 1, 0),
            (HOUR, 101, S),
            (-HOUR, 101, -S),
            (HOUR, 1 + 30, 300_000),
            (-HOUR, 1 + 30, -300_000),
            (HOUR, 1 + 360_000, HOUR),
            (-HOUR, 1 + 360_000, -HOUR),
            (10 * 365 * 24 * HOUR, 101, S),
            // Small differences are absorbed completely.
            (20_000, 3, 20_000),
            (20_000, 50, 20_000),
        ] {
            let clock = after_jump(jump_us, seconds);
            assert_eq!(clock.now(seconds * S) - (1_000 + seconds) * S, off_us, "{jump_us} after {seconds} s");
        }
    }

    #[test]
    fn it_runs_evenly_and_never_backwards_whatever_the_reference_reads() {
        let readings = [5 * HOUR, -HOUR, 0, i64::MAX, i64::MIN, 1_000 * S, HOUR];
        let mut clock = Steady::start(1_000 * S, 0);
        let mut before = clock.now(0);
        for (number, reading) in (1..).zip(readings.iter().cycle().take(1_000)) {
            let monotonic_us = number * S / 4;
            clock.read(*reading, 0, monotonic_us);
            let now = clock.now(monotonic_us);
            let elapsed = now - before;
            assert!((S / 4 - S / 400..=S / 4 + S / 400).contains(&elapsed), "{reading}: {elapsed} µs");
            before = now;
        }
    }

    #[test]
    fn between_two_readings_it_does_not_overshoot() {
        let mut clock = Steady::start(0, 0);
        clock.read(50_000, 0, 0);
        for (monotonic_us, expected) in
            [(S, S + 10_000), (5 * S, 5 * S + 50_000), (500 * S, 500 * S + 50_000)]
        {
            assert_eq!(clock.now(monotonic_us), expected);
        }
    }

    #[test]
    fn a_reading_within_its_doubt_changes_nothing() {
        let mut clock = Steady::start(0, 0);
        assert_eq!(clock.read(S + 9_000, 10_000, S), 0);
        assert_eq!(clock.now(100 * S), 100 * S);
        assert_eq!(clock.read(100 * S + 11_000, 10_000, 100 * S), 11_000);
        assert_eq!(clock.now(200 * S), 200 * S + 11_000);
    }

    #[test]
    fn after_a_suspend_the_monotonic_clock_counts() {
        // The monotonic clock stood still for an hour.
        let mut clock = Steady::start(0, 0);
        clock.read(10 * S, 0, 10 * S);
        assert_eq!(clock.read(HOUR + 11 * S, 0, 11 * S), HOUR);
        assert_eq!(clock.now(12 * S), 12 * S + S / 100);
    }

    #[test]
    fn it_is_not_before_a_recorded_time_and_then_approaches_the_reference() {
        let mut clock = Steady::start(1_000 * S, 0);
        clock.not_before(900 * S, 0);
        assert_eq!(clock.now(0), 1_000 * S, "a time in the past changes nothing");
        clock.not_before(1_000 * S + HOUR, 0);
        assert_eq!(clock.now(0), 1_000 * S + HOUR);
        assert_eq!(clock.now(100 * S), 1_099 * S + HOUR, "the reference is an hour behind");
        clock.read(1_100 * S, 0, 100 * S);
        assert_eq!(clock.now(200 * S), 1_198 * S + HOUR);
    }
}
