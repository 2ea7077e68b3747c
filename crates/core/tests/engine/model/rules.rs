//! The rules of `docs/fleet.md` and `docs/graph.md`, each below a comment that states it.

use std::collections::{BTreeMap, BTreeSet};

use downbeat_core::execution::Status;
use downbeat_core::spec::{Amount, Batch, Condition, Delivery, Entry, Strategy, Task};

use serde_json::Value;

use super::case::{Written, read};
use super::parts::{Attempt, Fate, Given, Instance, Part, Place, Stage, Stop, Why};
use super::tables::Tables;

impl<'a> Tables<'a> {
    /// `batch` is the size of a wave: a number, or a percentage of all nodes (rounded down, at least one node). A list
    /// sets the size of each wave; its last entry repeats until no nodes are left.
    pub(super) fn waves(&self) -> Vec<Vec<usize>> {
        let rollout = self.case.definition.rollout.as_ref().expect("a roll-out");
        let mut left: Vec<usize> = (0..self.case.nodes).collect();
        let mut waves: Vec<Vec<usize>> = Vec::new();
        while !left.is_empty() {
            let size = match &rollout.batch {
                Batch::Alike(amount) => self.amount(*amount),
                Batch::Each(sizes) => self.amount(sizes[waves.len().min(sizes.len() - 1)]),
            };
            let rest = left.split_off(size.max(1).min(left.len()));
            waves.push(std::mem::replace(&mut left, rest));
        }
        waves
    }

    pub(super) fn amount(&self, amount: Amount) -> usize {
        match amount {
            Amount::Count(count) => count as usize,
            Amount::Percent(percent) => self.case.nodes * usize::from(percent) / 100,
        }
    }

    /// A node counts once, even if several of its steps fail. Steps of `on_failure` entries and `on_failure` leaves do
    /// not count. A placed step belongs to no node, and counts by itself.
    pub(super) fn spent(&self) -> usize {
        let counted = || self.failures.iter().filter(|&&i| !self.is_on_failure(i));
        let nodes: BTreeSet<usize> = counted().filter_map(|&i| self.instances[i].node).collect();
        nodes.len() + counted().filter(|&&i| self.instances[i].node.is_none()).count()
    }

    /// `max_failures` is the budget: a number of nodes, or a percentage of all nodes (rounded down). Without a roll-out
    /// it is 0 for fail-fast and unlimited for `continue`.
    pub(super) fn budget(&self) -> usize {
        match (&self.case.definition.rollout, self.case.definition.strategy()) {
            (Some(rollout), _) => self.amount(rollout.max_failures),
            (None, Strategy::FailFast) => 0,
            (None, Strategy::Continue) => usize::MAX,
        }
    }

    /// Returns whether the retries or the delivery rule allow another attempt.
    pub(super) fn may_retry(&self, instance: usize) -> bool {
        let Instance { attempts, step, node, .. } = &self.instances[instance];
        let task = self.task(instance);
        let (last, before) = attempts.split_last().expect("it has an attempt");
        match last.status {
            // Lost attempts do not count against `retry`. An attempt that was never sent is not retried.
            Status::Failed => {
                let failed = before.iter().filter(|attempt| attempt.status == Status::Failed).count();
                last.sent && failed < task.retry.map_or(0, |retry| retry.max as usize)
            }
            // A lost placed step is retried, up to 3 times. A lost pinned step is retried if its action is declared
            // idempotent; otherwise it fails as lost. `delivery` on a task overrides both.
            Status::Lost | Status::Cancelled => {
                let lost = |attempt: &&Attempt| matches!(attempt.status, Status::Lost | Status::Cancelled);
                let at_least_once = match task.delivery {
                    Some(delivery) => delivery == Delivery::AtLeastOnce,
                    None => node.is_none() || self.case.idempotent[*step],
                };
                !self.is_stopped(instance) && at_least_once && before.iter().filter(lost).count() < 3
            }
            _ => false,
        }
    }

