//! Owns the stored numbers of statuses. They never change their meaning.

use downbeat_core::execution::{Status, Stream, Verdict};
use downbeat_core::node::NodeStatus;
use downbeat_core::run::RunState;

use crate::port::{Error, Result};

/// A closed set that is stored as a small number.
pub(crate) trait Code: Sized + Copy {
    const WHAT: &'static str;
    fn code(self) -> i16;
    fn find(code: i16) -> Option<Self>;

    fn decode(code: i16) -> Result<Self> {
        Self::find(code).ok_or_else(|| Error::Corrupt(format!("{} {code} is unknown", Self::WHAT)))
    }
}

macro_rules! codes {
    ($what:literal $type:ident { $($variant:ident = $code:literal),+ $(,)? }) => {
        impl Code for $type {
            const WHAT: &'static str = $what;

            fn code(self) -> i16 {
                match self { $($type::$variant => $code),+ }
            }

            fn find(code: i16) -> Option<Self> {
                match code { $($code => Some($type::$variant),)+ _ => None }
            }
        }
    };
}

codes!("execution status" Status {
    Pending = 0, Leased = 1, Running = 2, Succeeded = 3, Failed = 4, Skipped = 5, Cancelled = 6, Lost = 7,
});
codes!("run state" RunState {
    PreRun = 0, Pending = 1, ConditionPending = 2, ConditionRunning = 3, ActionPending = 4, ActionRunning = 5,
    Starting = 6, Running = 7, Terminating = 8, Retrying = 9, Completed = 10, Failed = 11, Cancelled = 12,
    Orphaned = 13,
});
codes!("node status" NodeStatus { Online = 0, Stale = 1, Offline = 2 });
codes!("verdict" Verdict { Succeeded = 0, Failed = 1, Cancelled = 2 });
codes!("stream" Stream { Stdout = 0, Stderr = 1 });

/// The conditions of SQL that name statuses by number, for `concat!`: the only place where they are written. Indexes have
/// the same text.
macro_rules! condition {
    (ended runs) => {
        "IN (10, 11, 12)"
    };
    (open runs) => {
        "NOT IN (10, 11, 12)"
    };
    (run waits) => {
        "state = 1 AND admitted_at IS NULL"
    };
    (run had its turn) => {
        "state > 1 OR admitted_at IS NOT NULL"
    };
    (run is due) => {
        "state > 0"
    };
    (open executions) => {
        "status <= 2"
    };
    (leased executions) => {
        "IN (1, 2)"
    };
}
pub(crate) use condition;

#[cfg(test)]
mod tests {
    use downbeat_core::run::RunStage;

    use super::*;

    /// The codes that a list such as `IN (1, 2)` names.
    fn listed(condition: &str) -> Vec<i16> {
        let list = condition.split_once('(').unwrap().1.trim_end_matches(')');
        list.split(", ").map(|code| code.parse().unwrap()).collect()
    }

    #[test]
    fn conditions_name_the_states_that_core_says() {
        let ended = RunState::ALL.into_iter().filter(|state| state.is_terminal());
        let ended: Vec<i16> = ended.map(Code::code).collect();
        assert_eq!(listed(condition!(ended runs)), ended);
        assert_eq!(listed(condition!(open runs)), ended);
        for state in RunState::ALL {
            assert_eq!(RunStage::Waiting.state() == state, state.code() == 1, "{state}");
            assert_eq!(RunStage::Scheduled.state() == state, state.code() <= 0, "{state}");
        }
        for status in Status::ALL {
            let is_leased = status.is_open() && status != Status::Pending;
            assert_eq!(listed(condition!(leased executions)).contains(&status.code()), is_leased, "{status}");
            assert_eq!(status.code() <= 2, status.is_open(), "{status}");
        }
    }
}
