//! Rebuilds a run's progress from its recorded executions, so that a run goes on where it was.
//!
//! What is recorded wins over what would be decided now. Only when all of it is known are the decisions made that
//! were not recorded before the former owner died.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::progress::{Active, End, Progress, Stage, Stop, Turn};
use crate::execution::{Execution, State};
use crate::ids::NodeId;
use crate::plan::Plan;
use crate::run::RunRecord;

/// What is recorded of a run.
struct History<'a> {
    attempts: HashMap<(u32, Option<NodeId>), Vec<&'a Execution>>,
    /// Steps of which anything is recorded.
    steps: HashSet<u32>,
    stopped: bool,
}

impl History<'_> {
    /// Whether something is recorded that follows this instance: then its end was final. Without that the same is
    /// decided again, and comes to the same.
    fn went_on(&self, plan: &Plan, entry: u32, step: u32, node: Option<NodeId>) -> bool {
        let entry = &plan.entries[entry as usize];
        if step + 1 < entry.first + entry.length {
            return self.attempts.contains_key(&(step + 1, node));
        }
        entry.before.iter().any(|next| self.steps.contains(&plan.entries[*next as usize].first))
    }
}

impl Progress {
    /// The progress of `run` as its record and executions show it. `go_on` decides what is open.
    /// `stop`: the run was told to stop before, so that what is cancelled was meant to be.
    pub fn restore(
        plan: Arc<Plan>,
        run: &RunRecord,
        epoch: u64,
        executions: &[Execution],
        stop: Option<Stop>,
    ) -> Self {
        let mut progress = Self::new(plan, run.id.clone(), epoch, run.state);
        progress.resume.stop = stop;
        let mut history = History {
            attempts: HashMap::new(),
            steps: executions.iter().map(|execution| execution.step).collect(),
            stopped: stop.is_some(),
        };
        for execution in executions {
            history.attempts.entry((execution.step, execution.pinned)).or_default().push(execution);
        }
        for list in history.attempts.values_mut() {
            list.sort_unstable_by_key(|execution| execution.attempt);
        }
        let roots = (0..progress.entries.len())
            .filter(|&e| matches!(progress.entries[e], Stage::Waiting { missing: 0 }));
        progress.due = roots.map(|entry| u32::try_from(entry).expect("plans are bounded")).collect();
        while let Some(entry) = progress.due.pop_front() {
            progress.restore_entry(entry, &history);
        }
        progress
    }

    /// Makes the decisions that were not recorded, and asks again for what may not have been heard.
    pub fn go_on(&mut self, turn: &mut Turn<'_>) {
        use crate::run::RunState;
        if self.is_ended() {
            return;
        }
        match self.state {
            RunState::Pending => self.walk_to(&[RunState::Starting, RunState::Running]),
            RunState::Starting | RunState::Orphaned => self.walk_to(&[RunState::Running]),
            _ => {}
        }
        let resume = std::mem::take(&mut self.resume);
        if let Some(stop) = resume.stop {
            self.stop_without_settling(stop, turn);
        }
        for (step, walk, end) in resume.ended {
            self.attempt_ended(step, walk, end, turn);
        }
        for (entry, walk) in resume.walks {
            self.advance(entry, walk, turn);
        }
        self.due.extend(resume.entries);
        self.withdraw(turn);
        // Nodes that went offline while nobody could hear of it.
        let offline = turn.offline;
        let gone = |active: &Active| active.patience.is_none() && active.node.is_some_and(offline);
        self.give_up(turn, gone, "is offline");
        self.settle(turn);
    }

    fn stop_without_settling(&mut self, stop: Stop, turn: &mut Turn<'_>) {
        // The entries that `stop` would settle are not all known yet: hide them from it.
        let due = std::mem::take(&mut self.due);
        self.remaining += 1;
        self.stop(stop, turn);
        self.remaining -= 1;
        self.due = due;
    }

