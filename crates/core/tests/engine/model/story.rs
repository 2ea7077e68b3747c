//! Applies the same story to the engine and the tables, step by step, and compares their results.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use downbeat_core::backend::Params;
use downbeat_core::execution::{Execution, State, Status, Verdict};
use downbeat_core::ids::{ExecutionId, RunId};
use downbeat_core::plan::{EntryIx, RetryScope, StepIx};
use downbeat_core::run::RunState;
use downbeat_core::run::again::retry_of;
use downbeat_core::{Change, Dice, Portion, Timestamp};
use serde_json::{Value, json};

use super::case::{Case, node_id, node_number, number};
use super::counts::Counts;
use super::parts::{Instance, Place, Stop};
use super::rules::inputs;
use super::tables::Tables;
use crate::world::World;

pub(super) const BEGINNING_MS: i64 = 1_000_000_000;

/// An event of the story.
#[derive(Clone, Debug)]
pub(super) enum Fact {
    Leased(usize),
    Started(usize),
    /// With this output.
    Succeeded(usize, Value),
    Failed(usize),
    Cancelled(usize),
    Lost(usize),
    /// No node fits the step from now on.
    Unfit(usize),
    Fits(usize),
    Offline(usize),
    Deleted(usize),
    /// The node is back, or registered again.
    Online(usize),
    Stopped(Stop),
    Paused(bool),
}

/// A line of the story.
#[derive(Clone, Debug)]
pub(super) enum Line {
    Begins,
    OfflineAtFirst(usize),
    Happens(Fact),
    LaterMs(i64),
    Look,
    Restart,
    /// The server dies before the submission after this many.
    DiesAfter(u32),
    RestartUnobserved,
    /// Several facts become known together.
    Together,
    Race(usize),
    /// The next round begins.
    Round,
}

/// The frequency of each kind of event in one story, out of 32.
struct Habits {
    fails: u64,
    loses: u64,
    node_goes: u64,
    unfit: u64,
    pauses: u64,
    restarts: u64,
    dies: u64,
    deaf: u64,
    races: u64,
    /// How many executions one submission holds.
    portion: Option<usize>,
    /// The step at which the run is stopped.
    stops_at: Option<(usize, Stop)>,
}

impl Habits {
    fn random(dice: &mut Dice) -> Self {
        let stop = if dice.below(2) == 0 { Stop::Cancelled } else { Stop::TimedOut };
        Self {
            fails: [1, 3, 6, 12][number(dice, 4)],
            loses: [0, 0, 2, 8][number(dice, 4)],
            node_goes: [0, 0, 1, 3][number(dice, 4)],
            unfit: [0, 0, 3, 8][number(dice, 4)],
            pauses: [0, 0, 1, 3][number(dice, 4)],
            restarts: [0, 2, 6][number(dice, 3)],
            dies: [0, 2, 6][number(dice, 3)],
            deaf: [0, 0, 3][number(dice, 3)],
            races: [0, 0, 12][number(dice, 3)],
            portion: [None, Some(1), Some(2), Some(5)][number(dice, 4)],
            // A run cannot time out before it begins.
            stops_at: (dice.below(4) == 0).then(|| match (number(dice, 12), stop) {
                (0, _) => (0, Stop::Cancelled),
                at => at,
            }),
        }
    }
}

/// Plays a whole story; the error is a report for the reader.
pub(crate) fn play(case: &Case, seed: u64, counts: &mut Counts) -> Result<(), String> {
    let mut dice = Dice::new(seed ^ 0x0570_71e5);
    let has_cache = case.definition.steps().any(|task| task.cache.is_some());
    let results = if has_cache { earlier_results(case, &mut dice) } else { Vec::new() };
    let mut first = Story::new(case, None, results, seed, dice.clone());
    first.run().map_err(|error| first.report(&error))?;
    first.note(counts);
    if dice.below(2) == 0 {
        return Ok(());
    }
    let from = (dice.below(2) == 0).then(|| number(&mut dice, case.definition.tasks.len()));
    let stopped = first.tables.stop.is_some() || first.tables.cleanup.is_some();
    let well = first.tables.failures.is_empty() && !stopped;
    if well && from.is_none() {
        return Ok(());
    }
    // `run retry RUN` creates a new run from an ended one that did not complete, or completed partially. `--from TASK`
    // works on a completed run too.
    let carried = first.carried_over(from).map_err(|error| first.report(&error))?;
    let results = first.world.cache.values().cloned().collect();
    let mut second = Story::new(case, Some(carried), results, seed + 1, Dice::new(dice.next_u64()));
    second.run().map_err(|error| second.report(&format!("retried from {from:?}: {error}")))?;
    counts.note("retried", from.is_none());
    counts.note("retried from a task", from.is_some());
    second.note(counts);
    Ok(())
}

