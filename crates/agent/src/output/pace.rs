//! Owns the amount of output per message: large on a fast network, which helps the store; small on a slow one, so that
//! other messages do not wait.

use std::time::Duration;

use downbeat_core::limits::OUTPUT_CHUNK_BYTES;
use downbeat_proto::message::OutputChunk;

use super::{CHUNK_OVERHEAD_BYTES, cost};

/// One full chunk. At 20 kB/s it takes less than a second.
pub(crate) const LEAST_BYTES: usize = OUTPUT_CHUNK_BYTES + CHUNK_OVERHEAD_BYTES;
const FIRST_BYTES: usize = 64 * 1024;
const MOST_BYTES: usize = 1024 * 1024;
/// The limit for the control link, where heartbeats may have to wait for the message.
const MOST_CONTROL_BYTES: usize = 256 * 1024;
/// A message that took longer makes the next one smaller.
const SLOW: Duration = Duration::from_secs(1);
/// A full message that took less makes the next one larger.
const FAST: Duration = Duration::from_millis(200);

/// The size of the next message, learned from the duration of the last ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    bytes: usize,
    most_bytes: usize,
}

impl Pace {
    pub(crate) fn of_bulk() -> Self {
        Self { bytes: FIRST_BYTES, most_bytes: MOST_BYTES }
    }

    pub(crate) fn of_control() -> Self {
        Self { bytes: FIRST_BYTES, most_bytes: MOST_CONTROL_BYTES }
    }

    /// At least `LEAST_BYTES`, so that a message always fits one chunk.
    pub(crate) fn bytes(self) -> usize {
        self.bytes
    }

    /// Adapts the size after a message of this cost took this time.
    pub(crate) fn answered(&mut self, sent_bytes: usize, took: Duration) {
        if took > SLOW {
            self.slower();
        } else if took < FAST && sent_bytes > self.bytes / 2 {
            self.bytes = (self.bytes * 2).min(self.most_bytes);
        }
    }

    /// Reduces the size after a timeout.
    pub(crate) fn slower(&mut self) {
        self.bytes = (self.bytes / 2).max(LEAST_BYTES);
    }
}

/// Returns how many of these chunks fit into a message of this size; at least one.
pub(crate) fn fitting(chunks: &[OutputChunk], message_bytes: usize) -> usize {
    let mut bytes = 0;
    let fitting = chunks.iter().take_while(|chunk| {
        bytes += cost(chunk);
        bytes <= message_bytes
    });
    fitting.count().max(1).min(chunks.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the size that a network of this speed leads to.
    fn learned_size(bytes_per_second: usize) -> usize {
        let mut pace = Pace::of_bulk();
        for _ in 0..20 {
            let took_ms = pace.bytes() * 1_000 / bytes_per_second;
            pace.answered(pace.bytes(), Duration::from_millis(u64::try_from(took_ms).unwrap()));
        }
        pace.bytes()
    }

    #[test]
    fn messages_are_large_on_a_fast_line_and_take_about_a_second_on_a_slow_one() {
        assert_eq!(learned_size(100_000_000), MOST_BYTES);
        assert_eq!(learned_size(1_000_000), 256 * 1024);
        assert_eq!(learned_size(100_000), 64 * 1024);
        assert_eq!(learned_size(20_000), LEAST_BYTES);
        assert_eq!(learned_size(1_000), LEAST_BYTES, "one chunk goes in any case");
    }

    #[test]
    fn messages_that_are_not_full_do_not_change_the_size() {
        let mut pace = Pace::of_bulk();
        for _ in 0..20 {
            pace.answered(100, Duration::from_millis(1));
        }
        assert_eq!(pace, Pace::of_bulk());
    }

    #[test]
    fn a_timeout_makes_messages_smaller_and_a_good_line_makes_them_large_again() {
        let mut pace = Pace::of_bulk();
        (0..10).for_each(|_| pace.slower());
        assert_eq!(pace.bytes(), LEAST_BYTES);
        for _ in 0..10 {
            pace.answered(pace.bytes(), Duration::from_millis(1));
        }
        assert_eq!(pace.bytes(), MOST_BYTES);
    }
}