    fn restore_entry(&mut self, entry: u32, history: &History<'_>) {
        let plan = Arc::clone(&self.plan);
        let first = plan.entries[entry as usize].first;
        let walks = self.new_walks(entry);
        let recorded = walks
            .iter()
            .any(|walk| history.attempts.contains_key(&(first, walk.node.map(|node| plan.node(node).id))));
        if !recorded {
            self.resume.entries.push(entry);
            return;
        }
        let count = u32::try_from(walks.len()).expect("plans are bounded");
        self.entries[entry as usize] = Stage::Open { walks, open: count, failed: false, ran: false };
        for walk in 0..count {
            self.restore_walk(&plan, entry, walk, history);
        }
    }

    fn restore_walk(&mut self, plan: &Plan, entry: u32, walk: u32, history: &History<'_>) {
        let node = self.walk(entry, walk).node.map(|node| plan.node(node).id);
        let first = plan.entries[entry as usize].first;
        for step in first..first + plan.entries[entry as usize].length {
            let Some(list) = history.attempts.get(&(step, node)) else {
                self.resume.walks.push((entry, walk));
                return;
            };
            let last = list[list.len() - 1];
            let before = &list[..list.len() - 1];
            let count = |wanted: fn(&State) -> bool| {
                u32::try_from(before.iter().filter(|e| wanted(&e.state)).count())
                    .expect("attempts are bounded")
            };
            let place = self.walk_mut(entry, walk);
            place.attempt = last.attempt;
            place.retries = count(|state| matches!(state, State::Failed { .. }));
            place.losses = count(|state| matches!(state, State::Lost { .. } | State::Cancelled { .. }));
            match &last.state {
                State::Pending { .. } | State::Leased { .. } | State::Running { .. } => {
                    let leased = !matches!(last.state, State::Pending { .. });
                    let resent = before
                        .last()
                        .is_some_and(|e| matches!(e.state, State::Lost { .. } | State::Cancelled { .. }));
                    let patience = (resent && node.is_some()).then(|| {
                        let wait = plan.task(step).timeout_or_default().0;
                        let wait = jiff::SignedDuration::try_from(wait).unwrap_or(jiff::SignedDuration::MAX);
                        last.created_at + wait
                    });
                    self.mark_ran(entry);
                    self.active.insert(last.id, Active { step, walk, node, leased, patience });
                    return;
                }
                State::Succeeded { .. } => self.mark_ran(entry),
                State::Skipped { .. } if before.is_empty() => {}
                State::Skipped { at, .. } => self.restore_failure(step, walk, *at),
                State::Failed { lease: None, at, .. } => self.restore_failure(step, walk, *at),
                State::Failed { lease: Some(_), at, .. } => {
                    let retries = self.walk(entry, walk).retries;
                    let again = plan.task(step).retry.is_some_and(|retry| retries < retry.max);
                    if again && !history.went_on(plan, entry, step, node) {
                        self.mark_ran(entry);
                        self.resume.ended.push((step, walk, End::Failed));
                        return;
                    }
                    self.restore_failure(step, walk, *at);
                }
                State::Lost { at, .. } | State::Cancelled { at, .. } => {
                    self.mark_ran(entry);
                    if !history.went_on(plan, entry, step, node) {
                        self.resume.ended.push((step, walk, End::Lost));
                        return;
                    }
                    if !history.stopped {
                        self.restore_failure(step, walk, *at);
                    }
                }
            }
            self.next_leaf(entry, walk);
        }
        self.walk_ended(entry);
    }

    /// As when it happened, but in the order of the records: the first failure is the one that happened first.
    /// Withdrawing is left to `go_on`, which does it once for all.
    fn restore_failure(&mut self, step: u32, walk: u32, at: Timestamp) {
        let node = self.note_failure(step, walk);
        if self.resume.first_failure_at.is_none_or(|first| at < first) {
            self.resume.first_failure_at = Some(at);
            self.first_failure = Some((step, node));
        }
        if self.strikes(step) && self.resume.struck_at.is_none_or(|first| at < first) {
            self.resume.struck_at = Some(at);
            self.struck = Some(step);
        }
    }
}