/// Returns some of the results of an earlier run of the same case that succeeded.
fn earlier_results(case: &Case, dice: &mut Dice) -> Vec<Execution> {
    let (definition, resolved) = case.shared();
    let mut world = World::of(definition, resolved, dice.next_u64());
    world.now = at(-10_000);
    world.begin();
    for _ in 0..100 {
        for execution in world.open(Status::Pending) {
            if !world.lease(&execution) {
                continue;
            }
            let output = json!([7, u64::from(execution.step())]);
            let finished =
                world.finished_with(execution.id, Verdict::Succeeded, [("v".to_owned(), output)].into());
            world.happens(&finished);
        }
    }
    let mut results = world.open(Status::Succeeded);
    results.retain(|execution| execution.cache_key.is_some() && dice.below(2) == 0);
    results
}

pub(super) fn place_of(execution: &Execution) -> Place {
    (execution.step() as usize, execution.pinned.map(node_number), execution.item().map(|item| item as usize))
}

/// Returns the output of a succeeded execution.
fn output_of(execution: &Execution) -> Value {
    match &execution.state {
        State::Succeeded { outcome, .. } => outcome.outputs["v"].clone(),
        other => panic!("only succeeded executions have outputs, not {other:?}"),
    }
}

pub(super) struct Story<'a> {
    pub(super) case: &'a Case,
    pub(super) world: World,
    pub(super) tables: Tables<'a>,
    /// The last attempt of each instance.
    pub(super) ids: Vec<Option<ExecutionId>>,
    /// The cache keys of results, by their inputs.
    pub(super) keys: BTreeMap<String, String>,
    dice: Dice,
    habits: Habits,
    pub(super) lines: Vec<Line>,
    pub(super) seen: Counts,
    /// How often the whole run may still be retried.
    rounds_left: u32,
}

impl<'a> Story<'a> {
    fn new(
        case: &'a Case,
        carried: Option<Vec<Execution>>,
        results: Vec<Execution>,
        seed: u64,
        mut dice: Dice,
    ) -> Self {
        let is_retry = carried.is_some();
        let carried = carried.unwrap_or_default();
        let (definition, mut resolved) = case.shared();
        Arc::make_mut(&mut resolved).retry = is_retry.then_some(RetryScope::AllNodes);
        let mut world = World::of(definition, resolved, seed);
        world.now = at(0);
        let outputs = carried.iter().map(|execution| (place_of(execution), output_of(execution)));
        let mut tables = Tables::new(case, outputs.collect());
        if !carried.is_empty() {
            world.carry_over(carried);
        }
        let mut keys = BTreeMap::new();
        for execution in results {
            let task = world.plan.task(StepIx(execution.step()));
            let params = execution.params.as_deref().unwrap_or(&task.params).clone().into_iter().collect();
            let inputs = inputs(&params, &task.outputs, execution.pinned.map(node_number));
            let key = execution.cache_key.as_deref().expect("it is kept").to_owned();
            tables.results.insert(inputs.clone(), output_of(&execution));
            keys.insert(inputs, key.clone());
            world.cache.insert(key, execution);
        }
        world.keeps_results = true;
        let habits = Habits::random(&mut dice);
        if let Some(rows) = habits.portion {
            world.set_portion(Portion::of_rows(rows));
        }
        let (ids, lines, seen) = (Vec::new(), Vec::new(), Counts::default());
        // A run that a person retried has one round.
        let rounds_left = case.definition.retry.map_or(0, |retry| if is_retry { 0 } else { retry.max });
        Self { case, world, tables, ids, keys, dice, habits, lines, seen, rounds_left }
    }

