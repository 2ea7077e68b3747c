//! Owns the stored numbers of statuses. They never change their meaning.

use downbeat_core::execution::{Status, Stream, Verdict};
use downbeat_core::node::NodeStatus;
use downbeat_core::run::RunState;

use crate::port::Error;

/// A closed set that is stored as a small number.
pub(crate) trait Code: Sized + Copy {
    const WHAT: &'static str;
    fn code(self) -> i16;
    fn find(code: i16) -> Option<Self>;

    fn decode(code: i16) -> Result<Self, Error> {
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

// The SQL uses these numbers: open executions are 0 to 2, leased ones are 1 and 2, offline nodes are 2, ended runs are
// 10 to 12.
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
