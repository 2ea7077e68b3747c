//! The complete tables of the run and execution machines, as golden files. `UPDATE_GOLDEN=1` writes them again.

use std::fmt::Write as _;
use std::path::Path;

use downbeat_core::Timestamp;
use downbeat_core::execution::{Decision, Event, Illegal, Lease, Outcome, State, Verdict, step};
use downbeat_core::ids::{LeaseToken, NodeId, ServerId, SessionId};
use downbeat_core::run::{
    self, Ended, Hook, RunEnd, RunEvent, RunLive, RunStage, RunState, RunVerdict, StopCause, Stopped,
    check_path, successors,
};
use uuid::Uuid;

fn golden(name: &str, actual: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, actual).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(actual, expected, "{} differs; if that is meant, run with UPDATE_GOLDEN=1", path.display());
}

#[test]
fn run_transitions_are_those_of_the_table() {
    let mut table = String::new();
    for from in RunState::ALL {
        let to: Vec<&str> = successors(from).iter().map(|to| to.as_str()).collect();
        let to = if to.is_empty() { "(terminal)".to_owned() } else { to.join(" | ") };
        writeln!(table, "{:<18} {:<10} → {to}", from.as_str(), from.status().as_str()).unwrap();
    }
    golden("run_transitions.txt", &table);
}

/// The transitions that the specification of orchestrators lists.
const SPECIFIED: &[(RunState, &[RunState])] = {
    use RunState::*;
    &[
        (PreRun, &[Pending, Cancelled]),
        (Pending, &[ConditionPending, Starting, Cancelled, Failed]),
        (ConditionPending, &[ConditionRunning, Cancelled, Failed]),
        (ConditionRunning, &[ActionPending, Starting, Cancelled, Failed]),
        (ActionPending, &[ActionRunning, Cancelled, Failed]),
        (ActionRunning, &[Starting, Completed, Cancelled, Failed]),
        (Starting, &[Running, Cancelled, Failed]),
        (Running, &[Terminating, Cancelled, Failed]),
        (Terminating, &[Completed, Failed, Retrying, Cancelled]),
        (Retrying, &[Pending, Failed, Cancelled]),
        (Completed, &[]),
        (Failed, &[]),
        (Cancelled, &[]),
        (Orphaned, &[]),
    ]
};

/// The transitions that Downbeat adds; `successors` explains them.
const ADDED: [(RunState, RunState); 4] = {
    use RunState::*;
    [(PreRun, Failed), (Pending, Terminating), (ActionRunning, Pending), (Starting, Terminating)]
};

#[test]
fn every_pair_of_run_states_is_allowed_or_refused_as_specified() {
    let error = check_path(RunState::Pending, &[RunState::Starting, RunState::Completed]).unwrap_err();
    assert_eq!(error.to_string(), "a run that is starting cannot become completed");
    assert_eq!(SPECIFIED.len(), RunState::ALL.len());
    for (from, specified) in SPECIFIED {
        for to in RunState::ALL {
            // Every run that has not ended can be orphaned.
            let allowed = specified.contains(&to)
                || ADDED.contains(&(*from, to))
                || (to == RunState::Orphaned && !from.is_terminal());
            let expected =
                if allowed { Ok(to) } else { Err(format!("a run that is {from} cannot become {to}")) };
            assert_eq!(check_path(*from, &[to]).map_err(|error| error.to_string()), expected);
        }
    }
}

#[test]
fn every_state_of_a_run_can_reach_an_end() {
    for start in RunState::ALL {
        let mut seen = vec![start];
        let mut index = 0;
        while index < seen.len() {
            for next in successors(seen[index]) {
                if !seen.contains(next) {
                    seen.push(*next);
                }
            }
            index += 1;
        }
        assert!(seen.iter().any(|state| state.is_terminal()), "{start} is a dead end");
    }
}

fn run_stages() -> Vec<RunStage> {
    let ended =
        |verdict| RunStage::Ended(Ended { verdict, at: Timestamp::UNIX_EPOCH, end: RunEnd::default() });
    vec![
        RunStage::Scheduled,
        RunStage::Waiting,
        RunStage::Admitted,
        RunStage::Checking(Hook::Pending),
        RunStage::Checking(Hook::Running),
        RunStage::Acting(Hook::Pending),
        RunStage::Acting(Hook::Running),
        RunStage::Starting,
        RunStage::Running,
        RunStage::Terminating,
        RunStage::Retrying,
        ended(RunVerdict::Completed),
        ended(RunVerdict::Failed),
        ended(RunVerdict::Cancelled),
        ended(RunVerdict::Orphaned),
    ]
}

