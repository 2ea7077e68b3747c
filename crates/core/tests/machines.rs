//! The complete tables of the run and execution machines, as golden files. `UPDATE_GOLDEN=1` writes them anew.

use std::fmt::Write as _;
use std::path::Path;

use downbeat_core::Timestamp;
use downbeat_core::execution::{Event, Illegal, Lease, Outcome, State, Verdict, step};
use downbeat_core::ids::{LeaseToken, NodeId, SessionId};
use downbeat_core::run::{RunState, check_path, successors};
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

#[test]
fn a_forbidden_run_transition_names_both_states() {
    let error = check_path(RunState::Pending, &[RunState::Starting, RunState::Completed]).unwrap_err();
    assert_eq!(error.to_string(), "a run that is starting cannot become completed");
    for from in RunState::ALL {
        for to in RunState::ALL {
            assert_eq!(check_path(from, &[to]).is_ok(), successors(from).contains(&to));
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
        State::Succeeded { lease, outcome: outcome(Verdict::Succeeded) },
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
