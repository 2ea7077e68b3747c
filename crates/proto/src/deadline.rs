//! Owns the deadlines of calls. A deadline grows with the bytes that the call carries, so that a slow network does not
//! look like a dead server.

use std::time::Duration;

use downbeat_core::limits::POLL_RESPONSE_BYTES;

/// A commit, and a margin for a busy store.
const CALL: Duration = Duration::from_secs(10);
/// The slowest network that carries every message in time.
const LINE_BYTES_PER_SECOND: u64 = 16 * 1024;

/// Returns how long a call may take whose request and response have at most this many bytes together.
pub fn deadline(bytes: usize) -> Duration {
    let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
    CALL.saturating_add(Duration::from_millis(bytes.saturating_mul(1_000) / LINE_BYTES_PER_SECOND))
}

/// Returns how long a poll may take that waits for `wait`. The size of its response is not known before: other calls,
/// with immediate responses, detect a dead server.
pub fn poll_deadline(wait: Duration) -> Duration {
    wait.saturating_add(deadline(POLL_RESPONSE_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_grows_with_the_bytes_of_the_call() {
        let cases = [
            (0, 10_000),
            (16, 10_000),
            (16 * 1024, 11_000),
            (64 * 1024, 14_000),
            (1024 * 1024, 74_000),
            (10 * 1024 * 1024, 650_000),
        ];
        for (bytes, deadline_ms) in cases {
            assert_eq!(deadline(bytes), Duration::from_millis(deadline_ms), "{bytes}");
        }
        assert!(deadline(usize::MAX) > deadline(10 * 1024 * 1024), "it does not overflow");
    }

    #[test]
    fn a_mebibyte_over_twenty_kilobytes_a_second_arrives_in_time() {
        assert!(Duration::from_secs(1024 * 1024 / 20_000) < deadline(1024 * 1024));
    }
}