    fn run(&mut self) -> Result<(), String> {
        for node in 0..self.case.nodes {
            if self.chance(self.habits.node_goes) {
                self.world.offline.insert(node_id(node));
                self.tables.offline[node] = true;
                self.lines.push(Line::OfflineAtFirst(node));
            }
        }
        if self.chance(self.habits.pauses) {
            self.apply_and_decide(Fact::Paused(true));
        }
        if self.habits.stops_at.is_some_and(|(step, _)| step == 0) {
            self.apply_and_decide(Fact::Stopped(self.habits.stops_at.expect("it is there").1));
            return self.compare();
        }
        self.begin();
        self.compare()?;
        for step in 1..2_000 {
            if self.tables.run_end().is_some() && !self.next_round()? {
                return Ok(());
            }
            // Time always advances: with equal times it is undefined which of two failures was first.
            let seconds = self.dice.below(3);
            self.pass_time(1 + 1_000 * i64::try_from(seconds).expect("small"))?;
            if self.tables.run_end().is_none() {
                self.next(step)?;
                self.compare()?;
            }
        }
        Err("the run does not end".to_owned())
    }

    /// Returns whether another round follows the one that has ended.
    pub(super) fn is_retried(&self) -> bool {
        self.rounds_left > 0 && matches!(self.tables.run_end(), Some((RunState::Failed, _)))
    }

    /// Begins the next round, or cancels the run before it. Returns whether a round has begun.
    fn next_round(&mut self) -> Result<bool, String> {
        if !self.is_retried() {
            return Ok(false);
        }
        if self.chance(4) {
            self.lines.push(Line::Restart);
            self.world.restart();
            self.compare()?;
        }
        if self.chance(self.habits.pauses) {
            self.apply_and_decide(Fact::Paused(!self.tables.paused));
            self.compare()?;
        }
        if self.chance(2) {
            self.rounds_left = 0;
            self.seen.note("cancelled between rounds", true);
            let (run, at) = (self.world.record.id.clone(), self.world.now);
            self.world.happens(&Change::RunCancelRequested { run, by: "test".to_owned(), at });
            let state = self.world.record.state();
            return if state == RunState::Cancelled { Ok(false) } else { Err(format!("the run is {state}")) };
        }
        self.tables.now += 1 + i64::try_from(self.dice.below(3_000)).expect("small");
        self.world.now = at(self.tables.now);
        self.rounds_left -= 1;
        self.lines.push(Line::Round);
        self.seen.note("round", true);
        self.tables.next_round();
        self.ids.clear();
        // If a deleted node triggers fail-fast at once, the next server cannot know which items waited for room.
        if !self.tables.deleted.contains(&true) {
            self.may_die();
        }
        self.world.begin_round();
        self.world.dies_after = None;
        self.tables.decide();
        self.forget_looks();
        self.tick();
        self.compare()?;
        Ok(true)
    }

    fn begin(&mut self) {
        self.lines.push(Line::Begins);
        if self.world.executions.is_empty() && self.dice.below(8) > 0 {
            self.may_die();
            self.world.begin();
        } else {
            self.world.restart();
        }
        self.tables.decide();
        self.forget_looks();
        self.tick();
    }

    fn chance(&mut self, of_32: u64) -> bool {
        self.dice.below(32) < of_32
    }

