//! Rebuilds a run's progress from its recorded executions, so that a run goes on where it was.
//!
//! What is recorded wins over what would be decided now. Only when all of it is known are the decisions made that
//! were not recorded before the former owner died.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::outputs::Speaker;
use super::progress::{
    Active, Cause, End, Ended, EntryEnd, Failure, Instance, Progress, Stage, Stop, Turn, Walk,
};
use crate::execution::{Execution, State};
use crate::ids::NodeId;
use crate::plan::{Plan, PlanEntry, Shape};
use crate::run::RunRecord;

/// What is recorded of a run.
struct History<'a> {
    /// What was taken over from another run is not among them.
    attempts: HashMap<Instance, Vec<&'a Execution>>,
    /// Steps of which anything is recorded.
    steps: HashSet<u32>,
    /// Passes of which anything is recorded.
    passes: Vec<bool>,
    /// Passes after which, however far, anything is recorded.
    later: Vec<bool>,
    stopped: bool,
}

impl<'a> History<'a> {
    fn of(plan: &Plan, executions: &'a [Execution], stopped: bool) -> Self {
        let mut attempts: HashMap<_, Vec<&Execution>> = HashMap::new();
        let mut steps = HashSet::new();
        for execution in executions.iter().filter(|execution| !execution.is_carried()) {
            let instance = (execution.step(), execution.pinned, execution.item());
            attempts.entry(instance).or_default().push(execution);
            steps.insert(execution.step());
        }
        for list in attempts.values_mut() {
            list.sort_unstable_by_key(|execution| execution.attempt);
        }
        let mut history = Self { attempts, steps, passes: Vec::new(), later: Vec::new(), stopped };
        history.passes = (0..).zip(&plan.passes).map(|(pass, _)| history.has(plan, pass)).collect();
        history.later = history.before_recorded(plan);
        history
    }

    /// Not only one pass back: a pass whose instances are all taken over from another run has no record.
    fn before_recorded(&self, plan: &Plan) -> Vec<bool> {
        let mut later = vec![false; plan.passes.len()];
        let mut found: Vec<u32> = (0..).zip(&self.passes).filter(|(_, has)| **has).map(|(p, _)| p).collect();
        while let Some(pass) = found.pop() {
            for &before in &plan.passes[pass as usize].after {
                if !std::mem::replace(&mut later[before as usize], true) {
                    found.push(before);
                }
            }
        }
        later
    }

    fn has(&self, plan: &Plan, pass: u32) -> bool {
        let PlanEntry { first, length, .. } = plan.entries[plan.passes[pass as usize].entry as usize];
        let mut steps = (first..first + length).filter(|step| self.steps.contains(step));
        let Some(nodes) = plan.nodes_of_pass(pass) else { return steps.next().is_some() };
        let recorded =
            |step, node: &u32| self.attempts.contains_key(&(step, Some(plan.node(*node).id), None));
        steps.any(|step| nodes.iter().any(|node| recorded(step, node)))
    }

    /// Whether an entry with `for_each` was skipped, or failed, before it had items.
    fn has_no_items(&self, plan: &Plan, pass: u32) -> bool {
        let PlanEntry { first, .. } = plan.entries[plan.passes[pass as usize].entry as usize];
        self.attempts.contains_key(&(first, None, None))
    }

    /// Whether something is recorded that follows this instance: then its end was final. Without that the same is
    /// decided again, and comes to the same.
    fn went_on(&self, plan: &Plan, pass: u32, (step, node, item): Instance) -> bool {
        let entry = &plan.entries[plan.passes[pass as usize].entry as usize];
        if step + 1 < entry.first + entry.length {
            return self.attempts.contains_key(&(step + 1, node, item));
        }
        self.later[pass as usize]
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
        let history = History::of(&plan, executions, stop.is_some());
        let mut progress =
            Self::new(plan, run.id.clone(), epoch, run.state).with_params(Arc::new(run.params.clone()));
        progress.resume.stop = stop;
        progress.paused = run.paused_at.is_some();
        let tried = history.attempts.values().flatten().filter(|execution| !execution.is_cached());
        progress.last_end = tried.filter_map(|execution| ended_at(&execution.state)).max();
        progress.restore_carried(executions);
        progress.due = progress.roots();
        while let Some(pass) = progress.due.pop_first() {
            progress.restore_pass(pass, &history);
        }
        progress.count_failures();
        progress
    }

