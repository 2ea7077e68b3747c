//! A slow, obvious interpreter of the tables of `docs/fleet.md` and `docs/graph.md`. It receives every event and
//! computes the expected state of every instance. It shares nothing with the engine: it keeps plain lists, and searches
//! all of them after every event. This file contains the consequences of events; `rules` contains the rules.

use std::collections::BTreeMap;

use downbeat_core::execution::{Status, Verdict};
use downbeat_core::run::RunState;
use serde_json::Value;

use super::case::{Case, MOST_NODES, source};
use super::parts::{Attempt, Fate, Given, Instance, Part, Place, Stage, Stop, Why};

pub(crate) struct Tables<'a> {
    pub(super) case: &'a Case,
    pub(super) graph: bool,
    pub(crate) instances: Vec<Instance>,
    pub(super) parts: Vec<Part>,
    /// Failed instances, in the order of their failures.
    pub(crate) failures: Vec<usize>,
    /// The part in which fail-fast began.
    pub(crate) fail_fast: Option<usize>,
    pub(crate) stop: Option<Stop>,
    /// When the run timed out, if it has steps that run after failures: they still run.
    pub(crate) cleanup: Option<i64>,
    pub(crate) paused: bool,
    /// Includes deleted nodes.
    pub(crate) offline: Vec<bool>,
    pub(crate) deleted: Vec<bool>,
    /// Steps that no node fits.
    pub(crate) unfit: Vec<bool>,
    /// The outputs of earlier results, by their inputs.
    pub(crate) results: BTreeMap<String, Value>,
    /// The instances that succeeded in the run that this one retries, with their outputs.
    carried: BTreeMap<Place, Value>,
    pub(crate) now: i64,
    /// The end of the last attempt.
    pub(super) last_end: Option<i64>,
    /// Entry and leaf of each step.
    pub(super) places: Vec<(usize, usize)>,
    /// For each entry the step whose output is its list, if any.
    pub(crate) sources: Vec<Option<usize>>,
    by_place: Vec<Option<usize>>,
    count: usize,
}

/// The maximum number of items.
const MOST_ITEMS: usize = 8;
const COLUMNS: usize = 1 + MOST_NODES + MOST_ITEMS;

fn row_and_column((step, node, item): Place) -> usize {
    step * COLUMNS + node.map_or(0, |node| node + 1) + item.map_or(0, |item| 1 + MOST_NODES + item)
}

impl<'a> Tables<'a> {
    pub(crate) fn new(case: &'a Case, carried: BTreeMap<Place, Value>) -> Self {
        let graph = case.definition.is_graph();
        let places = case.places();
        let mut tables = Self {
            case,
            graph,
            instances: Vec::new(),
            parts: Vec::new(),
            failures: Vec::new(),
            fail_fast: None,
            stop: None,
            cleanup: None,
            paused: false,
            offline: vec![false; case.nodes],
            deleted: vec![false; case.nodes],
            unfit: vec![false; places.len()],
            results: BTreeMap::new(),
            carried,
            now: 0,
            last_end: None,
            sources: Vec::new(),
            by_place: vec![None; places.len() * COLUMNS],
            places,
            count: 0,
        };
        let source = |entry: &downbeat_core::spec::Entry| {
            entry.for_each().and_then(source).and_then(|name| tables.step_named(name))
        };
        tables.sources = case.definition.tasks.iter().map(source).collect();
        tables.lay_out();
        tables
    }

    /// Begins the next round: nothing is done, and nothing but the cache remembers the last one.
    pub(crate) fn next_round(&mut self) {
        let mut next = Self::new(self.case, BTreeMap::new());
        (next.now, next.paused) = (self.now, self.paused);
        next.offline = std::mem::take(&mut self.offline);
        next.deleted = std::mem::take(&mut self.deleted);
        next.unfit = std::mem::take(&mut self.unfit);
        next.results = std::mem::take(&mut self.results);
        *self = next;
    }

