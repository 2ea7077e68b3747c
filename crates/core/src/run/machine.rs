//! Decides how a run moves. Every stage handles every event; the error for an illegal event names both.

use jiff::Timestamp;

use super::life::{Checked, Ending, Phase, Queued};
use super::live::{RunEnd, RunLive, RunStage, Stopped};
use super::words::RunState;
use crate::change::Change;
use crate::ids::{RunId, ServerId};

/// A fact about a run. Facts from the owner contain its epoch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RunEvent<'a> {
    /// Another server owns the run.
    Taken { owner: ServerId, epoch: u64 },
    /// A person asked to cancel the run.
    CancelRequested { at: Timestamp },
    /// A person paused or resumed the run.
    PauseSet { paused: bool, at: Timestamp },
    /// The run may begin: admission found room for it.
    Admitted { epoch: u64, at: Timestamp },
    /// The constraints of the run were checked.
    Checked { epoch: u64, results: &'a [Checked] },
    /// An action of the run was executed. The run waits if `queued` is set, and ends in this way if `end` is.
    Acted { epoch: u64, has_failed: bool, queued: Option<Queued>, end: Option<&'a Ending> },
    /// The run no longer waits because of its constraints: it needs admission again.
    Woken { epoch: u64 },
    /// The run went through these states. `end` is set if the run ended, `stop` if its rest is ended.
    Moved { epoch: u64, path: &'a [RunState], stop: Option<Stopped>, end: Option<&'a RunEnd>, at: Timestamp },
}

impl<'a> RunEvent<'a> {
    /// Returns the run that a change moves, and the event.
    pub fn of(change: &'a Change) -> Option<(&'a RunId, Self)> {
        match change {
            Change::RunTaken { run, owner, epoch, at: _ } => {
                Some((run, RunEvent::Taken { owner: *owner, epoch: *epoch }))
            }
            Change::RunCancelRequested { run, by: _, at } => {
                Some((run, RunEvent::CancelRequested { at: *at }))
            }
            Change::RunPauseSet { run, paused, by: _, at } => {
                Some((run, RunEvent::PauseSet { paused: *paused, at: *at }))
            }
            Change::RunAdmitted { run, epoch, limit: _, nodes: _, at } => {
                Some((run, RunEvent::Admitted { epoch: *epoch, at: *at }))
            }
            Change::RunChecked { run, epoch, results, at: _ } => {
                Some((run, RunEvent::Checked { epoch: *epoch, results }))
            }
            Change::RunActed { run, epoch, error, queued, end, .. } => {
                let (has_failed, end) = (error.is_some(), end.as_ref());
                Some((run, RunEvent::Acted { epoch: *epoch, has_failed, queued: *queued, end }))
            }
            Change::RunWoken { run, epoch, at: _ } => Some((run, RunEvent::Woken { epoch: *epoch })),
            Change::RunMoved { run, epoch, path, room: _, stop, end, at } => {
                let (epoch, stop, end, at) = (*epoch, *stop, end.as_ref(), *at);
                Some((run, RunEvent::Moved { epoch, path, stop, end, at }))
            }
            _ => None,
        }
    }

    pub fn name(&self) -> &'static str {
        match self {
            RunEvent::Taken { .. } => "taken",
            RunEvent::CancelRequested { .. } => "cancel_requested",
            RunEvent::PauseSet { paused: true, .. } => "paused",
            RunEvent::PauseSet { paused: false, .. } => "resumed",
            RunEvent::Admitted { .. } => "admitted",
            RunEvent::Checked { .. } => "checked",
            RunEvent::Acted { .. } => "acted",
            RunEvent::Woken { .. } => "woken",
            RunEvent::Moved { .. } => "moved",
        }
    }
}

/// Why an event has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Illegal {
    #[error("the epoch is not the current one")]
    StaleEpoch,
    #[error("`{event}` does not apply to a run that is {state}")]
    WrongState { state: RunState, event: &'static str },
    #[error("a run that is {from} cannot become {to}")]
    NoSuchMove { from: RunState, to: RunState },
}

