//! Ties this process to the one that started it.

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, raise};
use nix::unistd::{Pid, getppid};

/// Makes the kernel send SIGTERM to this process when the thread that started it ends, however it ends. `parent` is the
/// process of that thread: if it has ended before, the signal is sent immediately.
pub fn stop_with_parent(parent: i32) -> nix::Result<()> {
    set_pdeathsig(Signal::SIGTERM)?;
    if getppid() == Pid::from_raw(parent) { Ok(()) } else { raise(Signal::SIGTERM) }
}