    fn lay_out(&mut self) {
        let case = self.case;
        let entries = || 0..case.definition.tasks.len();
        if case.definition.rollout.is_none() {
            for entry in entries() {
                self.add_part(entry, None, case.targets[entry].clone());
            }
            return;
        }
        let (answers, walked): (Vec<usize>, Vec<usize>) = entries().partition(|entry| self.answers(*entry));
        // A wave runs the whole list before the next begins.
        for (wave, nodes) in self.waves().into_iter().enumerate() {
            for &entry in &walked {
                self.add_part(entry, Some(wave), Some(nodes.clone()));
            }
        }
        // `on_failure` entries are not part of the waves: they run once, in their order, after the last wave.
        for entry in answers {
            self.add_part(entry, None, Some((0..case.nodes).collect()));
        }
    }

    fn add_part(&mut self, entry: usize, wave: Option<usize>, nodes: Option<Vec<usize>>) {
        let part = self.parts.len();
        let tasks = &self.case.definition.tasks;
        let after = if self.graph {
            // In a graph, an entry waits for its dependencies.
            let names = tasks[entry].depends_on().iter();
            names.map(|name| tasks.iter().position(|e| e.name() == Some(name)).expect("it exists")).collect()
        } else {
            // Each entry is a barrier: every node ends entry N before any begins N+1.
            (0..part).collect()
        };
        self.parts.push(Part { entry, wave, after, stage: Stage::Waiting, items: None });
        match nodes {
            Some(nodes) => nodes.into_iter().for_each(|node| self.add_walk(part, Some(node), None)),
            // The items of a `for_each` are known when the entry is due.
            None if self.goes_over_items(entry) => {}
            None => self.add_walk(part, None, None),
        }
    }

    fn add_walk(&mut self, part: usize, node: Option<usize>, item: Option<usize>) {
        let entry = self.parts[part].entry;
        for step in 0..self.places.len() {
            let (of, leaf) = self.places[step];
            if of != entry {
                continue;
            }
            let place = (step, node, item);
            let output = self.carried.get(&place).cloned();
            let carried = output.is_some();
            // Succeeded steps are carried over and do not run again.
            let fate = carried.then_some(Fate::Succeeded);
            let attempts = Vec::new();
            self.by_place[row_and_column(place)] = Some(self.instances.len());
            self.instances.push(Instance {
                part,
                entry,
                leaf,
                step,
                node,
                item,
                carried,
                attempts,
                fate,
                output,
            });
        }
    }

    pub(super) fn was_carried_over(&self, place: Place) -> bool {
        self.carried.contains_key(&place)
    }

    pub(crate) fn instance_at(&self, place: Place) -> Option<usize> {
        self.by_place[row_and_column(place)]
    }

    // Events.

    pub(crate) fn leased(&mut self, instance: usize) {
        let due = self.now + (self.timeout_s(instance) + 2048) * 1000;
        let attempt = self.last(instance);
        attempt.status = Status::Leased;
        attempt.sent = true;
        attempt.due = Some(due);
    }

    /// The timeout of a task is 30 minutes if it has none.
    fn timeout_s(&self, instance: usize) -> i64 {
        let task = self.task(instance);
        i64::try_from(task.timeout.map_or(30 * 60, |timeout| timeout.0.as_secs())).expect("it is bounded")
    }

    pub(crate) fn finished(&mut self, instance: usize, verdict: Verdict, output: Option<Value>) {
        let status = match verdict {
            Verdict::Succeeded => Status::Succeeded,
            Verdict::Failed => Status::Failed,
            Verdict::Cancelled => Status::Cancelled,
        };
        // Later instances can reuse the result.
        if let (Some(output), Some(inputs)) = (&output, self.inputs(instance)) {
            self.results.insert(inputs, output.clone());
        }
        self.instances[instance].output = output;
        self.end(instance, status, None);
    }

