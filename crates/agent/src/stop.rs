//! Owns the order to end one piece of work early, and why. How it ends is its backend's.

use std::sync::OnceLock;
use std::time::Duration;

use downbeat_backends::Finish;
use downbeat_core::Span;
use downbeat_core::execution::Verdict;
use tokio_util::sync::CancellationToken;

/// Why work ends before its time. The first reason counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The server said so.
    Told,
    TimedOut(Duration),
    /// The lease is somebody else's, or nobody's: nothing that the work says counts any more.
    Fenced,
    /// The lease could not be renewed for a full term, and the work must never overlap with another attempt.
    CutOff(Duration),
    /// The agent itself is told to stop, and the work did not end in time. It is let go of unreported: it is lost at once,
    /// and sent again where that is right.
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

    /// Whether work that ended like this did so only because the agent stops.
    pub(crate) fn abandons(&self, verdict: Verdict) -> bool {
        verdict == Verdict::Cancelled && self.reason.get() == Some(&Reason::Shutdown)
    }

    /// What the end of stopped work means. Work that was done before the order reached it is simply done.
    pub(crate) fn interpret(&self, finish: Finish) -> Finish {
        if finish.verdict != Verdict::Cancelled {
            return finish;
        }
        let (verdict, error) = match self.reason.get() {
            None | Some(Reason::Told) => (Verdict::Cancelled, finish.error),
            Some(Reason::TimedOut(after)) => {
                (Verdict::Failed, Some(format!("timed out after {}", Span(*after))))
            }
            Some(Reason::Fenced) => (Verdict::Cancelled, Some("the lease was lost".to_owned())),
            Some(Reason::CutOff(term)) => {
                (Verdict::Failed, Some(format!("stopped: no server could be reached for {}", Span(*term))))
            }
            Some(Reason::Shutdown) => {
                (Verdict::Cancelled, Some("stopped: the agent was told to stop".to_owned()))
            }
        };
        Finish { verdict, exit_code: finish.exit_code, error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_counts() {
        let stop = Stop::default();
        stop.request(Reason::TimedOut(Duration::from_secs(1800)));
        stop.request(Reason::Told);
        let finish = stop.interpret(Finish::cancelled(Some(143)));
        assert_eq!(finish, Finish::failed(Some(143), "timed out after 30m"));
    }

    #[test]
    fn only_work_that_the_agents_stop_has_ended_is_let_go_of() {
        let stop = Stop::default();
        assert!(!stop.abandons(stop.interpret(Finish::cancelled(None)).verdict));
        stop.request(Reason::Shutdown);
        assert!(stop.abandons(stop.interpret(Finish::cancelled(None)).verdict));
        assert!(!stop.abandons(stop.interpret(Finish::succeeded()).verdict), "it was done before");
        assert!(!stop.abandons(stop.interpret(Finish::failed(Some(1), "no")).verdict), "it failed by itself");
        let told = Stop::default();
        told.request(Reason::Told);
        told.request(Reason::Shutdown);
        assert!(!told.abandons(Verdict::Cancelled), "a server wanted it cancelled, and hears of it");
    }

    #[test]
    fn work_that_was_done_before_the_order_reached_it_is_done() {
        let stop = Stop::default();
        stop.request(Reason::Told);
        assert_eq!(stop.interpret(Finish::succeeded()), Finish::succeeded());
    }
}