    /// When the run times out, only steps that run after failures go on, for `cleanup_timeout` (default 10m).
    pub(super) fn is_stopped(&self, instance: usize) -> bool {
        self.stop.is_some() || (self.cleanup.is_some() && !self.is_on_failure(instance))
    }

    pub(super) fn has_cleanup(&self) -> bool {
        let on_failure = |condition| condition == Some(Condition::OnFailure);
        let mut entries = self.case.definition.tasks.iter();
        entries.any(|e| on_failure(e.condition()) || e.leaves().iter().any(|task| on_failure(task.condition)))
    }

    pub(super) fn cleanup_ends(&self) -> Option<i64> {
        let timeout = self.case.definition.cleanup_timeout.map_or(10 * 60, |timeout| timeout.0.as_secs());
        Some(self.cleanup? + i64::try_from(timeout * 1_000).expect("it is bounded"))
    }

    /// Returns whether the instance may begin: after a stop nothing may, and after fail-fast only steps that run after
    /// failures.
    pub(super) fn goes_on(&self, instance: usize) -> bool {
        !self.is_stopped(instance) && (self.fail_fast.is_none() || self.is_on_failure(instance))
    }

    /// Returns all leaves of an instance's branch, on its node or for its item.
    pub(super) fn walk(&self, instance: usize) -> impl Iterator<Item = &Instance> {
        let Instance { part, node, item, .. } = self.instances[instance];
        self.instances.iter().filter(move |i| i.part == part && i.node == node && i.item == item)
    }

    /// Returns the earlier leaves of the branch on this node.
    pub(super) fn earlier_leaves(&self, instance: usize) -> impl Iterator<Item = &Instance> {
        let leaf = self.instances[instance].leaf;
        self.walk(instance).filter(move |other| other.leaf < leaf)
    }

    /// Returns whether an instance is the next of its walk.
    pub(super) fn is_next(&self, instance: usize) -> bool {
        let Instance { part, attempts, fate, .. } = &self.instances[instance];
        attempts.is_empty()
            && fate.is_none()
            && self.parts[*part].stage == Stage::Began
            && self.earlier_leaves(instance).all(|earlier| earlier.fate.is_some())
    }

    /// A walk that has begun continues: its next leaf needs no capacity of its own.
    pub(super) fn walk_has_begun(&self, instance: usize) -> bool {
        self.walk(instance).any(Instance::was_tried)
    }

    pub(super) fn goes_over_items(&self, entry: usize) -> bool {
        self.case.definition.tasks[entry].for_each().is_some()
    }

    /// Returns whether its walks begin one after the other, as capacity allows.
    pub(super) fn is_bounded(&self, part: usize) -> bool {
        self.case.definition.max_parallel.is_some() || self.most_items(part).is_some()
    }

    fn most_items(&self, part: usize) -> Option<u32> {
        self.case.definition.tasks[self.parts[part].entry].for_each().and_then(|each| each.max_parallel)
    }

    /// `max_parallel` of a job limits how many executions of the run are open at the same time.
    pub(super) fn run_has_room(&self) -> bool {
        let open = || self.instances.iter().filter(|instance| instance.is_open()).count();
        self.case.definition.max_parallel.is_none_or(|most| open() < most as usize)
    }

    /// `max_parallel` of a `for_each` limits how many items run at the same time.
    pub(super) fn part_has_room(&self, part: usize) -> bool {
        let Some(most) = self.most_items(part) else { return true };
        let of_part = |&i: &usize| self.instances[i].part == part && self.instances[i].leaf == 0;
        let is_running =
            |&i: &usize| self.walk_has_begun(i) && self.walk(i).any(|instance| instance.fate.is_none());
        (0..self.instances.len()).filter(of_part).filter(is_running).count() < most as usize
    }