    /// Updates whether nodes fit the pending instances. Waiting for a slot, a limit or its turn does not count.
    pub(crate) fn looked(&mut self) {
        for i in 0..self.instances.len() {
            let Instance { node, step, .. } = self.instances[i];
            if node.is_some() || self.instances[i].status() != Some(Status::Pending) {
                continue;
            }
            let fits = self.paused || !self.unfit[step];
            let (now, most) = (self.now, self.placement_timeout(i));
            let attempt = self.last(i);
            if fits {
                attempt.unfit_since = None;
                continue;
            }
            let from = attempt.not_before.map_or(now, |at| at.max(now));
            let since = *attempt.unfit_since.get_or_insert(from);
            attempt.unfit = now - since >= most;
        }
    }

    /// After a server was replaced, the waiting time counts again from zero.
    pub(crate) fn forget_looks(&mut self, instance: usize) {
        self.last(instance).unfit_since = None;
    }

    pub(crate) fn lost(&mut self, instance: usize) {
        self.end(instance, Status::Lost, None);
    }

    /// A run can be cancelled in every state that is not terminal. The run's timeout ends everything in the same way,
    /// except for steps that run after failures.
    pub(crate) fn stopped(&mut self, stop: Stop) {
        if stop == Stop::TimedOut && self.has_cleanup() {
            self.cleanup = Some(self.now);
        } else {
            self.stop.get_or_insert(stop);
        }
    }

    fn last(&mut self, instance: usize) -> &mut Attempt {
        self.instances[instance].attempts.last_mut().expect("it has an attempt")
    }

    fn end(&mut self, instance: usize, status: Status, why: Option<Why>) {
        self.count += 1;
        let (count, now) = (self.count, self.now);
        let attempt = self.last(instance);
        attempt.status = status;
        attempt.why = why;
        attempt.stop = false;
        attempt.ended = count;
        // There is no pause after a wave in which nothing was tried.
        if status != Status::Skipped && !self.last(instance).cached {
            self.last_end = Some(now);
        }
    }

    // Consequences.

    /// Applies the rules until nothing changes.
    pub(crate) fn decide(&mut self) {
        if self.cleanup_ends().is_some_and(|end| end <= self.now) {
            self.stop.get_or_insert(Stop::TimedOut);
        }
        self.stop_everything();
        loop {
            while self.resolve_ended() || self.walk_on() || self.turn_of_next_part() || self.begin_next() {}
            // These results become known together.
            let (used, withdrawn) = (self.use_results(), self.withdraw());
            let (overdue, given_up) = (self.end_overdue(), self.give_up());
            if !used && !withdrawn && !overdue && !given_up {
                return;
            }
        }
    }

    fn stop_everything(&mut self) {
        for instance in 0..self.instances.len() {
            if !self.is_stopped(instance) {
                continue;
            }
            match self.instances[instance].status() {
                Some(Status::Pending) => self.end(instance, Status::Cancelled, None),
                Some(Status::Leased) => self.last(instance).stop = true,
                _ => {}
            }
        }
    }

    /// Resolves the instances whose attempts ended.
    fn resolve_ended(&mut self) -> bool {
        let mut ended: Vec<usize> = (0..self.instances.len())
            .filter(|&i| self.instances[i].fate.is_none())
            .filter(|&i| self.instances[i].status().is_some_and(|status| !status.is_open()))
            .collect();
        ended.sort_by_key(|&i| self.instances[i].attempts.last().map(|attempt| attempt.ended));
        let any = !ended.is_empty();
        // Final failures come first: they may start fail-fast, and then nothing is retried.
        ended.retain(|&instance| {
            let again = self.may_retry(instance);
            if !again {
                self.resolve(instance);
            }
            again
        });
        if let Some(&instance) = ended.iter().min_by_key(|&&i| self.instances[i].order()) {
            if self.goes_on(instance) {
                self.retry(instance);
            } else {
                self.resolve(instance);
            }
        }
        any
    }

