//! Decides how many events are read from the store at once. An event may add thousands of executions and
//! have megabytes, and a slow reader keeps what it has read in memory.

use downbeat_core::Event;

use crate::size::size;

/// Few at first, and more as long as they are small.
const FIRST: u32 = 10;
const MOST: u32 = 50;
/// A read with more bytes than this counts as one of large events.
const LARGE_BYTES: usize = 1024 * 1024;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    at_once: u32,
}

impl Default for Pace {
    fn default() -> Self {
        Self { at_once: FIRST }
    }
}

impl Pace {
    pub(crate) fn at_once(self) -> u32 {
        self.at_once
    }

    /// Adapts the pace to the events that were read.
    pub(crate) fn note(&mut self, events: &[Event]) {
        self.set_by(events.iter().map(size).sum());
    }

    fn set_by(&mut self, bytes: usize) {
        self.at_once = if bytes > LARGE_BYTES { FIRST } else { (self.at_once * 2).min(MOST) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_events_are_read_few_at_a_time_and_small_ones_more() {
        let mut pace = Pace::default();
        let reads = [1_000, 1_000, 1_000, 1_000, LARGE_BYTES + 1].map(|bytes| {
            let read = pace.at_once();
            pace.set_by(bytes);
            read
        });
        assert_eq!((reads, pace.at_once()), ([10, 20, 40, 50, 50], 10));
    }
}
