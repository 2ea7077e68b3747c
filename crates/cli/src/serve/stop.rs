//! Owns the signals that end a process: the first asks, the second insists.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use crate::exit::{Code, Failure};

/// Within this time the same signal again is the same request: `timeout` signals a process and then its group, which is
/// that process again.
const SAME_REQUEST: Duration = Duration::from_secs(1);

/// SIGTERM and SIGINT.
#[derive(Debug)]
pub(super) struct Stop {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    first: Option<(SignalKind, Instant)>,
}

/// A second signal came before a graceful end was done.
#[derive(Debug)]
pub(super) struct Insisted;

impl From<Insisted> for Failure {
    fn from(_: Insisted) -> Self {
        Failure::new(Code::RunFailed, "ended at once, as told by a second signal")
    }
}

impl Stop {
    /// From here on the signals no longer end the process by themselves.
    pub(super) fn listen() -> Result<Self, Failure> {
        let listen =
            |kind| signal(kind).map_err(|error| Failure::bug(format!("cannot listen for signals: {error}")));
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            first: None,
        })
    }

    /// The next signal.
    pub(super) async fn asked(&mut self) {
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

    /// Carries out a graceful end, unless a second signal comes.
    pub(super) async fn or_insist<T>(&mut self, graceful: impl Future<Output = T>) -> Result<T, Insisted> {
        tokio::select! {
            result = graceful => Ok(result),
            () = self.asked() => Err(Insisted),
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
        assert!(!is_same_request(first, interrupt, at), "a person who presses Ctrl-C insists");
    }
}