    fn resolve(&mut self, instance: usize) {
        let attempts = &self.instances[instance].attempts;
        let last = attempts.last().expect("it has an attempt");
        let (first, unsent) = (attempts.len() == 1, !last.sent);
        let fate = match last.status {
            Status::Succeeded => Fate::Succeeded,
            // An instance fails when its last attempt failed.
            Status::Failed => Fate::Failed,
            // An attempt that ended before it was sent does not count: if an earlier one failed, the instance failed.
            Status::Skipped | Status::Cancelled if unsent && first => Fate::Skipped,
            Status::Skipped | Status::Cancelled if unsent => Fate::Failed,
            Status::Skipped => unreachable!("what was sent is not skipped"),
            // It fails as lost. An attempt that only its agent cancelled counts as lost. What a cancelled run ended has
            // not failed.
            Status::Lost | Status::Cancelled if self.stop == Some(Stop::Cancelled) => Fate::Stopped,
            Status::Lost | Status::Cancelled => Fate::Failed,
            Status::Pending | Status::Leased | Status::Running => unreachable!("it ended"),
        };
        self.instances[instance].fate = Some(fate);
        if fate == Fate::Failed {
            self.failures.push(instance);
            if self.fail_fast.is_none() && self.spent() > self.budget() {
                self.fail_fast = Some(self.instances[instance].part);
            }
        }
    }

    fn retry(&mut self, instance: usize) {
        let Instance { attempts, node, .. } = &self.instances[instance];
        if self.instances[instance].status() == Some(Status::Failed) {
            // The delay is `delay * factor^(n-1)`, capped, with full jitter: 1 s, factor 2, cap 30 s.
            let failed = attempts.iter().filter(|attempt| attempt.status == Status::Failed).count();
            let longest = [1_000, 2_000, 4_000][failed - 1];
            self.attempt(instance, None, Some(self.now + longest));
        } else {
            // A retry after a loss waits for its node as long as it would have been allowed to run.
            let until = node.map(|_| self.now + self.timeout_s(instance) * 1_000);
            self.attempt(instance, until, None);
        }
    }

    fn attempt(&mut self, instance: usize, waits_until: Option<i64>, held_until: Option<i64>) {
        let unfit_since = Some(self.now);
        let attempt = Attempt { waits_until, held_until, unfit_since, ..Attempt::default() };
        self.instances[instance].attempts.push(attempt);
        // A step for an offline node fails without being sent. A value that is missing at run time fails the attempt
        // that needs it.
        let unreachable = self.is_deleted(instance) || waits_until.is_none() && self.is_offline(instance);
        if unreachable || self.given(instance) == Given::Missing {
            self.end(instance, Status::Failed, None);
            return;
        }
        // Before the first attempt the newest succeeded execution with equal inputs is searched.
        if self.instances[instance].attempts.len() == 1
            && let Some(inputs) = self.inputs(instance)
        {
            self.last(instance).found = self.results.get(&inputs).cloned();
        }
    }

    /// Uses earlier results: the step succeeds, with the outputs of the earlier execution.
    fn use_results(&mut self) -> bool {
        let mut any = false;
        for i in 0..self.instances.len() {
            if self.instances[i].status() != Some(Status::Pending) {
                continue;
            }
            if let Some(output) = self.last(i).found.take() {
                self.last(i).cached = true;
                self.end(i, Status::Succeeded, None);
                self.instances[i].output = Some(output);
                any = true;
            }
        }
        any
    }

    fn skip(&mut self, instance: usize, why: Why) {
        self.instances[instance].attempts.push(Attempt::default());
        self.end(instance, Status::Skipped, Some(why));
        self.instances[instance].fate = Some(Fate::Skipped);
    }

    /// Skips instances that have not begun. The part in which fail-fast began has begun on all of its nodes: pending
    /// instances there keep their first attempt, but are not retried.
    fn withdraw(&mut self) -> bool {
        let Some(fail_fast) = self.fail_fast else { return false };
        let mut any = false;
        for i in 0..self.instances.len() {
            let instance = &self.instances[i];
            let begun = instance.part == fail_fast && instance.attempts.len() == 1;
            if instance.status() == Some(Status::Pending) && !begun && !self.is_on_failure(i) {
                self.end(i, Status::Skipped, Some(Why::Failure));
                any = true;
            }
        }
        any
    }

