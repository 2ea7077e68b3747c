//! Decides whether a guard waits, exits or ends its work. Pure: lines and the time in, a decision out.

use std::fmt;
use std::time::Duration;

use super::line::{Line, Work};
use crate::process::Leader;

/// Until when work may continue unless its lease is renewed, in time since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// The work is asked to end at this time.
    pub end: Duration,
    /// All of it is killed at this time.
    pub kill: Duration,
}

/// Why a guard ended its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The pipe closed before the agent reported the work as done.
    AgentGone,
    NotRenewed,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AgentGone => "the agent is gone",
            Self::NotRenewed => "the agent did not renew its lease in time",
        })
    }
}

/// The lines that a guard has received so far.
#[derive(Debug, Default)]
pub(super) struct Watch {
    pub(super) work: Option<Work>,
    pub(super) leader: Option<Leader>,
    deadlines: Option<Deadlines>,
    done: bool,
    /// The pipe to the agent is closed.
    pub(super) closed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Until this time since boot, or the next line.
    Wait(Option<Duration>),
    /// There is nothing left to do.
    Leave,
    End {
        why: Ended,
        kill_at: Duration,
    },
}

impl Watch {
    pub(super) fn receive(&mut self, line: Line) {
        match line {
            Line::Work(work) => self.work = Some(work),
            Line::Started(leader) => self.leader = Some(leader),
            Line::Until(deadlines) => self.deadlines = Some(deadlines),
            Line::Done => self.done = true,
        }
    }

    pub(super) fn decide(&self, now: Duration) -> Decision {
        if self.done || (self.closed && self.work.is_none()) {
            return Decision::Leave;
        }
        match self.deadlines {
            Some(Deadlines { end, kill }) if end <= now => {
                Decision::End { why: Ended::NotRenewed, kill_at: kill }
            }
            Some(Deadlines { end, kill }) if self.closed => {
                // The same time to end by itself as it would have at its deadline.
                let grace = kill.saturating_sub(end);
                Decision::End { why: Ended::AgentGone, kill_at: kill.min(now + grace) }
            }
            None if self.closed => Decision::End { why: Ended::AgentGone, kill_at: now },
            deadlines => Decision::Wait(deadlines.map(|deadlines| deadlines.end)),
        }
    }
}

#[cfg(test)]
mod tests {
    use downbeat_core::ids::ExecutionId;
    use uuid::Uuid;

    use super::*;
    use crate::backend::Identity;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn watching(end: u64, kill: u64) -> Watch {
        let mut watch = Watch::default();
        let identity = Identity { execution: ExecutionId(Uuid::from_u128(1)), attempt: 1 };
        watch.receive(Line::Work(Work::Processes(identity)));
        watch.receive(Line::Until(Deadlines { end: at(end), kill: at(kill) }));
        watch
    }

    #[test]
    fn work_that_is_not_renewed_in_time_is_ended() {
        let mut watch = watching(100, 103);
        assert_eq!(watch.decide(at(99)), Decision::Wait(Some(at(100))));
        let ended = |kill| Decision::End { why: Ended::NotRenewed, kill_at: at(kill) };
        assert_eq!(watch.decide(at(100)), ended(103));
        // After a suspend, both times are long over.
        assert_eq!(watch.decide(at(4_000)), ended(103));
        watch.receive(Line::Until(Deadlines { end: at(110), kill: at(113) }));
        assert_eq!(watch.decide(at(105)), Decision::Wait(Some(at(110))));
    }

    #[test]
    fn work_of_an_agent_that_is_gone_is_ended_at_once() {
        let mut watch = watching(100, 103);
        watch.closed = true;
        assert_eq!(watch.decide(at(50)), Decision::End { why: Ended::AgentGone, kill_at: at(53) });
        assert_eq!(watch.decide(at(99)), Decision::End { why: Ended::AgentGone, kill_at: at(102) });
    }

    #[test]
    fn work_that_is_done_is_left_alone() {
        let mut watch = watching(100, 103);
        watch.receive(Line::Done);
        watch.closed = true;
        assert_eq!(watch.decide(at(50)), Decision::Leave);
        assert_eq!(watch.decide(at(200)), Decision::Leave);
    }

    #[test]
    fn a_guard_that_never_got_work_leaves_with_its_agent() {
        let mut watch = Watch::default();
        assert_eq!(watch.decide(at(1)), Decision::Wait(None));
        watch.closed = true;
        assert_eq!(watch.decide(at(1)), Decision::Leave);
    }
}
