//! Owns the request to end one piece of work early, and its reason. The backend decides how the work ends.

use std::sync::OnceLock;
use std::time::Duration;

use downbeat_backends::Finish;
use downbeat_core::Span;
use downbeat_core::execution::Verdict;
use tokio_util::sync::CancellationToken;

/// Why work ends early. The first reason counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// A server cancelled it.
    Cancelled,
    TimedOut(Duration),
    /// The lease is lost: results of the work no longer count.
    Fenced,
    /// The lease was not renewed for a full term, and the work must never overlap with another attempt.
    CutOff(Duration),
    /// The agent itself stops, and the work did not end in time. It is dropped unreported, so that it counts
    /// as lost at once and is retried where allowed.
    Shutdown,
}

#[derive(Debug, Default)]
pub(crate) struct Stop {
    token: CancellationToken,
    reason: OnceLock<Reason>,
}

impl Stop {
    pub(crate) fn request(&self, reason: Reason) {
        let _ = self.reason.set(reason);
        self.token.cancel();
    }

    pub(crate) fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// Returns whether work with this verdict ended only because the agent stops.
    pub(crate) fn abandons(&self, verdict: Verdict) -> bool {
        verdict == Verdict::Cancelled && self.reason.get() == Some(&Reason::Shutdown)
    }

    /// Converts the result of stopped work. Work that ended before the request reached it keeps its result.
    pub(crate) fn interpret(&self, finish: Finish) -> Finish {
        if finish.verdict != Verdict::Cancelled {
            return finish;
        }
        let (verdict, error) = match self.reason.get() {
            None | Some(Reason::Cancelled) => return finish,
            Some(Reason::TimedOut(after)) => (Verdict::Failed, format!("timed out after {}", Span(*after))),
            Some(Reason::Fenced) => (Verdict::Cancelled, "the lease was lost".to_owned()),
            Some(Reason::CutOff(term)) => {
                (Verdict::Failed, format!("stopped: no server could be reached for {}", Span(*term)))
            }
            Some(Reason::Shutdown) => (Verdict::Cancelled, "stopped: the agent is shutting down".to_owned()),
        };
        Finish { verdict, error: Some(error), ..finish }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_counts() {
        let stop = Stop::default();
        stop.request(Reason::TimedOut(Duration::from_secs(1800)));
        stop.request(Reason::Cancelled);
        let finish = stop.interpret(Finish::cancelled(Some(143)));
        assert_eq!(finish, Finish::failed(Some(143), "timed out after 30m"));
    }

    #[test]
    fn only_work_that_the_agents_stop_has_ended_is_abandoned() {
        let stop = Stop::default();
        assert!(!stop.abandons(stop.interpret(Finish::cancelled(None)).verdict));
        stop.request(Reason::Shutdown);
        assert!(stop.abandons(stop.interpret(Finish::cancelled(None)).verdict));
        assert!(!stop.abandons(stop.interpret(Finish::succeeded()).verdict), "it was done before");
        assert!(!stop.abandons(stop.interpret(Finish::failed(Some(1), "no")).verdict), "it failed by itself");
        let cancelled = Stop::default();
        cancelled.request(Reason::Cancelled);
        cancelled.request(Reason::Shutdown);
        assert!(!cancelled.abandons(Verdict::Cancelled), "a server cancelled it, and gets the result");
    }

    #[test]
    fn work_that_was_done_before_the_order_reached_it_is_done() {
        let stop = Stop::default();
        stop.request(Reason::Cancelled);
        assert_eq!(stop.interpret(Finish::succeeded()), Finish::succeeded());
    }
}