fn stage_name(stage: &RunStage) -> String {
    match stage {
        RunStage::Waiting => "pending (waiting)".to_owned(),
        RunStage::Admitted => "pending (admitted)".to_owned(),
        other => other.state().to_string(),
    }
}

/// Returns a run at this stage with epoch 1. It may be paused or about to be cancelled.
fn run_at(stage: &RunStage, paused: bool, cancelled: bool) -> RunLive {
    let at = Timestamp::UNIX_EPOCH;
    RunLive {
        stage: stage.clone(),
        admitted_at: (*stage == RunStage::Admitted).then_some(at),
        paused_at: paused.then_some(at),
        cancel_requested_at: cancelled.then_some(at),
        ..RunLive::new(ServerId(Uuid::nil()))
    }
}

/// Returns every event except moves, which `run_transitions.txt` lists.
fn run_events() -> Vec<(String, RunEvent<'static>)> {
    let (at, owner) = (Timestamp::UNIX_EPOCH, ServerId(Uuid::from_u128(2)));
    let mut events = Vec::new();
    for (whose, epoch) in [("", 1), (", other epoch", 7)] {
        events.push((format!("taken{whose}"), RunEvent::Taken { owner, epoch: epoch + 1 }));
        events.push((format!("admitted{whose}"), RunEvent::Admitted { epoch, at }));
        events.push((format!("checked{whose}"), RunEvent::Checked { epoch, results: &[] }));
        let waits = RunEvent::Acted { epoch, has_failed: false, queued: None, end: None };
        events.push((format!("acted{whose}"), waits));
        events.push((format!("woken{whose}"), RunEvent::Woken { epoch }));
        let nowhere = RunEvent::Moved { epoch, path: &[], stop: None, end: None, at };
        events.push((format!("moved nowhere{whose}"), nowhere));
        let stop = Some(Stopped { cause: StopCause::Rejected, at });
        let stopped = RunEvent::Moved { epoch, path: &[], stop, end: None, at };
        events.push((format!("stopped{whose}"), stopped));
    }
    events.push(("cancel requested".to_owned(), RunEvent::CancelRequested { at }));
    for paused in [true, false] {
        let event = RunEvent::PauseSet { paused, at };
        events.push((event.name().to_owned(), event));
    }
    events
}

#[test]
fn a_run_answers_every_event_as_the_table_says() {
    let mut table = String::new();
    for stage in run_stages() {
        for (asked, paused, cancelled) in
            [("", false, false), (", paused", true, false), (", to cancel", false, true)]
        {
            let live = run_at(&stage, paused, cancelled);
            for (event, fact) in run_events() {
                let next = match run::step(&live, &fact) {
                    Ok(next) if next == live => "nothing changes".to_owned(),
                    Ok(next) => stage_name(&next.stage),
                    Err(illegal) => format!("refused: {illegal}"),
                };
                let from = format!("{}{asked}", stage_name(&stage));
                writeln!(table, "{from:<29} + {event:<27} → {next}").unwrap();
            }
        }
    }
    golden("run_events.txt", &table);
}

#[test]
fn a_stage_and_its_word_lead_to_each_other() {
    for stage in run_stages() {
        let end = Some((Timestamp::UNIX_EPOCH, RunEnd::default()));
        let is_admitted = stage == RunStage::Admitted;
        assert_eq!(RunStage::of(stage.state(), is_admitted, end), Some(stage.clone()));
        let is_ended = stage.state().is_terminal();
        assert_eq!(RunStage::of(stage.state(), is_admitted, None).is_none(), is_ended);
    }
    for state in RunState::ALL {
        assert!(run_stages().iter().any(|stage| stage.state() == state), "no stage is called {state}");
    }
}

#[test]
fn a_run_moves_as_the_transitions_say() {
    let at = Timestamp::UNIX_EPOCH;
    for stage in run_stages() {
        for to in RunState::ALL {
            let live = run_at(&stage, false, false);
            let moved =
                run::step(&live, &RunEvent::Moved { epoch: 1, path: &[to], stop: None, end: None, at });
            let allowed = successors(stage.state()).contains(&to);
            assert_eq!(moved.as_ref().ok().map(RunLive::state), allowed.then_some(to), "{stage:?} → {to}");
            let started = moved.is_ok_and(|moved| moved.started_at.is_some());
            assert_eq!(started, allowed && to == RunState::Running);
        }
    }
}