    /// Attempts whose end is not reported by their timeout and a grace are lost.
    fn end_overdue(&mut self) -> bool {
        let is_overdue = |&i: &usize| {
            let last = self.instances[i].attempts.last();
            last.is_some_and(|last| {
                last.status == Status::Leased && last.due.is_some_and(|due| due <= self.now)
            })
        };
        let mut overdue: Vec<usize> = (0..self.instances.len()).filter(is_overdue).collect();
        overdue.sort_by_key(|&i| (self.instances[i].step, self.instances[i].order()));
        for &instance in &overdue {
            self.lost(instance);
        }
        !overdue.is_empty()
    }

    /// Fails pending instances whose node goes offline. A retry after a loss waits for its node as long as its timeout,
    /// and fails when the node is deleted. An instance that no node fitted for `placement_timeout` fails.
    fn give_up(&mut self) -> bool {
        let mut gone: Vec<usize> = (0..self.instances.len())
            .filter(|&i| self.instances[i].status() == Some(Status::Pending))
            .filter(|&i| {
                let attempt = self.instances[i].attempts.last().expect("it has a status");
                attempt.unfit
                    || self.is_deleted(i)
                    || attempt.waits_until.map_or(self.is_offline(i), |until| until <= self.now)
            })
            .collect();
        // Of failures at the same time, that of the first step counts first.
        gone.sort_by_key(|&i| (self.instances[i].step, self.instances[i].order()));
        for &instance in &gone {
            self.end(instance, Status::Failed, None);
        }
        !gone.is_empty()
    }

    /// Each node walks its leaves at its own pace. Walks that have begun continue; leaves that do not run are skipped.
    fn walk_on(&mut self) -> bool {
        let next = |&i: &usize| self.is_next(i) && (self.leaf_runs(i).is_err() || self.walk_has_begun(i));
        let Some(i) = (0..self.instances.len()).filter(next).min_by_key(|&i| self.instances[i].order())
        else {
            return false;
        };
        self.try_leaf(i);
        true
    }

    fn try_leaf(&mut self, instance: usize) {
        match self.leaf_runs(instance) {
            Ok(()) => self.attempt(instance, None, None),
            Err(why) => self.skip(instance, why),
        }
    }

    /// Skips or begins the first entry of the job file that is due.
    fn turn_of_next_part(&mut self) -> bool {
        for part in 0..self.parts.len() {
            let waits = self.parts[part].stage == Stage::Waiting;
            if waits && self.parts[part].after.iter().all(|before| self.has_ended(*before)) {
                self.parts[part].stage = Stage::Due;
            }
        }
        for part in 0..self.parts.len() {
            if self.parts[part].stage != Stage::Due || self.is_held_up(part) {
                continue;
            }
            match self.part_runs(part) {
                // An entry begins on all of its nodes at once.
                Ok(()) if self.case.definition.max_parallel.is_none() || self.is_whole(part) => {
                    self.begin(part);
                }
                // A task begins when there is capacity for one of its instances.
                Ok(()) => continue,
                // A task without items succeeds at once, and so does a task of a graph that was carried over as a whole:
                // there is nothing to skip.
                Err(_) if self.is_whole(part) && self.is_done(part) => self.begin(part),
                Err(why) => self.skip_part(part, why),
            }
            return true;
        }
        false
    }

    fn skip_part(&mut self, part: usize, why: Why) {
        self.parts[part].stage = Stage::Skipped;
        // A task that is skipped before it began has one instance, and no item.
        if self.goes_over_items(self.parts[part].entry) {
            self.add_walk(part, None, None);
        }
        for i in 0..self.instances.len() {
            if self.instances[i].part == part && !self.instances[i].carried {
                self.skip(i, why);
            }
        }
    }

