//! Measures the machine's own rate of processes: tight loops that start `/bin/true` and wait for it.

use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use crate::failure::{Failure, Result};

/// A loop waits while its process runs. If others use the cores too, more loops than cores get a larger share.
const CROWD: u32 = 4;

/// Processes per second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    pub per_core: f64,
    pub crowded: f64,
}

impl Rate {
    /// Blocks until this many have ended, twice.
    pub(super) fn count(processes: u32) -> Result<Self> {
        let threads = u32::try_from(cores()).unwrap_or(u32::MAX);
        let crowd = threads.saturating_mul(CROWD);
        Ok(Self { per_core: per_second(processes, threads)?, crowded: per_second(processes, crowd)? })
    }

    pub(super) fn most(self) -> f64 {
        self.per_core.max(self.crowded)
    }
}

fn per_second(processes: u32, threads: u32) -> Result<f64> {
    let begun = Instant::now();
    let ended = thread::scope(|scope| {
        let loops: Vec<_> = (0..threads)
            .map(|thread| {
                let share = processes / threads + u32::from(thread < processes % threads);
                scope.spawn(move || (0..share).try_for_each(|_| start_and_wait()))
            })
            .collect();
        loops.into_iter().try_for_each(|one| {
            one.join().unwrap_or_else(|_| Err(std::io::Error::other("a thread panicked")))
        })
    });
    ended.map_err(|error| Failure::bug(format!("cannot start /bin/true: {error}")))?;
    Ok(f64::from(processes) / begun.elapsed().as_secs_f64())
}

pub(super) fn cores() -> usize {
    thread::available_parallelism().map_or(1, |cores| cores.get())
}

/// Starts the smallest process: no pipes, no own environment, no group.
fn start_and_wait() -> std::io::Result<()> {
    let mut command = Command::new("/bin/true");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().map(drop)
}