    /// `items` is a list, with or without expressions in it, or one expression that evaluates to a list.
    pub(super) fn items(&self, entry: usize) -> Option<Vec<Value>> {
        let items = &self.case.definition.tasks[entry].for_each()?.items;
        let value = |written: &Value| match read(written) {
            // A missing value or `null` is an error.
            Written::Output(name) => self.output(name, entry, None, None).filter(|value| !value.is_null()),
            Written::Plain(value) => Some(value.clone()),
            Written::Item | Written::Index => None,
        };
        match items {
            Value::Array(items) => items.iter().map(value).collect(),
            written => match value(written)? {
                Value::Array(items) => Some(items),
                // A text that is a JSON list counts as a list.
                Value::String(text) => serde_json::from_str(&text).ok(),
                _ => None,
            },
        }
    }

    /// Returns whether all of an entry was carried over, or it has no items.
    pub(super) fn is_whole(&self, part: usize) -> bool {
        let Part { entry, wave, .. } = self.parts[part];
        if !self.goes_over_items(entry) {
            return wave.is_none() && self.instances.iter().all(|i| i.part != part || i.carried);
        }
        let steps = || (0..self.places.len()).filter(|step| self.places[*step].0 == entry);
        self.condition_holds(part).is_ok()
            && self.items(entry).is_some_and(|items| {
                (0..items.len())
                    .all(|item| steps().all(|step| self.was_carried_over((step, None, Some(item)))))
            })
    }

    /// Returns whether fail-fast and a stop make no difference to a part of which all was carried over.
    pub(super) fn is_done(&self, part: usize) -> bool {
        (self.graph || self.goes_over_items(self.parts[part].entry)) && self.condition_holds(part).is_ok()
    }

    fn condition_holds(&self, part: usize) -> Result<(), Why> {
        let entry = self.parts[part].entry;
        let condition = self.case.definition.tasks[entry].condition();
        if self.graph { self.graph_condition(part, condition) } else { self.list_condition(entry, condition) }
    }

    /// A paused run lets running steps end and begins nothing more. A paused run can be cancelled. A part that was
    /// carried over as a whole is not held up, because it begins nothing. A wave waits for its pause.
    pub(super) fn is_held_up(&self, part: usize) -> bool {
        if self.paused && self.stop.is_none() {
            return !self.is_whole(part);
        }
        self.wave_begins().is_some_and(|at| self.now < at)
    }

    /// While an execution waits for a node, the engine looks for one at least eight times within the shortest
    /// `placement_timeout`, and every ten seconds.
    pub(crate) fn latest_look(&self) -> Option<i64> {
        let waits = |i: &Instance| i.node.is_none() && i.status() == Some(Status::Pending);
        self.instances.iter().find(|i| waits(i))?;
        let job = self.case.definition.placement_timeout;
        let tasks = self.case.definition.tasks.iter().flat_map(Entry::leaves);
        let timeout = tasks.filter_map(|task| task.placement_timeout.or(job)).min();
        let shortest =
            timeout.map_or(i64::MAX, |span| i64::try_from(span.0.as_millis()).expect("it is bounded"));
        Some(self.now + (shortest / 8).min(10_000))
    }

    pub(super) fn placement_timeout(&self, instance: usize) -> i64 {
        let timeout = self.task(instance).placement_timeout.or(self.case.definition.placement_timeout);
        timeout.map_or(30 * 60 * 1_000, |span| i64::try_from(span.0.as_millis()).expect("it is bounded"))
    }

    pub(super) fn leaf_runs(&self, instance: usize) -> Result<(), Why> {
        if self.is_stopped(instance) {
            return Err(Why::Stopped);
        }
        // Inside a branch a condition depends on the walk of that node: the earlier leaves of the branch on this node.
        let failed = self.earlier_leaves(instance).any(|earlier| earlier.fate == Some(Fate::Failed));
        match (self.leaf_condition(instance), failed) {
            (Some(Condition::OnFailure), true) => Ok(()),
            (Some(Condition::OnFailure), false) => Err(Why::NothingFailedOnThisNode),
            // Pipeline, `continue`: only the failed node stops.
            (_, true) => Err(Why::FailedOnThisNode),
            // Pipeline, fail-fast: other nodes stop after their current leaf.
            (_, false) if !self.goes_on(instance) => Err(Why::Failure),
            (_, false) => Ok(()),
        }
    }

