//! Owns randomness: a seeded generator that the caller passes in, so that every decision can be replayed.

use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

/// SplitMix64: small, fast, good enough for jitter and ids, and the same everywhere.
#[derive(Clone, Debug)]
pub struct Dice {
    state: u64,
    /// The millisecond of the last id, and how many ids it has: the ids of one generator stay in order.
    last_ms: u64,
    made: u16,
}

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self { state: seed, last_ms: 0, made: 0 }
    }

    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a value below `bound`; 0 if `bound` is 0. The modulo bias is too small to matter for jitter.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next_u64() % bound }
    }

    /// Returns a duration from zero up to and including `limit`.
    pub fn up_to(&mut self, limit: Duration) -> Duration {
        let limit_us = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX - 1);
        Duration::from_micros(self.below(limit_us + 1))
    }

    /// Returns a random UUID (version 4).
    pub fn uuid(&mut self) -> Uuid {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.next_u64().to_be_bytes());
        bytes[8..].copy_from_slice(&self.next_u64().to_be_bytes());
        uuid::Builder::from_random_bytes(bytes).into_uuid()
    }

    /// Returns a time-ordered UUID (version 7) with a counter in the bits after the time.
    pub fn uuid_at(&mut self, now: Timestamp) -> Uuid {
        let millis = u64::try_from(now.as_millisecond()).unwrap_or(0);
        self.made = if millis == self.last_ms { self.made.wrapping_add(1) } else { 0 };
        self.last_ms = millis;
        let mut random = [0; 10];
        random[..2].copy_from_slice(&self.made.to_be_bytes());
        random[2..].copy_from_slice(&self.next_u64().to_be_bytes());
        uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_throws() {
        let (mut a, mut b) = (Dice::new(7), Dice::new(7));
        assert_eq!((a.next_u64(), a.uuid()), (b.next_u64(), b.uuid()));
    }

    #[test]
    fn ids_of_a_later_time_sort_later() {
        let mut dice = Dice::new(1);
        let early = dice.uuid_at(Timestamp::from_millisecond(1_000).unwrap());
        let late = dice.uuid_at(Timestamp::from_millisecond(1_001).unwrap());
        assert!(early < late);
        assert_eq!(late.get_version_num(), 7);
    }
}