/// Returns the next stage of a run. No other code decides it.
pub fn step(live: &RunLive, event: &RunEvent<'_>) -> Result<RunLive, Illegal> {
    let wrong = || Err(Illegal::WrongState { state: live.state(), event: event.name() });
    check_epoch(live, event)?;
    // Only admission depends on the stage of an open run. The path of a move depends on the state.
    match *event {
        RunEvent::Moved { path: [], stop: Some(_), .. } if live.is_ended() => wrong(),
        RunEvent::Moved { epoch: _, path, stop, end, at } => {
            let moved = walk(live, path, end, at)?;
            Ok(RunLive { stopped: stop.or(moved.stopped), ..moved })
        }
        _ if live.is_ended() => wrong(),
        RunEvent::Taken { owner, epoch } => Ok(RunLive { owner, epoch, ..live.clone() }),
        RunEvent::CancelRequested { .. } if live.cancel_requested_at.is_some() => wrong(),
        RunEvent::CancelRequested { at } => Ok(RunLive { cancel_requested_at: Some(at), ..live.clone() }),
        RunEvent::PauseSet { paused, .. } if live.paused_at.is_some() == paused => wrong(),
        RunEvent::PauseSet { paused, at } => Ok(RunLive { paused_at: paused.then_some(at), ..live.clone() }),
        // A person paused or cancelled the run and got a confirmation, so the run must not start.
        RunEvent::Admitted { .. } if live.paused_at.is_some() || live.cancel_requested_at.is_some() => {
            wrong()
        }
        RunEvent::Admitted { epoch: _, at } if live.is_waiting() && !live.is_queued() => {
            Ok(RunLive { stage: RunStage::Admitted, admitted_at: Some(at), ..live.clone() })
        }
        RunEvent::Admitted { .. } => wrong(),
        RunEvent::Checked { epoch: _, results } => {
            let mut next = live.clone();
            next.life.check(results, Phase::of(results));
            Ok(next)
        }
        RunEvent::Acted { epoch: _, has_failed, queued, end } => {
            let mut next = live.clone();
            next.life.act(has_failed, queued, end);
            Ok(next)
        }
        RunEvent::Woken { .. } if live.is_queued() => {
            let mut next = live.clone();
            next.life.queued = None;
            Ok(next)
        }
        RunEvent::Woken { .. } => wrong(),
    }
}

fn check_epoch(live: &RunLive, event: &RunEvent<'_>) -> Result<(), Illegal> {
    let is_current = match event {
        RunEvent::Taken { epoch, .. } => live.epoch.checked_add(1) == Some(*epoch),
        RunEvent::Admitted { epoch, .. }
        | RunEvent::Checked { epoch, .. }
        | RunEvent::Acted { epoch, .. }
        | RunEvent::Woken { epoch }
        | RunEvent::Moved { epoch, .. } => live.epoch == *epoch,
        RunEvent::CancelRequested { .. } | RunEvent::PauseSet { .. } => true,
    };
    if is_current { Ok(()) } else { Err(Illegal::StaleEpoch) }
}

/// Applies the whole path, or nothing of it.
fn walk(live: &RunLive, path: &[RunState], end: Option<&RunEnd>, at: Timestamp) -> Result<RunLive, Illegal> {
    let mut next = live.clone();
    for &to in path {
        check_path(next.state(), &[to])?;
        if next.stage == RunStage::Retrying && to == RunState::Pending {
            next.round = next.round.saturating_add(1);
        }
        next.states.enter(next.state(), to, at);
        if to == RunState::Starting {
            next.life.start_plan();
        }
        if to == RunState::Running {
            next.started_at.get_or_insert(at);
        }
        // A run that is pending again waits for admission again.
        if to == RunState::Pending {
            (next.admitted_at, next.stopped, next.rollout) = (None, None, None);
        }
        let end = to.is_terminal().then(|| (at, end.cloned().unwrap_or_default()));
        let stage = RunStage::of(to, next.admitted_at.is_some(), end);
        next.stage = stage.expect("a run that ends has an end");
    }
    Ok(next)
}

/// Returns the states that may follow. This is the only table of transitions.
pub fn successors(from: RunState) -> &'static [RunState] {
    use RunState::*;
    match from {
        // A run fails before its time if the store will never accept what was decided for it.
        PreRun => &[Pending, Cancelled, Failed, Orphaned],
        // A run without constraints starts at once. A run that ends before its plan starts first records its steps as
        // skipped: it is terminating.
        Pending => &[ConditionPending, Starting, Terminating, Cancelled, Failed, Orphaned],
        ConditionPending => &[ConditionRunning, Cancelled, Failed, Orphaned],
        ConditionRunning => &[ActionPending, Starting, Cancelled, Failed, Orphaned],
        ActionPending => &[ActionRunning, Cancelled, Failed, Orphaned],
        // `wait` and `retry_later` return to pending, `skip` completes the run, and the other actions let it start.
        ActionRunning => &[Pending, Starting, Completed, Cancelled, Failed, Orphaned],
        Starting => &[Running, Terminating, Cancelled, Failed, Orphaned],
        Running => &[Terminating, Cancelled, Failed, Orphaned],
        Terminating => &[Completed, Failed, Cancelled, Retrying, Orphaned],
        Retrying => &[Pending, Cancelled, Failed, Orphaned],
        Completed | Failed | Cancelled | Orphaned => &[],
    }
}

/// Returns true if a run that went through these states holds no nodes any more: it ended, or needs admission again.
pub fn frees_nodes(path: &[RunState]) -> bool {
    path.iter().any(|&state| state.is_terminal() || state == RunState::Pending)
}

/// Checks several transitions that one change contains.
pub fn check_path(from: RunState, path: &[RunState]) -> Result<RunState, Illegal> {
    path.iter().try_fold(from, |from, &to| {
        if successors(from).contains(&to) { Ok(to) } else { Err(Illegal::NoSuchMove { from, to }) }
    })
}
