//! Derives the metrics of a run from its record. Nothing is counted a second time for them.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::live::RunLive;
use super::states::Stay;
use super::words::RunState;

/// The metrics of a run. A phase is the sum of the stays that are over in its states.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunMetrics {
    pub pre_run: Duration,
    pub pending: Duration,
    pub constraints: Duration,
    pub actions: Duration,
    pub starting: Duration,
    pub running: Duration,
    pub terminating: Duration,
    pub retrying: Duration,
    /// From the creation to the end.
    pub total: Option<Duration>,
    /// From the creation, or from the scheduled time, to the first start.
    pub start_latency: Option<Duration>,
    pub transitions: u32,
    /// The attempts of the whole run, from 1; 0 before its scheduled time.
    pub attempts: u32,
    pub constraints_checked: u32,
    pub constraints_violated: u32,
    pub actions_executed: u32,
    pub actions_failed: u32,
}

impl RunMetrics {
    pub fn of(created_at: Timestamp, live: &RunLive) -> Self {
        let stays = live.states.since(created_at, live.state());
        let of = |state: RunState| stays.iter().find(|stay| stay.state == state);
        let phase = |states: &[RunState]| {
            let spent = states.iter().filter_map(|state| of(*state)).map(|stay| stay.spent);
            positive(spent.sum())
        };
        let due_at = match (of(RunState::PreRun), of(RunState::Pending)) {
            (Some(_), pending) => pending.map(|stay| stay.first_at),
            (None, _) => Some(created_at),
        };
        let entered = stays.iter().map(|stay: &Stay| stay.times).fold(0, u32::saturating_add);
        Self {
            pre_run: phase(&[RunState::PreRun]),
            pending: phase(&[RunState::Pending]),
            constraints: phase(&[RunState::ConditionPending, RunState::ConditionRunning]),
            actions: phase(&[RunState::ActionPending, RunState::ActionRunning]),
            starting: phase(&[RunState::Starting]),
            running: phase(&[RunState::Running]),
            terminating: phase(&[RunState::Terminating]),
            retrying: phase(&[RunState::Retrying]),
            total: live.finished_at().map(|at| positive(at.duration_since(created_at))),
            start_latency: due_at.zip(live.started_at).map(|(due, at)| positive(at.duration_since(due))),
            transitions: entered.saturating_sub(1),
            attempts: of(RunState::Pending).map_or(0, |_| live.round),
            constraints_checked: live.life.checked,
            constraints_violated: live.life.violated,
            actions_executed: live.life.executed,
            actions_failed: live.life.failed,
        }
    }
}

/// Servers have different clocks, so that a later time may seem earlier.
fn positive(span: SignedDuration) -> Duration {
    Duration::try_from(span).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::super::machine::{RunEvent, step};
    use super::*;
    use crate::ids::ServerId;
    use crate::run::RunStage;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// The states that a run entered, each with the second.
    type Moves = [(RunState, i64)];

    /// Returns the metrics of a run that was created at 0 and moved at these seconds.
    fn metrics(stage: RunStage, moves: &Moves) -> RunMetrics {
        let mut live = RunLive { stage, ..RunLive::new(ServerId(Uuid::nil())) };
        for (to, second) in moves {
            let moved = RunEvent::Moved { epoch: 1, path: &[*to], stop: None, end: None, at: at(*second) };
            live = step(&live, &moved).unwrap();
        }
        RunMetrics::of(at(0), &live)
    }

    #[test]
    fn metrics_follow_from_the_states_of_a_run() {
        use RunState::*;
        let s = Duration::from_secs;
        let new = RunMetrics { attempts: 1, ..RunMetrics::default() };
        let cases: [(RunStage, &Moves, RunMetrics); 5] = [
            (RunStage::Scheduled, &[], RunMetrics::default()),
            (RunStage::Waiting, &[], new.clone()),
            (
                RunStage::Waiting,
                &[(Starting, 3), (Running, 4), (Terminating, 9), (Completed, 11)],
                RunMetrics {
                    pending: s(3),
                    starting: s(1),
                    running: s(5),
                    terminating: s(2),
                    total: Some(s(11)),
                    start_latency: Some(s(4)),
                    transitions: 4,
                    ..new.clone()
                },
            ),
            (
                RunStage::Scheduled,
                &[
                    (Pending, 60),
                    (ConditionPending, 60),
                    (ConditionRunning, 61),
                    (ActionPending, 63),
                    (ActionRunning, 64),
                    (Starting, 70),
                    (Running, 71),
                ],
                RunMetrics {
                    pre_run: s(60),
                    constraints: s(3),
                    actions: s(7),
                    starting: s(1),
                    start_latency: Some(s(11)),
                    transitions: 7,
                    ..new.clone()
                },
            ),
            (
                RunStage::Waiting,
                &[(Starting, 0), (Running, 1), (Terminating, 2), (Retrying, 2), (Pending, 5), (Failed, 6)],
                RunMetrics {
                    pending: s(1),
                    starting: s(1),
                    running: s(1),
                    retrying: s(3),
                    total: Some(s(6)),
                    start_latency: Some(s(1)),
                    transitions: 6,
                    attempts: 2,
                    ..new
                },
            ),
        ];
        for (stage, moves, expected) in cases {
            assert_eq!(metrics(stage, moves), expected, "{moves:?}");
        }
    }
}