    /// Chooses and applies the next event.
    fn next(&mut self, step: usize) -> Result<(), String> {
        if let Some((when, stop)) = self.habits.stops_at
            && step >= when
            && self.tables.stop.is_none()
            && self.tables.cleanup.is_none()
        {
            self.apply_and_decide(Fact::Stopped(stop));
            return Ok(());
        }
        if self.tables.cleanup.is_some() && self.tables.stop.is_none() && self.chance(2) {
            self.apply_and_decide(Fact::Stopped(Stop::Cancelled));
            return Ok(());
        }
        if self.chance(self.habits.restarts) {
            self.lines.push(Line::Restart);
            self.seen.note("restart", true);
            self.world.restart();
            self.forget_looks();
            return Ok(());
        }
        if self.chance(self.habits.deaf) {
            let restarts = self.dice.below(2) == 0;
            self.lines.push(if restarts { Line::RestartUnobserved } else { Line::Together });
            // A pause between waves counts from the time when the engine learned of the end or, after a restart, from
            // its record.
            let most = if !restarts && self.case.definition.rollout.is_some() { 1 } else { 3 };
            let changes = self.unobserved_changes(most);
            if restarts {
                self.lines.push(Line::Restart);
                self.world.restart();
            } else {
                self.world.observe_all(&changes);
            }
            self.seen.note("restart that finds changes", restarts);
            self.seen.note("several changes at once", !restarts && changes.len() > 1);
            self.tables.decide();
            self.forget_looks();
            self.tick();
            return Ok(());
        }
        if let Some(due) = self.tables.next_due()
            && self.tables.next_tick() == Some(due)
            && self.chance(1)
        {
            self.seen.note("overdue", true);
            return self.pass_time(due - self.tables.now);
        }
        if let Some(fact) = self.choose() {
            self.apply_and_decide(fact);
            return Ok(());
        }
        // Nothing can happen without an outside event: time passes, a user resumes the run, or a node comes back.
        if self.tables.paused {
            self.apply_and_decide(Fact::Paused(false));
        } else if let Some(tick) = self.tables.next_tick() {
            return self.pass_time(tick - self.tables.now);
        } else if let Some(step) = self.unfit_step() {
            let look = self.world.progress.next_look().expect("compared").as_millisecond() - BEGINNING_MS;
            if self.dice.below(8) > 0 {
                return self.pass_time(look - self.tables.now);
            }
            self.apply_and_decide(Fact::Fits(step));
        } else {
            return Err("nothing is open, and the run goes on".to_owned());
        }
        Ok(())
    }

    /// Returns some facts that are recorded before the engine learns of them.
    fn unobserved_changes(&mut self, most: u64) -> Vec<Change> {
        let mut changes = Vec::new();
        for index in 0..1 + self.dice.below(most) {
            match self.choose() {
                // The engine gives up work that waits for this node, before or after the next fact.
                Some(Fact::Offline(_) | Fact::Deleted(_)) | None => break,
                Some(fact) => {
                    // With equal times it is undefined which of two failures was first.
                    if index > 0 {
                        self.tables.now += 1;
                        self.world.now = at(self.tables.now);
                    }
                    changes.extend(self.apply(fact, false));
                }
            }
        }
        changes
    }

    /// Returns a step that waits for a node that fits.
    fn unfit_step(&self) -> Option<usize> {
        let waits = |i: &&Instance| i.status() == Some(Status::Pending) && i.node.is_none();
        self.tables.instances.iter().filter(waits).map(|i| i.step).find(|step| self.tables.unfit[*step])
    }

    /// Resets the waiting time after a server was replaced, for executions that were waiting.
    fn forget_looks(&mut self) {
        for id in std::mem::take(&mut self.world.remembered) {
            let execution = &self.world.executions[&id];
            let instance = self.tables.instance_at(place_of(execution));
            let attempt = execution.attempt as usize;
            if let Some(instance) = instance
                && self.tables.instances[instance].attempts.len() == attempt
            {
                self.tables.forget_looks(instance);
            }
        }
    }

    fn choose(&mut self) -> Option<Fact> {
        if self.chance(self.habits.node_goes) {
            let node = number(&mut self.dice, self.case.nodes);
            let is_deleted = !self.tables.deleted[node] && self.dice.below(3) == 0;
            return Some(match self.tables.offline[node] {
                _ if is_deleted => Fact::Deleted(node),
                true => Fact::Online(node),
                false => Fact::Offline(node),
            });
        }
        if self.chance(self.habits.pauses) {
            return Some(Fact::Paused(!self.tables.paused));
        }
        if self.chance(self.habits.unfit) {
            let waits = self.unfit_step().filter(|_| self.dice.below(2) == 0);
            let step = waits.unwrap_or_else(|| number(&mut self.dice, self.tables.unfit.len()));
            return Some(if self.tables.unfit[step] { Fact::Fits(step) } else { Fact::Unfit(step) });
        }
        let open = self.open();
        if open.is_empty() {
            return None;
        }
        let chosen = open[number(&mut self.dice, open.len())];
        Some(self.fact_about(chosen))
    }

    /// Returns the instances that nodes can act on.
    fn open(&self) -> Vec<usize> {
        let reachable = |node: Option<usize>| node.is_none_or(|node| !self.tables.offline[node]);
        let is_open = |i: &usize| {
            let instance = &self.tables.instances[*i];
            match instance.status() {
                // A paused run begins nothing more: the dispatcher keeps pending executions back.
                Some(Status::Pending) => {
                    let fits = instance.node.is_some() || !self.tables.unfit[instance.step];
                    !self.tables.paused && reachable(instance.node) && fits
                }
                status => status == Some(Status::Leased),
            }
        };
        (0..self.tables.instances.len()).filter(is_open).collect()
    }

