//! Decides how many events are read from the store at once. An event may add thousands of executions and
//! have megabytes, and a slow reader keeps what it has read in memory.

use downbeat_core::Event;
use serde::Serialize;

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

    pub(crate) fn note(&mut self, events: &[Event]) {
        self.set_by(events.iter().map(size).sum());
    }

    fn set_by(&mut self, bytes: usize) {
        self.at_once = if bytes > LARGE_BYTES { FIRST } else { (self.at_once * 2).min(MOST) };
    }
}

/// Returns the size of a row as JSON, in bytes. A row that cannot be serialized fails when it is sent.
pub(crate) fn size<T: Serialize>(row: &T) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    let _ = serde_json::to_writer(&mut count, row);
    count.0
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
