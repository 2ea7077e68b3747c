//! Waits for a condition, with one deadline for all tests.

use std::time::{Duration, Instant};

/// Longer than anything that a test waits for, also on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(90);

const PAUSE: Duration = Duration::from_millis(10);

/// Calls `look` until it returns a value. Blocks the thread, and panics after [`DEADLINE`].
#[track_caller]
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(started.elapsed() < DEADLINE, "timed out after {} s: {what}", DEADLINE.as_secs());
        std::thread::sleep(PAUSE);
    }
}

/// Calls `look` until it returns a value. Returns nothing after the deadline.
pub async fn within<T, F: Future<Output = Option<T>>>(
    deadline: Duration,
    mut look: impl FnMut() -> F,
) -> Option<T> {
    let started = Instant::now();
    loop {
        if let Some(found) = look().await {
            return Some(found);
        }
        if started.elapsed() > deadline {
            return None;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Calls `look` until it returns a value. Panics after [`DEADLINE`].
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, look: impl FnMut() -> F) -> T {
    match within(DEADLINE, look).await {
        Some(found) => found,
        None => panic!("timed out after {} s: {what}", DEADLINE.as_secs()),
    }
}