    fn begin(&mut self, part: usize) {
        self.parts[part].stage = Stage::Began;
        let entry = self.parts[part].entry;
        if self.goes_over_items(entry) {
            match self.items(entry) {
                Some(items) => {
                    // There is one instance for each item, numbered from 0.
                    (0..items.len()).for_each(|item| self.add_walk(part, None, Some(item)));
                    self.parts[part].items = Some(items);
                }
                // A value that is not a list fails the task's first leaf.
                None => {
                    let first = self.instances.len();
                    self.add_walk(part, None, None);
                    self.instances[first].attempts.push(Attempt::default());
                    self.end(first, Status::Failed, None);
                    return;
                }
            }
        }
        for i in 0..self.instances.len() {
            let concerned = self.instances[i].part == part && !self.instances[i].carried;
            if concerned && let Err(why) = self.node_joins(i) {
                self.skip(i, why);
            }
        }
        // An entry begins on all of its nodes at once, except where there are bounds: there one after the other.
        if !self.is_bounded(part) {
            for i in 0..self.instances.len() {
                if self.instances[i].part == part && self.is_next(i) {
                    self.try_leaf(i);
                }
            }
        }
    }

    /// Begins the next walk, in the order of the job file and of items or nodes, if there is capacity.
    fn begin_next(&mut self) -> bool {
        if !self.run_has_room() {
            return false;
        }
        let bounded = self.case.definition.max_parallel.is_some();
        let due = |part: &usize| self.parts[*part].stage == Stage::Due && !self.is_held_up(*part);
        let part = (0..self.parts.len()).find(|part| bounded && due(part));
        let begins = |&i: &usize| {
            self.is_next(i) && self.leaf_runs(i).is_ok() && self.part_has_room(self.instances[i].part)
        };
        let next = (0..self.instances.len()).filter(begins).min_by_key(|&i| self.instances[i].order());
        match (part, next) {
            (Some(part), next) if next.is_none_or(|i| part < self.instances[i].part) => self.begin(part),
            (_, Some(instance)) => self.attempt(instance, None, None),
            (_, None) => return false,
        }
        true
    }

    pub(super) fn has_ended(&self, part: usize) -> bool {
        matches!(self.parts[part].stage, Stage::Began | Stage::Skipped)
            && self.instances.iter().filter(|i| i.part == part).all(|i| i.fate.is_some())
    }

    // Queries.

    /// Returns the next time at which time alone changes something.
    pub(crate) fn next_tick(&self) -> Option<i64> {
        let pending = self.instances.iter().filter(|i| i.status() == Some(Status::Pending));
        let patience = pending.filter_map(|i| i.attempts.last().and_then(|attempt| attempt.waits_until));
        let wave = self.wave_begins().filter(|_| !self.paused);
        let cleanup = self.cleanup_ends().filter(|_| self.stop.is_none());
        patience.chain(self.next_due()).chain(wave).chain(cleanup).min()
    }

    /// Returns the time by which the next end has to be reported.
    pub(crate) fn next_due(&self) -> Option<i64> {
        let leased = self.instances.iter().filter(|i| i.status() == Some(Status::Leased));
        leased.filter_map(|i| i.attempts.last().and_then(|attempt| attempt.due)).min()
    }

    /// Returns how the run ended, and whether partially; `None` while it is active.
    pub(crate) fn run_end(&self) -> Option<(RunState, bool)> {
        let decided = self.parts.iter().all(|part| matches!(part.stage, Stage::Began | Stage::Skipped));
        if !decided || self.instances.iter().any(|instance| instance.fate.is_none()) {
            return None;
        }
        let failed = !self.failures.is_empty();
        let within = self.case.definition.rollout.is_some() && self.fail_fast.is_none();
        Some(match self.stop {
            Some(Stop::Cancelled) => (RunState::Cancelled, false),
            Some(Stop::TimedOut) => (RunState::Failed, false),
            None if self.cleanup.is_some() => (RunState::Failed, false),
            // A run is `completed` only if nothing failed; a run within its budget ends `completed`, with `partial:
            // true` if any node failed.
            None if !failed => (RunState::Completed, false),
            None if within => (RunState::Completed, true),
            // Fail-fast: `failed`. `continue`: `failed`, with `partial: true`.
            None => (RunState::Failed, self.fail_fast.is_none()),
        })
    }
}
