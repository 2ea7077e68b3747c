//! Owns the stored numbers of statuses. They never change their meaning.

use downbeat_core::cluster::OnRegister;
use downbeat_core::delivery::DeliveryStatus;
use downbeat_core::execution::{Status, Stream, Verdict};
use downbeat_core::node::NodeStatus;
use downbeat_core::run::{Keeps, RunState, StopCause};

use crate::port::{Error, Result, RunOrder};

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
codes!("order of runs" RunOrder {
    NewestFirst = 0, OldestFirst = 1, LastEndedFirst = 2, FirstEndedFirst = 3,
});
codes!("kept counts" Keeps { Nothing = 0, Totals = 1, Steps = 2 });
codes!("run state" RunState {
    PreRun = 0, Pending = 1, ConditionPending = 2, ConditionRunning = 3, ActionPending = 4, ActionRunning = 5,
    Starting = 6, Running = 7, Terminating = 8, Retrying = 9, Completed = 10, Failed = 11, Cancelled = 12,
    Orphaned = 13,
});
codes!("way to register" OnRegister { Reset = 0, Resume = 1 });
codes!("cause of a stop" StopCause { CleaningUp = 0, TimedOut = 1, Rejected = 2 });
codes!("node status" NodeStatus { Online = 0, Stale = 1, Offline = 2 });
codes!("status of a delivery" DeliveryStatus { Pending = 0, Delivered = 1, Failed = 2 });
codes!("verdict" Verdict { Succeeded = 0, Failed = 1, Cancelled = 2 });
codes!("stream" Stream { Stdout = 0, Stderr = 1 });

/// The conditions of SQL that name statuses by number, for `concat!`: the only place where they are written. Indexes have
/// the same text.
macro_rules! condition {
    (ended runs) => {
        "IN (10, 11, 12, 13)"
    };
    // No index has the orphaned runs, which are few.
    (indexed ended runs) => {
        "IN (10, 11, 12)"
    };
    // SQLite uses an index only for its own words.
    (open runs) => {
        "NOT IN (10, 11, 12) AND state <> 13"
    };
    // Quotes in texts are escaped, so only a field is found. A param of this name costs a repeated check.
    (applied triggers) => {
        "kind = 'job_applied' AND data LIKE '%\"triggers_seen\":%'"
    };
    (active runs of a job) => {
        "state NOT IN (10, 11, 12) AND state IN (6, 7, 8)"
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
    (standing runs) => {
        "run >= 'standing:' AND run < 'standing;'"
    };
    (visible run) => {
        "(r.id < 'standing:' OR r.id >= 'standing;')"
    };
    (alive clusters) => {
        "deleted_at IS NULL"
    };
    (deleted clusters) => {
        "SELECT id FROM clusters WHERE deleted_at IS NOT NULL"
    };
    (debug run) => {
        "substr(r.id, 1, 6) = 'debug:'"
    };
    (open executions) => {
        "status <= 2"
    };
    (held executions) => {
        "status <= 2 AND status >= 1"
    };
    (leased executions) => {
        "IN (1, 2)"
    };
    (ended executions) => {
        "status > 2"
    };
    (former was lost) => {
        "former = 7"
    };
    (unsuccessful executions) => {
        "status > 3"
    };
    (replaceable executions) => {
        "IN (4, 6, 7)"
    };
    (unsent executions) => {
        "executions.status = 5 OR (executions.status = 6 AND executions.token IS NULL)"
    };
    (later one is unsent) => {
        "l.status = 5 OR (l.status = 6 AND l.token IS NULL)"
    };
}
pub(crate) use condition;

#[cfg(test)]
mod tests {
    use downbeat_core::Timestamp;
    use downbeat_core::ids::ServerId;
    use downbeat_core::run::{RunEnd, RunLive, RunStage};
    use rusqlite::Connection;

    use super::*;

    /// Evaluates a condition for a row with this code.
    fn holds(condition: &str, code: i16, admitted_at: Option<i64>) -> bool {
        let row = "SELECT ?1 AS state, ?1 AS status, ?1 AS former, ?2 AS admitted_at";
        let sql = format!("SELECT {condition} FROM ({row})");
        let store = Connection::open_in_memory().unwrap();
        store.query_row(&sql, (code, admitted_at), |row| row.get(0)).unwrap()
    }

    #[test]
    fn conditions_on_runs_agree_with_core() {
        for (state, admitted_at) in
            RunState::ALL.into_iter().flat_map(|state| [(state, None), (state, Some(1))])
        {
            let end = state.is_terminal().then(|| (Timestamp::UNIX_EPOCH, RunEnd::default()));
            let stage = RunStage::of(state, admitted_at.is_some(), end).unwrap();
            let live = RunLive { stage, ..RunLive::new(ServerId(uuid::Uuid::nil())) };
            let holds = |condition| holds(condition, state.code(), admitted_at);
            let (open, due) =
                (holds(concat!("state ", condition!(open runs))), holds(condition!(run is due)));
            let had_its_turn = holds(condition!(run had its turn));
            let found = [
                holds(concat!("state ", condition!(ended runs))),
                open,
                due,
                holds(condition!(run waits)),
                open && due && had_its_turn,
            ];
            let is_due = live.stage != RunStage::Scheduled;
            let expected = [live.is_ended(), !live.is_ended(), is_due, live.is_waiting(), live.is_active()];
            assert_eq!(found, expected, "{state}, admitted: {admitted_at:?}");
        }
    }

    #[test]
    fn conditions_on_executions_agree_with_core() {
        for status in Status::ALL {
            let holds = |condition| holds(condition, status.code(), None);
            let found = [
                holds(condition!(open executions)),
                holds(condition!(held executions)),
                holds(concat!("status ", condition!(leased executions))),
                holds(condition!(ended executions)),
                holds(condition!(unsuccessful executions)),
                holds(concat!("status ", condition!(replaceable executions))),
                holds(condition!(former was lost)),
            ];
            let is_leased = matches!(status, Status::Leased | Status::Running);
            let is_unsuccessful = !status.is_open() && status != Status::Succeeded;
            let may_be_replaced = is_unsuccessful && status != Status::Skipped;
            let is_ended = !status.is_open();
            let is_lost = status == Status::Lost;
            let expected =
                [status.is_open(), is_leased, is_leased, is_ended, is_unsuccessful, may_be_replaced, is_lost];
            assert_eq!(found, expected, "{status}");
        }
    }
}
