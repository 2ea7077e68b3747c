//! The guard is a separate process that ends work when the agent cannot: an agent that was killed or frozen ends
//! nothing, and its timers stop during suspend. The agent writes deadlines to the guard over a pipe; the guard ends the
//! work after its deadline, or when the pipe closes.

mod keeper;
mod line;
mod program;
mod watch;

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

pub use keeper::Guard;
pub(crate) use line::Work;
pub use program::watch_over;
pub use watch::Deadlines;

/// Returns the time since boot, including suspended time.
pub fn boot_time() -> Duration {
    // Fails only on a kernel without this clock.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}