    /// The `pause` is between the end of a wave and the start of the next. It counts from the end of the last attempt.
    /// There is no pause when nothing more begins.
    pub(super) fn wave_begins(&self) -> Option<i64> {
        let rollout = self.case.definition.rollout.as_ref()?;
        let wave = self.parts.iter().find(|part| part.stage == Stage::Due)?.wave?;
        let stopped = self.stop.is_some() || self.cleanup.is_some() || self.fail_fast.is_some();
        if wave == 0 || self.has_begun(wave) || stopped {
            return None;
        }
        Some(self.last_end? + i64::try_from(rollout.pause.0.as_millis()).expect("it is bounded"))
    }

    pub(super) fn has_begun(&self, wave: usize) -> bool {
        self.parts.iter().any(|part| part.wave == Some(wave) && part.stage == Stage::Began)
    }

    /// Returns whether an entry that is due runs, or why it is skipped.
    pub(super) fn part_runs(&self, part: usize) -> Result<(), Why> {
        let Part { entry, wave, .. } = self.parts[part];
        let condition = self.case.definition.tasks[entry].condition();
        if self.stop.is_some() || (self.cleanup.is_some() && condition != Some(Condition::OnFailure)) {
            return Err(Why::Stopped);
        }
        // After fail-fast every later step except `on_failure` ones is skipped, and no further wave starts.
        if let Some(fail_fast) = self.fail_fast
            && condition != Some(Condition::OnFailure)
        {
            let other_wave = wave.is_some() && wave != self.parts[fail_fast].wave;
            return Err(if other_wave { Why::WaveNeverBegan } else { Why::Failure });
        }
        self.condition_holds(part)
    }

    fn list_condition(&self, entry: usize, condition: Option<Condition>) -> Result<(), Why> {
        match condition {
            // It runs unless fail-fast began, on the nodes that have not left.
            None | Some(Condition::Always) => Ok(()),
            // It runs if no earlier step failed on any node, and is skipped after any failure in the run.
            Some(Condition::OnSuccess) if self.failures.is_empty() => Ok(()),
            Some(Condition::OnSuccess) => Err(Why::Failure),
            // It runs after failures of entries before it in the list, not of those after it, and when the run timed out.
            Some(Condition::OnFailure) => {
                let earlier = self.failures.iter().any(|&i| self.instances[i].entry < entry);
                let has_timed_out = self.cleanup.is_some() && self.stop != Some(Stop::Cancelled);
                if earlier || has_timed_out { Ok(()) } else { Err(Why::NothingFailed) }
            }
        }
    }

    fn graph_condition(&self, part: usize, condition: Option<Condition>) -> Result<(), Why> {
        let ends: Vec<Fate> = self.parts[part].after.iter().map(|before| self.end_of(*before)).collect();
        match condition {
            // It runs when all dependencies ended, whatever their result.
            Some(Condition::Always) => Ok(()),
            // It runs if all dependencies succeeded; otherwise it is skipped, and so are its dependents.
            None | Some(Condition::OnSuccess) => match ends.iter().find(|end| **end != Fate::Succeeded) {
                None => Ok(()),
                Some(Fate::Failed) => Err(Why::DependencyFailed),
                Some(_) => Err(Why::DependencySkipped),
            },
            // It runs if a dependency failed, or was skipped because of a failure.
            Some(Condition::OnFailure) if ends.iter().any(is_failure) => Ok(()),
            Some(Condition::OnFailure) => Err(Why::NoDependencyFailed),
        }
    }

    /// An entry failed if any of its instances failed; otherwise it succeeded if any of them ran, or if none was skipped;
    /// otherwise it was skipped.
    pub(super) fn end_of(&self, part: usize) -> Fate {
        let instances = || self.instances.iter().filter(|i| i.part == part);
        let ran = |i: &Instance| !i.carried && i.fate != Some(Fate::Skipped);
        if instances().any(|i| i.fate == Some(Fate::Failed)) {
            Fate::Failed
        } else if instances().any(ran)
            || (self.parts[part].stage != Stage::Skipped && instances().all(|i| i.carried))
        {
            Fate::Succeeded
        } else if self.is_skipped_after_failure(part) {
            Fate::SkippedAfterFailure
        } else {
            Fate::Skipped
        }
    }

