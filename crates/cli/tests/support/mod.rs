//! What tests on real processes share: waiting for conditions, seeds, processes, small disks. What a site looks like is
//! each test's own.

#![allow(dead_code, unreachable_pub, unused_imports, reason = "not every test target needs all of it")]

mod disk;

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

pub(crate) use disk::SmallDisk;

/// Long enough for any of this on a busy machine; what is waited for is a condition, never the time.
pub(crate) const DEADLINE: Duration = Duration::from_secs(90);

/// Tries until it gives something; nothing when it takes far too long.
pub(crate) async fn within<T, F: Future<Output = Option<T>>>(
    deadline: Duration,
    mut attempt: impl FnMut() -> F,
) -> Option<T> {
    let begun = Instant::now();
    loop {
        if let Some(value) = attempt().await {
            return Some(value);
        }
        if begun.elapsed() > deadline {
            return None;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Tries until it gives something; panics when it takes far too long.
pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(
    what: &str,
    attempt: impl FnMut() -> F,
) -> T {
    match within(DEADLINE, attempt).await {
        Some(value) => value,
        None => panic!("{what}: not after {} s", DEADLINE.as_secs()),
    }
}

/// Ports that the system gives to no connection by itself: one that is free now is still free when a server that was
/// killed listens there again.
const PORTS: std::ops::Range<u16> = 30_000..32_000;

/// An address that nobody listens at, and that this process hands out once.
pub(crate) fn free_address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let count = u32::from(PORTS.end - PORTS.start);
    // Test programs that run side by side begin at different ports.
    let first = std::process::id().wrapping_mul(331) % count;
    loop {
        let offset = (first + NEXT.fetch_add(1, Ordering::Relaxed)) % count;
        let address = format!("127.0.0.1:{}", u32::from(PORTS.start) + offset);
        if TcpListener::bind(&address).is_ok() {
            return address;
        }
    }
}

/// Whether a process exists and is not a zombie.
pub(crate) fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

/// Signals a process that may be gone.
pub(crate) fn signal(pid: i32, signal: Signal) {
    let _ = kill(Pid::from_raw(pid), signal);
}

/// A seed that is printed, and can be given.
#[allow(clippy::print_stdout, reason = "whoever looks at a failure needs it")]
pub(crate) fn seed() -> u64 {
    let seed = std::env::var("DOWNBEAT_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(uuid::Uuid::new_v4().as_fields().0));
    println!("DOWNBEAT_TEST_SEED={seed}");
    seed
}
