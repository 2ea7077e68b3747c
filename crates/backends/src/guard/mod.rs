//! The guard: a process beside the agent that ends work when the agent cannot. An agent that was killed or frozen ends
//! nothing, and a clock that stands still during suspend does not tell it that its time is over. The agent tells the
//! guard over a pipe how long the work may go on; the guard ends the work when that time is over, or the pipe closes.

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

/// The time since boot, with the time that the machine was suspended.
pub fn boot_time() -> Duration {
    // The call fails only for a clock that the kernel does not have.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}