    /// A task was skipped because of a failure if a dependency failed or was skipped because of a failure, or if nothing
    /// but fail-fast or the timeout kept it from running. A task that only runs after failures was not needed.
    fn is_skipped_after_failure(&self, part: usize) -> bool {
        let Part { entry, after, .. } = &self.parts[part];
        let entry = &self.case.definition.tasks[*entry];
        let on_failure = |condition| condition == Some(Condition::OnFailure);
        let only_leaves =
            matches!(entry, Entry::Branch(branch) if branch.tasks.iter().all(|t| on_failure(t.condition)));
        if on_failure(entry.condition()) || only_leaves {
            return false;
        }
        let ends: Vec<Fate> = after.iter().map(|before| self.end_of(*before)).collect();
        let is_due =
            entry.condition() == Some(Condition::Always) || ends.iter().all(|end| *end == Fate::Succeeded);
        is_due || ends.iter().any(is_failure)
    }

    /// Returns whether a node takes part in an entry that begins, or why not.
    pub(super) fn node_joins(&self, instance: usize) -> Result<(), Why> {
        let Instance { entry, node, .. } = self.instances[instance];
        let Some(node) = node else { return Ok(()) };
        let failures = || self.failures.iter().map(|&i| &self.instances[i]).filter(|i| i.node == Some(node));
        if self.answers(entry) {
            if self.case.definition.rollout.is_some() {
                // A node is touched when its wave began.
                if !self.is_touched(node) {
                    return Err(Why::NodeUntouched);
                }
                // When the budget was exceeded or the run timed out, they run on every node that was touched so far, failed
                // or not. Within the budget they run on the failed nodes only.
                let everywhere = self.fail_fast.is_some() || self.cleanup.is_some();
                if !everywhere && !failures().any(|failed| failed.entry < entry) {
                    return Err(Why::NodeNotConcerned);
                }
            }
            // It runs on every reachable node of the run, including failed ones.
            return if self.offline[node] { Err(Why::NodeOffline) } else { Ok(()) };
        }
        // List, `continue`: the failed node leaves; the others continue.
        if !self.graph && failures().next().is_some() { Err(Why::NodeLeft) } else { Ok(()) }
    }

    pub(crate) fn is_touched(&self, node: usize) -> bool {
        let waves = self.instances.iter().filter(|i| i.node == Some(node)).map(|i| &self.parts[i.part]);
        waves.filter(|part| part.wave.is_some()).any(|part| part.stage == Stage::Began)
    }

