//! Owns the signals that stop a process: the first stops it gracefully, the second at once.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use crate::exit::{Code, Failure, Result};

/// The same signal within this time is the same request: `timeout` signals a process and then its group, which contains
/// that process.
const SAME_REQUEST: Duration = Duration::from_secs(1);

/// SIGTERM and SIGINT.
#[derive(Debug)]
pub(super) struct Stop {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    first: Option<(SignalKind, Instant)>,
}

/// A second signal arrived before the graceful stop was done.
#[derive(Debug)]
pub(super) struct Forced;

impl From<Forced> for Failure {
    fn from(_: Forced) -> Self {
        Failure::new(Code::RunFailed, "stopped at once by a second signal")
    }
}

impl Stop {
    /// Starts to listen: from now on the signals no longer end the process.
    pub(super) fn listen() -> Result<Self> {
        let listen =
            |kind| signal(kind).map_err(|error| Failure::bug(format!("cannot listen for signals: {error}")));
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            first: None,
        })
    }

    pub(super) async fn requested(&mut self) {
        loop {
            let kind = tokio::select! {
                _ = self.terminate.recv() => SignalKind::terminate(),
                _ = self.interrupt.recv() => SignalKind::interrupt(),
            };
            let now = Instant::now();
            if !is_same_request(self.first, kind, now) {
                self.first.get_or_insert((kind, now));
                return;
            }
        }
    }

    /// Runs a graceful stop until it is done or a second signal arrives.
    pub(super) async fn unless_forced<T>(&mut self, graceful: impl Future<Output = T>) -> Result<T, Forced> {
        tokio::select! {
            result = graceful => Ok(result),
            () = self.requested() => Err(Forced),
        }
    }
}

fn is_same_request(first: Option<(SignalKind, Instant)>, next: SignalKind, now: Instant) -> bool {
    first.is_some_and(|(kind, at)| kind == next && now.saturating_duration_since(at) < SAME_REQUEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_signal_within_a_second_is_the_same_request() {
        let (terminate, interrupt) = (SignalKind::terminate(), SignalKind::interrupt());
        let at = Instant::now();
        let first = Some((terminate, at));
        assert!(!is_same_request(None, terminate, at));
        assert!(is_same_request(first, terminate, at));
        assert!(is_same_request(first, terminate, at + Duration::from_millis(999)));
        assert!(!is_same_request(first, terminate, at + SAME_REQUEST));
        assert!(!is_same_request(first, interrupt, at), "a user who presses Ctrl-C wants to force it");
    }
}