#[test]
fn a_run_that_is_pending_again_waits_for_admission_again() {
    let at = Timestamp::UNIX_EPOCH;
    for from in RunState::ALL.into_iter().filter(|from| successors(*from).contains(&RunState::Pending)) {
        let stage = RunStage::of(from, true, None).unwrap();
        let before = RunLive { admitted_at: Some(at), started_at: Some(at), ..run_at(&stage, false, false) };
        let to_pending = RunEvent::Moved { epoch: 1, path: &[RunState::Pending], stop: None, end: None, at };
        let pending = run::step(&before, &to_pending).unwrap();
        assert!(pending.is_waiting() && !pending.is_active(), "{from}");
        assert_eq!((pending.admitted_at, pending.started_at), (None, Some(at)), "{from}");
        let again = run::step(&pending, &RunEvent::Admitted { epoch: 1, at }).unwrap();
        assert_eq!((again.stage, again.admitted_at), (RunStage::Admitted, Some(at)), "{from}");
    }
}

fn states() -> Vec<State> {
    let at = Timestamp::UNIX_EPOCH;
    let lease = Lease {
        token: LeaseToken(Uuid::from_u128(1)),
        node: NodeId(Uuid::from_u128(2)),
        session: SessionId(Uuid::from_u128(3)),
        granted_at: at,
    };
    vec![
        State::Pending { not_before: None },
        State::Leased { lease, stop: false },
        State::Leased { lease, stop: true },
        State::Running { lease, started_at: at, stop: false },
        State::Running { lease, started_at: at, stop: true },
        State::Succeeded { lease: Some(lease), outcome: outcome(Verdict::Succeeded) },
        State::Failed { lease: Some(lease), outcome: Some(outcome(Verdict::Failed)), error: None, at },
        State::Skipped { reason: String::new(), at },
        State::Cancelled { lease: None, outcome: None, reason: String::new(), at },
        State::Lost { lease, started_at: None, reason: String::new(), at },
    ]
}

fn outcome(verdict: Verdict) -> Outcome {
    let at = Timestamp::UNIX_EPOCH;
    Outcome {
        verdict,
        exit_code: None,
        error: None,
        started_at: at,
        finished_at: at,
        outputs: Default::default(),
        received_at: None,
    }
}

fn events() -> Vec<(String, Event)> {
    let at = Timestamp::UNIX_EPOCH;
    let State::Leased { lease, .. } = states()[1].clone() else { unreachable!() };
    let mut events = vec![("leased".to_owned(), Event::Leased { lease })];
    for (whose, token) in [("current token", 1), ("other token", 9)] {
        let token = LeaseToken(Uuid::from_u128(token));
        events.push((format!("started, {whose}"), Event::Started { token, at, received_at: None }));
        for verdict in [Verdict::Succeeded, Verdict::Failed, Verdict::Cancelled] {
            let name = format!("finished {verdict:?}, {whose}").to_lowercase();
            events.push((name, Event::Finished { token, outcome: outcome(verdict) }));
        }
        events
            .push((format!("lease ended, {whose}"), Event::LeaseEnded { token, reason: String::new(), at }));
    }
    events.push(("cancel requested".to_owned(), Event::CancelRequested { reason: String::new(), at }));
    events.push(("given up".to_owned(), Event::GivenUp { error: String::new(), at }));
    events.push(("skipped".to_owned(), Event::Skipped { reason: String::new(), at }));
    for (name, approved) in [("approved", true), ("rejected", false)] {
        let decision = Decision { approved, reason: None, by: "ada".to_owned() };
        events.push((name.to_owned(), Event::Decided { decision, at }));
    }
    events
}

fn name(state: &State) -> String {
    let stop = matches!(state, State::Leased { stop: true, .. } | State::Running { stop: true, .. });
    format!("{}{}", state.status(), if stop { " (to stop)" } else { "" })
}

#[test]
fn execution_transitions_are_those_of_the_table() {
    let mut table = String::new();
    for state in states() {
        for (event, fact) in events() {
            let next = match step(&state, &fact) {
                Ok(next) => name(&next),
                Err(Illegal::StaleLease) => "refused: stale lease".to_owned(),
                Err(Illegal::WrongState { .. }) => "refused: wrong state".to_owned(),
            };
            writeln!(table, "{:<18} + {:<35} → {next}", name(&state), event).unwrap();
        }
    }
    golden("execution_transitions.txt", &table);
}

#[test]
fn an_execution_that_ended_never_moves_again() {
    for state in states().into_iter().filter(|state| !state.status().is_open()) {
        for (event, fact) in events() {
            assert!(step(&state, &fact).is_err(), "{} + {event}", name(&state));
        }
    }
}