    pub(super) fn task(&self, instance: usize) -> &'a Task {
        let Instance { entry, leaf, .. } = self.instances[instance];
        &self.case.definition.tasks[entry].leaves()[leaf]
    }

    /// Returns the condition inside a branch. For a leaf outside a branch, the entry has the condition.
    pub(super) fn leaf_condition(&self, instance: usize) -> Option<Condition> {
        match &self.case.definition.tasks[self.instances[instance].entry] {
            Entry::Branch(branch) => branch.tasks[self.instances[instance].leaf].condition,
            Entry::Leaf(_) => None,
        }
    }

    pub(super) fn answers(&self, entry: usize) -> bool {
        self.case.definition.tasks[entry].condition() == Some(Condition::OnFailure)
    }

    pub(crate) fn is_on_failure(&self, instance: usize) -> bool {
        self.answers(self.instances[instance].entry)
            || self.leaf_condition(instance) == Some(Condition::OnFailure)
    }

    pub(super) fn is_offline(&self, instance: usize) -> bool {
        self.instances[instance].node.is_some_and(|node| self.offline[node])
    }

    pub(super) fn is_deleted(&self, instance: usize) -> bool {
        self.instances[instance].node.is_some_and(|node| self.deleted[node])
    }

    pub(super) fn step_named(&self, name: &str) -> Option<usize> {
        let task = |(entry, leaf): (usize, usize)| &self.case.definition.tasks[entry].leaves()[leaf];
        self.places.iter().position(|&place| task(place).name.as_deref() == Some(name))
    }

    /// Returns the rendered params of an instance.
    pub(crate) fn given(&self, instance: usize) -> Given {
        let Instance { entry, node, item, .. } = self.instances[instance];
        let params = &self.task(instance).params;
        if params.values().all(|value| matches!(read(value), Written::Plain(_))) {
            return Given::NothingUsed;
        }
        let value = |written| match read(written) {
            Written::Plain(value) => Some(value.clone()),
            // `{{ item }}` and `{{ index }}` stand for the item and its number.
            Written::Index => item.map(Value::from),
            Written::Item => Some(self.parts[self.instances[instance].part].items.as_ref()?[item?].clone()),
            Written::Output(name) => self.output(name, entry, node, item),
        };
        // A missing value or `null` is an error.
        let values = params.iter().map(|(name, written)| {
            let value = value(written).filter(|value| !value.is_null())?;
            Some((name.clone(), value))
        });
        values.collect::<Option<_>>().map_or(Given::Missing, Given::Values)
    }

    fn output(&self, name: &str, entry: usize, node: Option<usize>, item: Option<usize>) -> Option<Value> {
        let step = self.step_named(name)?;
        let theirs = self.places[step].0;
        let output_of =
            |instance: &Instance| instance.output.clone().filter(|_| instance.fate == Some(Fate::Succeeded));
        let all = || self.instances.iter().filter(|other| other.step == step);
        if self.goes_over_items(theirs) && theirs != entry {
            // The list of the items' outputs, in their order, with `null` for items without one. For a skipped task the
            // list is missing.
            let items = self.parts.iter().find(|part| part.entry == theirs)?.items.as_ref()?;
            let of_item = |item: usize| {
                self.instance_at((step, None, Some(item))).and_then(|i| output_of(&self.instances[i]))
            };
            return Some((0..items.len()).map(|item| of_item(item).unwrap_or(Value::Null)).collect());
        }
        // Inside a branch it is the output of the same item.
        let own = item.filter(|_| theirs == entry);
        // `steps.NAME.outputs` are those of the same node, or of the only instance of the step.
        let only = all().count() == 1;
        all().find(|other| (only || other.node == node) && other.item == own).and_then(output_of)
    }

    /// Inputs are equal if backend, action, rendered params and declared outputs are equal, and for a task with a
    /// target also the node. `None` for a task without `cache`.
    pub(crate) fn inputs(&self, instance: usize) -> Option<String> {
        let task = self.task(instance);
        task.cache?;
        let params: BTreeMap<String, Value> = match self.given(instance) {
            Given::Values(values) => values,
            Given::NothingUsed => task.params.clone().into_iter().collect(),
            Given::Missing => return None,
        };
        Some(inputs(&params, &task.outputs, self.instances[instance].node))
    }

    /// `run retry RUN` runs failed and skipped steps again, and everything that depends on them. `--from TASK` also runs
    /// TASK and all its dependents again, whatever their result; in a list, that task and all after it. Other succeeded
    /// steps are carried over.
    pub(crate) fn left_for_another(&self, from: Option<usize>) -> BTreeSet<Place> {
        let entries = 0..self.case.definition.tasks.len();
        let repeated: Vec<bool> =
            entries.clone().map(|entry| from.is_some_and(|from| self.follows(entry, from))).collect();
        let mut kept: BTreeSet<Place> = (0..self.instances.len())
            .filter(|&i| {
                let Instance { entry, fate, .. } = self.instances[i];
                // Steps that ran after failures are never carried over.
                fate == Some(Fate::Succeeded)
                    && !self.is_on_failure(i)
                    && !repeated[entry]
                    && !self.may_be_undone(i)
            })
            .map(|i| (self.instances[i].step, self.instances[i].node, self.instances[i].item))
            .collect();
        // Everything that depends on what runs again runs again. Steps that ran after failures run again only after a
        // failure, but what depends on them depends on their dependencies.
        let place = |i: usize| (self.instances[i].step, self.instances[i].node, self.instances[i].item);
        let all = || 0..self.instances.len();
        let mut again: BTreeSet<usize> =
            all().filter(|&i| !self.is_on_failure(i) && !kept.contains(&place(i))).collect();
        loop {
            let follows = |i: usize| {
                let answers = |j: usize| self.is_on_failure(j) && self.instances[j].was_tried();
                again.iter().any(|&j| self.waits_for(i, j) || self.reads(i, j))
                    || all().any(|j| answers(j) && self.reads(i, j))
            };
            let more: Vec<usize> = all().filter(|i| !again.contains(i) && follows(*i)).collect();
            if more.is_empty() {
                break;
            }
            again.extend(more);
        }
        kept.retain(|place| self.instance_at(*place).is_none_or(|i| !again.contains(&i)));
        kept
    }

    /// In a pipeline a leaf depends on the earlier leaves of its node or item. In a list, the steps of a node depend on
    /// its own earlier steps and on placed ones; placed steps depend on everything before them. In a graph, a task on a
    /// node depends on the same node if its dependency has it, and otherwise on the whole dependency.
    fn waits_for(&self, later: usize, earlier: usize) -> bool {
        let (later, earlier) = (&self.instances[later], &self.instances[earlier]);
        if later.entry == earlier.entry {
            let same = later.node == earlier.node && later.item == earlier.item;
            return same && earlier.leaf < later.leaf;
        }
        if !self.graph {
            let apart = later.node.is_some() && earlier.node.is_some() && later.node != earlier.node;
            return earlier.entry < later.entry && !apart;
        }
        let has_node = || {
            let target = self.case.targets[earlier.entry].as_deref().unwrap_or_default();
            later.node.is_some_and(|node| target.contains(&node))
        };
        self.parts[later.entry].after.contains(&earlier.entry) && (!has_node() || later.node == earlier.node)
    }

    /// Returns whether an instance uses the output of another one, or its items come from it.
    fn reads(&self, reader: usize, source: usize) -> bool {
        let Instance { step, node, item, .. } = self.instances[source];
        let (entry, own) = (self.instances[reader].entry, &self.instances[reader]);
        let theirs = self.places[step].0;
        if self.sources[entry] == Some(step) {
            return true;
        }
        let names = self.task(reader).params.values().filter_map(|value| match read(value) {
            Written::Output(name) => self.step_named(name),
            _ => None,
        });
        let of_all_items = self.goes_over_items(theirs) && theirs != entry;
        let only = self.instances.iter().filter(|other| other.step == step).count() == 1;
        let is_own = (only || node == own.node) && item == own.item.filter(|_| theirs == entry);
        names.into_iter().any(|name| name == step) && (of_all_items || is_own)
    }

    /// Returns whether an entry runs again when another one does.
    fn follows(&self, entry: usize, from: usize) -> bool {
        if !self.graph || entry == from {
            return entry >= from;
        }
        self.parts[entry].after.iter().any(|&before| self.follows(before, from))
    }

    /// Nothing is carried over from a node on which an `on_failure` step ran, because that step may have undone the work.
    /// The same holds for a branch without its own node, and for one of its items.
    fn may_be_undone(&self, instance: usize) -> bool {
        let Instance { node, item, entry, .. } = self.instances[instance];
        (0..self.instances.len()).filter(|&i| self.is_on_failure(i) && self.instances[i].was_tried()).any(
            |i| {
                let other = &self.instances[i];
                match node {
                    Some(_) => other.node == node,
                    None => other.entry == entry && other.item == item,
                }
            },
        )
    }
}

fn is_failure(end: &Fate) -> bool {
    matches!(end, Fate::Failed | Fate::SkippedAfterFailure)
}

pub(crate) fn inputs(params: &BTreeMap<String, Value>, outputs: &[String], node: Option<usize>) -> String {
    serde_json::to_string(&(params, outputs, node)).expect("it serialises")
}
