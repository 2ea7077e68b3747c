//! Owns waiting for the end of a process within tokio, by its pidfd: no handler for SIGCHLD, no thread.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::process::ExitStatus;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::command::Started;

/// A process whose end can be awaited.
#[derive(Debug)]
pub struct Watched(AsyncFd<Started>);

impl AsRawFd for Started {
    fn as_raw_fd(&self) -> RawFd {
        self.pidfd.as_raw_fd()
    }
}

impl Watched {
    /// Call it within a tokio runtime.
    pub fn new(started: Started) -> io::Result<Self> {
        // SAFETY: the pidfd belongs to `started`, which the `AsyncFd` owns: no other code can take or close it.
        let watched = unsafe { AsyncFd::register_with_interest(started, Interest::READABLE) };
        Ok(Self(watched?))
    }

    /// Can be dropped and called again until it has returned; not after.
    pub async fn end(&self) -> io::Result<ExitStatus> {
        loop {
            let mut ready = self.0.readable().await?;
            if let Some(status) = self.0.get_ref().try_wait()? {
                return Ok(status);
            }
            ready.clear_ready();
        }
    }
}