    fn fact_about(&mut self, instance: usize) -> Fact {
        let last = self.tables.instances[instance].attempts.last().expect("it is open");
        let (status, stop) = (last.status, last.stop);
        if status == Status::Pending {
            return Fact::Leased(instance);
        }
        if self.chance(3) && self.ids[instance].is_some_and(|id| !self.is_running(id)) {
            return Fact::Started(instance);
        }
        if self.chance(self.habits.loses) {
            return Fact::Lost(instance);
        }
        if stop && self.dice.below(4) > 0 || self.chance(self.habits.loses / 2) {
            return Fact::Cancelled(instance);
        }
        if self.chance(self.habits.fails) {
            return Fact::Failed(instance);
        }
        let Instance { step, node, item, .. } = self.tables.instances[instance];
        let output = if self.tables.sources.contains(&Some(step)) {
            self.list()
        } else {
            Case::output(step, node.or(item))
        };
        Fact::Succeeded(instance, output)
    }

    /// Returns an output that other tasks use as their list; it may be invalid.
    fn list(&mut self) -> Value {
        match self.dice.below(12) {
            0 | 1 => json!([]),
            2 => json!("[1, {\"a\": 2}]"),
            3 => [json!(7), json!("x"), json!({"a": 1})][number(&mut self.dice, 3)].clone(),
            4 => json!(null),
            5 => json!([null, 8]),
            _ => (0..1 + number(&mut self.dice, 3)).map(|item| json!(item * 5)).collect(),
        }
    }

    fn is_running(&self, id: ExecutionId) -> bool {
        self.world.executions[&id].state.status() == Status::Running
    }

    /// Applies the fact to both, and lets both decide; the server may die during it.
    fn apply_and_decide(&mut self, fact: Fact) {
        self.may_die();
        let race = self.may_race(&fact);
        self.apply(fact, true);
        if let Some(instance) = race
            && self.world.race.take().is_none()
        {
            self.tables.leased(instance);
            self.lines.push(Line::Race(instance));
            self.seen.note("race", true);
        }
        self.tables.decide();
        self.forget_looks();
        self.world.dies_after = None;
        self.tick();
    }

    /// Returns a pending instance that a node may lease while the engine still sees it as pending.
    fn may_race(&mut self, fact: &Fact) -> Option<usize> {
        let changes_itself = matches!(fact, Fact::Leased(_) | Fact::Paused(_));
        if !self.chance(self.habits.races) || changes_itself || self.world.dies_after.is_some() {
            return None;
        }
        let found =
            self.open().into_iter().find(|i| self.tables.instances[*i].status() == Some(Status::Pending))?;
        self.world.race = self.ids[found];
        Some(found)
    }

    fn may_die(&mut self) {
        if self.chance(self.habits.dies) {
            let submissions = u32::try_from(self.dice.below(3)).expect("small");
            self.world.dies_after = Some(submissions);
            self.lines.push(Line::DiesAfter(submissions));
            self.seen.note("death", true);
        }
    }

