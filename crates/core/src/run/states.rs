//! Records when a run entered its states and how long it stayed in each. There is one entry for each state, however
//! often the run enters it.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::words::RunState;

/// The stays of a run in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub struct Stay {
    pub state: RunState,
    /// How often the run has entered the state.
    pub times: u32,
    /// When the run entered the state first, and last.
    pub first_at: Timestamp,
    pub last_at: Timestamp,
    /// The sum of the stays that are over.
    pub spent: SignedDuration,
}

/// A stay in a stored run: short, because the row is written with each move. Times and the sum are in microseconds.
type Stored = (RunState, u32, i64, i64, i64);

impl From<Stay> for Stored {
    fn from(Stay { state, times, first_at, last_at, spent }: Stay) -> Self {
        let spent = i64::try_from(spent.as_micros()).unwrap_or(i64::MAX);
        (state, times, first_at.as_microsecond(), last_at.as_microsecond(), spent)
    }
}

impl From<Stored> for Stay {
    fn from((state, times, first_at, last_at, spent): Stored) -> Self {
        let time = |micros| Timestamp::from_microsecond(micros).unwrap_or_default();
        let spent = SignedDuration::from_micros(spent);
        Self { state, times, first_at: time(first_at), last_at: time(last_at), spent }
    }
}

/// The states that a run has entered, in the order of their first entry. The state in which the run was created is not
/// among them until the run enters it again; the record of the run has the time of that.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StateTimes(Vec<Stay>);

impl StateTimes {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Records that the run left one state and entered another.
    pub(super) fn enter(&mut self, from: RunState, to: RunState, at: Timestamp) {
        let is_first = self.0.is_empty() && matches!(from, RunState::PreRun | RunState::Pending);
        match self.0.iter_mut().find(|stay| stay.state == from) {
            Some(left) => left.spent += span(left.last_at, at),
            None if is_first => {}
            // An older program moved the run to this state.
            None => return self.0.clear(),
        }
        match self.0.iter_mut().find(|stay| stay.state == to) {
            Some(again) => (again.times, again.last_at) = (again.times.saturating_add(1), at),
            None => {
                let stay =
                    Stay { state: to, times: 1, first_at: at, last_at: at, spent: SignedDuration::ZERO };
                self.0.push(stay);
            }
        }
    }

    /// Returns when the run last entered a state, as far as that is recorded.
    pub fn last_entered(&self, state: RunState) -> Option<Timestamp> {
        self.0.iter().find(|stay| stay.state == state).map(|stay| stay.last_at)
    }

    /// Returns the stays of a run that was created at this time, including the one in its first state. Returns nothing if
    /// an older program moved the run, which is then in a state that was not recorded.
    pub fn since(&self, created_at: Timestamp, current: RunState) -> Vec<Stay> {
        // A run that was created before its time enters `pending` first.
        let first = match self.0.first() {
            Some(Stay { state: RunState::Pending, .. }) => RunState::PreRun,
            None if current == RunState::PreRun => RunState::PreRun,
            _ => RunState::Pending,
        };
        if current != first && !self.0.iter().any(|stay| stay.state == current) {
            return Vec::new();
        }
        let spent = self.0.first().map_or(SignedDuration::ZERO, |next| span(created_at, next.first_at));
        let mut initial = Stay { state: first, times: 1, first_at: created_at, last_at: created_at, spent };
        let mut rest = self.0.clone();
        if let Some(place) = rest.iter().position(|stay| stay.state == first) {
            let again = rest.remove(place);
            initial.times = initial.times.saturating_add(again.times);
            initial.last_at = again.last_at;
            initial.spent += again.spent;
        }
        rest.insert(0, initial);
        rest
    }
}

/// Returns the time between two moments. Servers have different clocks, so that the second may be earlier.
fn span(from: Timestamp, to: Timestamp) -> SignedDuration {
    to.duration_since(from).max(SignedDuration::ZERO)
}

#[cfg(test)]
mod tests {
    use RunState::*;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// The states that a run entered, each with the second.
    type Moves = [(RunState, i64)];

    /// Returns the stays of a run that was created at 0 and moved at these seconds, each as text.
    fn stays(first: RunState, moves: &Moves) -> Vec<String> {
        let (mut times, mut state) = (StateTimes::default(), first);
        for (to, second) in moves {
            times.enter(state, *to, at(*second));
            state = *to;
        }
        let stay = |stay: &Stay| {
            let (first, last) = (stay.first_at.as_second(), stay.last_at.as_second());
            format!("{} {}x {first}..{last} {}s", stay.state, stay.times, stay.spent.as_secs())
        };
        times.since(at(0), state).iter().map(stay).collect()
    }

    #[test]
    fn each_state_has_its_entries_and_the_time_spent() {
        let cases: [(RunState, &Moves, &[&str]); 6] = [
            (Pending, &[], &["pending 1x 0..0 0s"]),
            (PreRun, &[], &["pre_run 1x 0..0 0s"]),
            (PreRun, &[(Pending, 5)], &["pre_run 1x 0..0 5s", "pending 1x 5..5 0s"]),
            (
                Pending,
                &[(Starting, 2), (Running, 2), (Terminating, 9), (Completed, 10)],
                &[
                    "pending 1x 0..0 2s",
                    "starting 1x 2..2 0s",
                    "running 1x 2..2 7s",
                    "terminating 1x 9..9 1s",
                    "completed 1x 10..10 0s",
                ],
            ),
            (
                Pending,
                &[
                    (Starting, 1),
                    (Running, 2),
                    (Terminating, 4),
                    (Retrying, 4),
                    (Pending, 9),
                    (Starting, 10),
                    (Running, 13),
                ],
                &[
                    "pending 2x 0..9 2s",
                    "starting 2x 1..10 4s",
                    "running 2x 2..13 2s",
                    "terminating 1x 4..4 0s",
                    "retrying 1x 4..4 5s",
                ],
            ),
            // The clock of the next owner is behind.
            (
                Pending,
                &[(Starting, 9), (Running, 8)],
                &["pending 1x 0..0 9s", "starting 1x 9..9 0s", "running 1x 8..8 0s"],
            ),
        ];
        for (first, moves, expected) in cases {
            assert_eq!(stays(first, moves), expected, "{first}, {moves:?}");
        }
    }

    #[test]
    fn a_run_that_an_older_program_moved_has_no_stays() {
        assert_eq!(StateTimes::default().since(at(0), Running), []);
        assert_eq!(stays(Running, &[(Terminating, 3), (Completed, 3)]), Vec::<String>::new());
    }

    #[test]
    fn stays_are_stored_and_restored() {
        let mut times = StateTimes::default();
        times.enter(Pending, Starting, at(1));
        times.enter(Starting, Running, at(3));
        let text = serde_json::to_string(&times).unwrap();
        assert_eq!(text, r#"[["starting",1,1000000,1000000,2000000],["running",1,3000000,3000000,0]]"#);
        assert_eq!(serde_json::from_str::<StateTimes>(&text).unwrap(), times);
    }
}