    /// In the order in which they happened: it decides which of them struck.
    fn count_failures(&mut self) {
        let mut failures = std::mem::take(&mut self.resume.failures);
        failures.sort_unstable();
        for Failure { pass, step, node, .. } in failures {
            self.count_failure(pass, step, node);
        }
    }

    /// What succeeded in the run that this one tries again.
    fn restore_carried(&mut self, executions: &[Execution]) {
        let reused = executions.iter().filter(|execution| execution.is_carried());
        let index: HashMap<NodeId, u32> =
            self.plan.resolved.nodes.iter().zip(0..).map(|(node, index)| (node.id, index)).collect();
        for execution in reused {
            self.carried.insert((execution.step(), execution.pinned, execution.item()));
            if let State::Succeeded { outcome, .. } = &execution.state {
                let node = execution.pinned.and_then(|node| index.get(&node).copied());
                let speaker = Speaker::of(node, execution.item());
                self.note_outputs_of(execution.step(), speaker, &outcome.outputs);
            }
        }
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
        if self.active.values().any(|active| !active.leased && active.node.is_none()) {
            self.look_soon(turn.now);
        }
        // An agent's clock may be fast, and a wave is not to wait for it.
        self.last_end = self.last_end.min(Some(turn.now));
        let resume = std::mem::take(&mut self.resume);
        if let Some(stop) = resume.stop {
            self.begin_stop(stop, turn);
        }
        self.ended = resume.ended;
        self.follow_ends(resume.walks, turn);
        self.due.extend(resume.passes);
        self.withdraw(turn);
        // Nodes that went offline or were deleted while nobody could hear of it.
        let reach = turn.reach;
        let over = self.waiting(|active| reach(active.node?).fails(active.patience.is_some()));
        self.give_up(over, turn);
        self.settle(turn);
    }

    fn restore_pass(&mut self, pass: u32, history: &History<'_>) {
        let recorded = history.passes[pass as usize];
        if !recorded && !history.later[pass as usize] {
            self.resume.passes.push(pass);
            return;
        }
        let began = self.would_begin(pass);
        if !recorded && self.has_nothing_to_do(pass) {
            return self.pass_ended(pass, EntryEnd::Succeeded);
        }
        let plan = Arc::clone(&self.plan);
        let open = if history.has_no_items(&plan, pass) || !(recorded || began) {
            self.plain_walks_of(pass)
        } else {
            // It had items when it began, and they come to the same again.
            self.walks_of(pass).unwrap_or_else(|_| self.plain_walks_of(pass))
        };
        let count = open.open;
        self.passes[pass as usize] = Stage::Open(open);
        if let (Some(wave), true) = (self.wave(pass), began) {
            self.waves_begun = self.waves_begun.max(wave + 1);
        }
        for walk in 0..count {
            if recorded || began {
                self.restore_walk(&plan, pass, walk, history);
            } else {
                self.walk_ended(pass, walk);
            }
        }
    }

    /// Whether a pass began that the run has come to. Its records need not show it: all of its leaves may have been
    /// skipped one by one, or taken over from another run.
    fn would_begin(&mut self, pass: u32) -> bool {
        match self.plan.shape {
            Shape::List => {
                // All that came before it has ended, so all failures that matter to it are known.
                self.count_failures();
                self.pass_runs(pass).is_ok()
            }
            // Whether something struck is not known yet, and makes no difference to those that depend on it.
            Shape::Graph => self.condition_holds(pass).is_ok(),
        }
    }

