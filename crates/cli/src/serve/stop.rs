//! Owns the signals that end a process: the first asks, the second insists.

use tokio::signal::unix::{SignalKind, signal};

use crate::exit::{Code, Failure};

/// SIGTERM and SIGINT.
#[derive(Debug)]
pub(super) struct Stop {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Stop {
    /// From here on the signals no longer end the process by themselves.
    pub(super) fn listen() -> Result<Self, Failure> {
        let listen =
            |kind| signal(kind).map_err(|error| Failure::bug(format!("cannot listen for signals: {error}")));
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    /// The next signal.
    pub(super) async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Carries out a graceful end, unless a second signal comes.
    pub(super) async fn or_insist(
        &mut self,
        graceful: impl Future<Output = Result<(), Failure>>,
    ) -> Result<(), Failure> {
        tokio::select! {
            result = graceful => result,
            () = self.asked() => Err(Failure::new(Code::RunFailed, "ended at once, as told by a second signal")),
        }
    }
}