    /// Applies the fact to both. Returns its change if the engine has not observed it yet.
    fn apply(&mut self, fact: Fact, observed: bool) -> Option<Change> {
        self.lines.push(Line::Happens(fact.clone()));
        let (run, at) = (self.world.record.id.clone(), self.world.now);
        let id = |instance: usize| self.ids[instance].expect("it has an attempt");
        let change = match fact {
            Fact::Leased(instance) => {
                let execution = self.world.executions[&id(instance)].clone();
                self.tables.leased(instance);
                self.world.leased(&execution)
            }
            Fact::Started(instance) => self.world.started(id(instance)),
            Fact::Succeeded(instance, output) => {
                self.tables.finished(instance, Verdict::Succeeded, Some(output.clone()));
                self.world.finished_with(id(instance), Verdict::Succeeded, [("v".to_owned(), output)].into())
            }
            Fact::Failed(instance) => {
                self.tables.finished(instance, Verdict::Failed, None);
                self.world.finished_with(id(instance), Verdict::Failed, Params::default())
            }
            Fact::Cancelled(instance) => {
                self.tables.finished(instance, Verdict::Cancelled, None);
                self.world.finished_with(id(instance), Verdict::Cancelled, Params::default())
            }
            Fact::Unfit(step) => {
                self.tables.unfit[step] = true;
                self.world.unfit.insert(u32::try_from(step).expect("small"));
                return None;
            }
            Fact::Fits(step) => {
                self.tables.unfit[step] = false;
                self.world.unfit.remove(&u32::try_from(step).expect("small"));
                return None;
            }
            Fact::Lost(instance) => {
                self.tables.lost(instance);
                self.seen.note("lost", true);
                self.world.lost(id(instance))
            }
            Fact::Offline(node) => {
                self.tables.offline[node] = true;
                self.seen.note("node offline", true);
                self.world.offline.insert(node_id(node));
                if observed {
                    self.world.turn(|progress, turn| progress.nodes_gone(&[node_id(node)], turn));
                }
                return None;
            }
            Fact::Deleted(node) => {
                self.tables.offline[node] = true;
                self.tables.deleted[node] = true;
                self.seen.note("node deleted", true);
                self.world.offline.insert(node_id(node));
                self.world.deleted.insert(node_id(node));
                if observed {
                    self.world.turn(|progress, turn| progress.nodes_gone(&[node_id(node)], turn));
                }
                return None;
            }
            Fact::Online(node) => {
                self.tables.offline[node] = false;
                self.tables.deleted[node] = false;
                self.world.deleted.remove(&node_id(node));
                self.world.offline.remove(&node_id(node));
                return None;
            }
            Fact::Stopped(stop) => {
                self.tables.stopped(stop);
                match stop {
                    Stop::Cancelled => Change::RunCancelRequested { run, by: "test".to_owned(), at },
                    Stop::TimedOut => {
                        self.world.time_out();
                        return None;
                    }
                }
            }
            Fact::Paused(paused) => {
                self.tables.paused = paused;
                self.seen.note("paused", paused);
                Change::RunPauseSet { run, paused, by: "test".to_owned(), at }
            }
        };
        let applied = if observed { self.world.happens(&change) } else { self.world.apply(&change) };
        assert!(applied, "{change:?} was refused");
        (!observed).then_some(change)
    }

    fn pass_time(&mut self, by_ms: i64) -> Result<(), String> {
        let due = self.tables.next_tick();
        self.tables.now += by_ms;
        self.world.now = at(self.tables.now);
        self.lines.push(Line::LaterMs(by_ms));
        // Both agree on the next time at which time alone matters; only the engine decides when it looks for nodes.
        let looks = self.world.progress.next_look().is_some_and(|at| at <= self.world.now);
        if looks {
            self.lines.push(Line::Look);
            self.tables.looked();
        }
        if looks || due.is_some_and(|due| due <= self.tables.now) {
            self.tables.decide();
            self.tick();
            self.compare()?;
        }
        Ok(())
    }

    /// Ticks the engine as often as it asked for by now.
    fn tick(&mut self) {
        for _ in 0..100 {
            if self.world.progress.next_tick().is_none_or(|tick| tick > self.world.now) {
                return;
            }
            self.world.turn(|progress, turn| progress.tick(turn));
        }
        panic!("the engine asks for the same moment again and again");
    }

    /// Returns the executions that a retry of this run takes over.
    fn carried_over(&mut self, from: Option<usize>) -> Result<Vec<Execution>, String> {
        let executions = self.world.all_rounds();
        let again = from.map_or(RetryScope::AllNodes, |entry| RetryScope::From(EntryIx::new(entry)));
        let second = retry_of(&self.world.record, &self.world.plan, &executions, again);
        let second = second.map_err(|why| why.to_string())?;
        let carried = second.executions(&RunId::from("run"), self.world.now, &mut self.world.dice);
        let got: BTreeSet<Place> = carried.iter().map(place_of).collect();
        let expected = self.tables.left_for_another(from);
        if got == expected && got.len() == carried.len() {
            Ok(carried)
        } else {
            Err(format!("from {from:?} on: {got:?} is carried over, not {expected:?}"))
        }
    }
}

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(BEGINNING_MS + ms).expect("a time")
}