    fn restore_walk(&mut self, plan: &Plan, pass: u32, walk: u32, history: &History<'_>) {
        let Walk { node: index, item, .. } = *self.walk(pass, walk);
        let node = index.map(|node| plan.node(node).id);
        let PlanEntry { first, length, .. } = plan.entries[self.entry(pass) as usize];
        for step in first..first + length {
            if self.is_carried(pass, step, walk) {
                self.mark_ran(pass);
                self.next_leaf(pass, walk);
                continue;
            }
            let instance = (step, node, item);
            let Some(list) = history.attempts.get(&instance) else {
                self.resume.walks.push((pass, walk));
                return;
            };
            let last = list[list.len() - 1];
            let before = &list[..list.len() - 1];
            let count = |wanted: fn(&State) -> bool| {
                u32::try_from(before.iter().filter(|e| wanted(&e.state)).count())
                    .expect("attempts are bounded")
            };
            if last.attempt > 1 || !matches!(last.state, State::Skipped { .. }) {
                self.mark_begun(pass, walk);
            }
            let place = self.walk_mut(pass, walk);
            place.attempt = last.attempt;
            place.retries = count(|state| matches!(state, State::Failed { .. }));
            place.losses = count(|state| matches!(state, State::Lost { .. } | State::Cancelled { .. }));
            match &last.state {
                State::Pending { .. } | State::Leased { .. } | State::Running { .. } => {
                    let not_before = match last.state {
                        State::Pending { not_before } => not_before,
                        _ => None,
                    };
                    let leased = !matches!(last.state, State::Pending { .. });
                    let resent = before
                        .last()
                        .is_some_and(|e| matches!(e.state, State::Lost { .. } | State::Cancelled { .. }));
                    let patience = (resent && node.is_some()).then(|| {
                        let wait = plan.task(step).timeout_or_default().0;
                        let wait = jiff::SignedDuration::try_from(wait).unwrap_or(jiff::SignedDuration::MAX);
                        last.created_at + wait
                    });
                    self.is_patient |= patience.is_some();
                    // When it was last looked at whether a node fits is not on record: from now on.
                    let unfit_since = None;
                    let active = Active { pass, step, walk, node, leased, patience, not_before, unfit_since };
                    self.active.insert(last.id, active);
                    return;
                }
                State::Succeeded { outcome, .. } => {
                    self.mark_ran(pass);
                    self.note_outputs_of(step, Speaker::of(index, item), &outcome.outputs);
                }
                State::Skipped { .. } if before.is_empty() => {}
                State::Skipped { at, .. } => self.restore_failure(pass, step, walk, Cause::Struck, *at),
                State::Failed { lease: None, at, .. } => {
                    self.restore_failure(pass, step, walk, Cause::Own, *at);
                }
                State::Failed { lease: Some(_), at, .. } => {
                    if self.has_retries(pass, step, walk) && !history.went_on(plan, pass, instance) {
                        self.mark_ran(pass);
                        self.resume.ended.push(Ended { pass, walk, step, end: End::Failed });
                        return;
                    }
                    self.restore_failure(pass, step, walk, Cause::Own, *at);
                }
                State::Lost { at, .. } | State::Cancelled { at, .. } => {
                    self.mark_ran(pass);
                    // What is final is known to be before anything is tried again: it may have struck.
                    if self.has_resends(pass, step, walk) && !history.went_on(plan, pass, instance) {
                        self.resume.ended.push(Ended { pass, walk, step, end: End::Lost });
                        return;
                    }
                    if !history.stopped {
                        self.restore_failure(pass, step, walk, Cause::Own, *at);
                    }
                }
            }
            self.next_leaf(pass, walk);
        }
        self.walk_ended(pass, walk);
    }

    /// As when it happened. What the failures come to is decided when all of them are known.
    fn restore_failure(&mut self, pass: u32, step: u32, walk: u32, cause: Cause, at: Timestamp) {
        let node = self.note_failure(pass, step, walk);
        self.resume.failures.push(Failure { cause, at, step, pass, node });
    }
}

fn ended_at(state: &State) -> Option<Timestamp> {
    match state {
        State::Pending { .. } | State::Leased { .. } | State::Running { .. } | State::Skipped { .. } => None,
        // What releases without receipts recorded is by an agent's clock: it was not over before it was given away.
        State::Succeeded { outcome, lease } => Some(outcome.ended_at().max(lease.granted_at)),
        State::Failed { at, lease, .. } | State::Cancelled { at, lease, .. } => {
            Some(lease.map_or(*at, |lease| lease.granted_at.max(*at)))
        }
        State::Lost { at, .. } => Some(*at),
    }
}
