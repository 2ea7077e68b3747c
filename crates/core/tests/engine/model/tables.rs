//! A slow, obvious interpreter of the tables of `docs/fleet.md`. It is told what happened and says what every instance
//! must have come to by now. It knows nothing of the engine: it holds plain lists, and looks through all of them after
//! everything that it is told. Each rule stands below the sentence that it comes from.

use std::collections::BTreeSet;

use downbeat_core::execution::{Status, Verdict};
use downbeat_core::run::RunState;
use downbeat_core::spec::{Amount, Batch, Condition, Delivery, Entry, Strategy, Task};

use super::case::Case;

/// The kind of reason that a skip is recorded with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Why {
    /// The run was cancelled, or timed out.
    Stopped,
    /// Something failed elsewhere.
    Failure,
    /// The budget was spent in an earlier wave.
    WaveNeverBegan,
    NodeLeft,
    NothingFailed,
    DependencyFailed,
    DependencySkipped,
    NoDependencyFailed,
    NodeOffline,
    NodeUntouched,
    /// Within the budget, and this node did not fail.
    NodeNotConcerned,
    FailedOnThisNode,
    NothingFailedOnThisNode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Cancelled,
    TimedOut,
}

/// What an instance came to in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Succeeded,
    Failed,
    Skipped,
    /// The run was stopped before it could come to anything.
    Stopped,
}

#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) status: Status,
    pub(crate) why: Option<Why>,
    /// It was told to stop.
    pub(crate) stop: bool,
    /// A node had it.
    sent: bool,
    /// Sent again after a loss, and pinned: until then it waits for its node.
    waits_until: Option<i64>,
    /// The most that it may be held back as a retry.
    pub(crate) held_until: Option<i64>,
    made: usize,
    ended: usize,
}

/// One step on one node, or the only one of a placed step.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    pub(crate) part: usize,
    pub(crate) entry: usize,
    pub(crate) leaf: usize,
    pub(crate) step: usize,
    pub(crate) node: Option<usize>,
    /// It succeeded in the run that this one tries again.
    pub(crate) taken_over: bool,
    pub(crate) attempts: Vec<Attempt>,
    pub(crate) fate: Option<Fate>,
}

impl Instance {
    pub(crate) fn status(&self) -> Option<Status> {
        self.attempts.last().map(|attempt| attempt.status)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waiting,
    Due,
    Began,
    Skipped,
}

/// What begins together: an entry on all of its nodes, or with a roll-out on those of one wave.
#[derive(Clone, Debug)]
struct Part {
    entry: usize,
    wave: Option<usize>,
    /// The parts that end before this one begins.
    after: Vec<usize>,
    stage: Stage,
}

pub(crate) struct Tables<'a> {
    case: &'a Case,
    graph: bool,
    pub(crate) instances: Vec<Instance>,
    parts: Vec<Part>,
    /// Parts whose turn has come, the longest waiting first.
    due: Vec<usize>,
    /// Instances that failed, in the order in which they did.
    pub(crate) failures: Vec<usize>,
    /// The part in which fail-fast struck.
    pub(crate) struck: Option<usize>,
    pub(crate) stop: Option<Stop>,
    pub(crate) paused: bool,
    pub(crate) offline: Vec<bool>,
    pub(crate) now: i64,
    /// When the last attempt ended.
    last_end: Option<i64>,
    count: usize,
}

impl<'a> Tables<'a> {
    /// `taken_over`: the steps and nodes that succeeded in the run that this one tries again.
    pub(crate) fn new(case: &'a Case, taken_over: &[(usize, Option<usize>)]) -> Self {
        let graph = case.definition.tasks.iter().any(|entry| !entry.depends_on().is_empty());
        let mut tables = Self {
            case,
            graph,
            instances: Vec::new(),
            parts: Vec::new(),
            due: Vec::new(),
            failures: Vec::new(),
            struck: None,
            stop: None,
            paused: false,
            offline: vec![false; case.nodes],
            now: 0,
            last_end: None,
            count: 0,
        };
        tables.lay_out(taken_over);
        tables
    }

    fn lay_out(&mut self, taken_over: &[(usize, Option<usize>)]) {
        let case = self.case;
        let entries = || 0..case.definition.tasks.len();
        if case.definition.rollout.is_none() {
            for entry in entries() {
                self.add_part(entry, None, case.targets[entry].clone(), taken_over);
            }
            return;
        }
        let (answers, walked): (Vec<usize>, Vec<usize>) = entries().partition(|entry| self.answers(*entry));
        // "A wave walks the whole list before the next begins."
        for (wave, nodes) in self.waves().into_iter().enumerate() {
            for &entry in &walked {
                self.add_part(entry, Some(wave), Some(nodes.clone()), taken_over);
            }
        }
        // "`on_failure` entries are no part of the waves: they come once, in their order, after the last wave."
        for entry in answers {
            self.add_part(entry, None, Some((0..case.nodes).collect()), taken_over);
        }
    }

    fn add_part(
        &mut self,
        entry: usize,
        wave: Option<usize>,
        nodes: Option<Vec<usize>>,
        taken_over: &[(usize, Option<usize>)],
    ) {
        let part = self.parts.len();
        let tasks = &self.case.definition.tasks;
        let after = if self.graph {
            // A graph: an entry waits for those that it depends on.
            let names = tasks[entry].depends_on().iter();
            names.map(|name| tasks.iter().position(|e| e.name() == Some(name)).expect("it exists")).collect()
        } else {
            // "Each entry is a barrier: every node ends entry N before any begins N+1."
            (0..part).collect()
        };
        self.parts.push(Part { entry, wave, after, stage: Stage::Waiting });
        let first: usize = tasks[..entry].iter().map(|entry| entry.leaves().len()).sum();
        let places = nodes.map_or(vec![None], |nodes| nodes.into_iter().map(Some).collect());
        for node in places {
            for leaf in 0..tasks[entry].leaves().len() {
                let step = first + leaf;
                let taken_over = taken_over.contains(&(step, node));
                // "What succeeded is taken over and not done again."
                let fate = taken_over.then_some(Fate::Succeeded);
                let attempts = Vec::new();
                self.instances.push(Instance { part, entry, leaf, step, node, taken_over, attempts, fate });
            }
        }
    }

    /// "`batch` is the size of a wave: a number, or a part of all nodes (rounded down, at least one node). A list gives
    /// the size of one wave after the other; its last entry is repeated until nobody is left."
    fn waves(&self) -> Vec<Vec<usize>> {
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

    fn amount(&self, amount: Amount) -> usize {
        match amount {
            Amount::Count(count) => count as usize,
            Amount::Percent(percent) => self.case.nodes * usize::from(percent) / 100,
        }
    }

    // What it is told.

    pub(crate) fn leased(&mut self, instance: usize) {
        let attempt = self.last(instance);
        attempt.status = Status::Leased;
        attempt.sent = true;
    }

    pub(crate) fn finished(&mut self, instance: usize, verdict: Verdict) {
        let status = match verdict {
            Verdict::Succeeded => Status::Succeeded,
            Verdict::Failed => Status::Failed,
            Verdict::Cancelled => Status::Cancelled,
        };
        self.end(instance, status, None);
    }

    pub(crate) fn lost(&mut self, instance: usize) {
        self.end(instance, Status::Lost, None);
    }

    /// "Cancel works in every state but the terminal ones"; "the run's timeout ends everything that is left the same way".
    pub(crate) fn stopped(&mut self, stop: Stop) {
        self.stop.get_or_insert(stop);
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
        if status != Status::Skipped {
            self.last_end = Some(now);
        }
    }

    // What follows.

    /// Looks through everything until nothing more follows.
    pub(crate) fn decide(&mut self) {
        if self.stop.is_some() {
            self.stop_everything();
        }
        loop {
            if self.settle_ends() || self.withdraw() || self.walk_leaves() {
                continue;
            }
            if self.begin_next_part() || self.give_up() {
                continue;
            }
            return;
        }
    }

    fn stop_everything(&mut self) {
        for instance in 0..self.instances.len() {
            match self.instances[instance].status() {
                Some(Status::Pending) => self.end(instance, Status::Cancelled, None),
                Some(Status::Leased) => self.last(instance).stop = true,
                _ => {}
            }
        }
    }

    /// What the attempts that ended mean for their instances.
    fn settle_ends(&mut self) -> bool {
        let mut ended: Vec<usize> = (0..self.instances.len())
            .filter(|&i| self.instances[i].fate.is_none())
            .filter(|&i| self.instances[i].status().is_some_and(|status| !status.is_open()))
            .collect();
        ended.sort_by_key(|&i| self.instances[i].attempts.last().map(|attempt| attempt.ended));
        let any = !ended.is_empty();
        // What is final comes first: it may strike, and then nothing is tried again.
        ended.retain(|&instance| {
            let again = self.may_come_again(instance);
            if !again {
                self.settle(instance);
            }
            again
        });
        for instance in ended {
            if self.goes_on(instance) {
                self.again(instance);
            } else {
                self.settle(instance);
            }
        }
        any
    }

    fn settle(&mut self, instance: usize) {
        let withdrawn = self.instances[instance].attempts.len() == 1;
        let fate = match self.instances[instance].status().expect("it has an attempt") {
            Status::Succeeded => Fate::Succeeded,
            // "An instance fails when its last attempt failed."
            Status::Failed => Fate::Failed,
            // "Otherwise it fails as lost." Cancelled by its agent alone is as good as lost.
            Status::Lost | Status::Cancelled if self.stop.is_none() => Fate::Failed,
            Status::Lost | Status::Cancelled => Fate::Stopped,
            // Withdrawn before it was sent: if an attempt before it failed, the instance did.
            Status::Skipped if withdrawn => Fate::Skipped,
            Status::Skipped => Fate::Failed,
            Status::Pending | Status::Leased | Status::Running => unreachable!("it ended"),
        };
        self.instances[instance].fate = Some(fate);
        if fate == Fate::Failed {
            self.failures.push(instance);
            if self.struck.is_none() && self.spent() > self.budget() {
                self.struck = Some(self.instances[instance].part);
            }
        }
    }

    /// "A node counts once, however many of its steps fail. Steps of `on_failure` entries and `on_failure` leaves do not
    /// count." A placed step belongs to no node, and counts for itself.
    fn spent(&self) -> usize {
        let counted = || self.failures.iter().filter(|&&i| !self.is_answer(i));
        let nodes: BTreeSet<usize> = counted().filter_map(|&i| self.instances[i].node).collect();
        nodes.len() + counted().filter(|&&i| self.instances[i].node.is_none()).count()
    }

    /// "`max_failures` is the budget: a number of nodes, or a part of all nodes (rounded down)." Without a roll-out
    /// fail-fast strikes with the first failure, and `continue` never.
    fn budget(&self) -> usize {
        match (&self.case.definition.rollout, self.case.definition.strategy) {
            (Some(rollout), _) => self.amount(rollout.max_failures),
            (None, Strategy::FailFast) => 0,
            (None, Strategy::Continue) => usize::MAX,
        }
    }

    /// Whether retries or the delivery rule leave an attempt.
    fn may_come_again(&self, instance: usize) -> bool {
        let Instance { attempts, step, node, .. } = &self.instances[instance];
        let task = self.task(instance);
        let (last, before) = attempts.split_last().expect("it has an attempt");
        match last.status {
            // "Lost attempts do not count against `retry`." What was never sent is not tried again.
            Status::Failed => {
                let failed = before.iter().filter(|attempt| attempt.status == Status::Failed).count();
                last.sent && failed < task.retry.map_or(0, |retry| retry.max as usize)
            }
            // "A placed step is sent again, up to 3 times. A pinned step is sent again if its action is declared
            // idempotent; otherwise it fails as lost. `delivery` on a task overrides both."
            Status::Lost | Status::Cancelled => {
                let lost = |attempt: &&Attempt| matches!(attempt.status, Status::Lost | Status::Cancelled);
                let at_least_once = match task.delivery {
                    Some(delivery) => delivery == Delivery::AtLeastOnce,
                    None => node.is_none() || self.case.idempotent[*step],
                };
                self.stop.is_none() && at_least_once && before.iter().filter(lost).count() < 3
            }
            _ => false,
        }
    }

    /// After a stop nothing is begun; after fail-fast struck only what answers failures.
    fn goes_on(&self, instance: usize) -> bool {
        self.stop.is_none() && (self.struck.is_none() || self.is_answer(instance))
    }

    fn again(&mut self, instance: usize) {
        let Instance { attempts, node, .. } = &self.instances[instance];
        let task = self.task(instance);
        if self.instances[instance].status() == Some(Status::Failed) {
            // "Delay = `delay * factor^(n-1)`, capped, with full jitter": 1 s, factor 2, cap 30 s.
            let failed = attempts.iter().filter(|attempt| attempt.status == Status::Failed).count();
            let longest = [1_000, 2_000, 4_000][failed - 1];
            self.attempt(instance, None, Some(self.now + longest));
        } else {
            // "To its node when that is back": as long as it would have been allowed to run.
            let wait = task.timeout.map_or(30 * 60, |timeout| timeout.0.as_secs());
            let until = node.map(|_| self.now + i64::try_from(wait * 1_000).expect("it is bounded"));
            self.attempt(instance, until, None);
        }
    }

    fn attempt(&mut self, instance: usize, waits_until: Option<i64>, held_until: Option<i64>) {
        self.count += 1;
        let attempt = Attempt {
            status: Status::Pending,
            why: None,
            stop: false,
            sent: false,
            waits_until,
            held_until,
            made: self.count,
            ended: 0,
        };
        self.instances[instance].attempts.push(attempt);
        // "A step for a node that is offline fails without being sent."
        if waits_until.is_none() && self.is_offline(instance) {
            self.end(instance, Status::Failed, None);
        }
    }

    fn skip(&mut self, instance: usize, why: Why) {
        self.attempt(instance, Some(0), None);
        self.end(instance, Status::Skipped, Some(why));
        self.instances[instance].fate = Some(Fate::Skipped);
    }

    /// "What was not begun is skipped." The entry that it struck in has begun on all of its nodes: what waits there gets
    /// its one attempt, but no other one.
    fn withdraw(&mut self) -> bool {
        let Some(struck) = self.struck else { return false };
        let mut any = false;
        for i in 0..self.instances.len() {
            let instance = &self.instances[i];
            let begun = instance.part == struck && instance.attempts.len() == 1;
            if instance.status() == Some(Status::Pending) && !begun && !self.is_answer(i) {
                self.end(i, Status::Skipped, Some(Why::Failure));
                any = true;
            }
        }
        any
    }

    /// "What waits for a node fails when the node goes offline. What is sent again after a loss waits for its node as
    /// long as its timeout."
    fn give_up(&mut self) -> bool {
        let mut gone: Vec<usize> = (0..self.instances.len())
            .filter(|&i| self.instances[i].status() == Some(Status::Pending))
            .filter(|&i| match self.instances[i].attempts.last().and_then(|attempt| attempt.waits_until) {
                Some(until) => until <= self.now,
                None => self.is_offline(i),
            })
            .collect();
        gone.sort_by_key(|&i| self.instances[i].attempts.last().map(|attempt| attempt.made));
        for &instance in &gone {
            self.end(instance, Status::Failed, None);
        }
        !gone.is_empty()
    }

    /// "Each node walks its leaves at its own pace."
    fn walk_leaves(&mut self) -> bool {
        let mut any = false;
        for i in 0..self.instances.len() {
            let Instance { part, attempts, fate, .. } = &self.instances[i];
            let untried = attempts.is_empty() && fate.is_none();
            let began = self.parts[*part].stage == Stage::Began;
            if untried && began && self.earlier_leaves(i).all(|earlier| earlier.fate.is_some()) {
                match self.leaf_runs(i) {
                    Ok(()) => self.attempt(i, None, None),
                    Err(why) => self.skip(i, why),
                }
                any = true;
            }
        }
        any
    }

    /// The earlier leaves of the branch on this node.
    fn earlier_leaves(&self, instance: usize) -> impl Iterator<Item = &Instance> {
        let this = &self.instances[instance];
        self.instances
            .iter()
            .filter(|other| other.part == this.part && other.node == this.node && other.leaf < this.leaf)
    }

    fn leaf_runs(&self, instance: usize) -> Result<(), Why> {
        if self.stop.is_some() {
            return Err(Why::Stopped);
        }
        // "Inside a branch a condition looks at that node's own walk: the earlier leaves of the branch on this node."
        let failed = self.earlier_leaves(instance).any(|earlier| earlier.fate == Some(Fate::Failed));
        match (self.leaf_condition(instance), failed) {
            (Some(Condition::OnFailure), true) => Ok(()),
            (Some(Condition::OnFailure), false) => Err(Why::NothingFailedOnThisNode),
            // Pipeline, `continue`: "only the failed node stops".
            (_, true) => Err(Why::FailedOnThisNode),
            // Pipeline, fail-fast: "other nodes stop after their current leaf".
            (_, false) if !self.goes_on(instance) => Err(Why::Failure),
            (_, false) => Ok(()),
        }
    }

    fn begin_next_part(&mut self) -> bool {
        for part in 0..self.parts.len() {
            let waits = self.parts[part].stage == Stage::Waiting;
            if waits && self.parts[part].after.iter().all(|before| self.has_ended(*before)) {
                self.parts[part].stage = Stage::Due;
                self.due.push(part);
            }
        }
        let Some(part) = self.next_due() else { return false };
        let runs = self.part_runs(part);
        self.parts[part].stage = if runs.is_ok() { Stage::Began } else { Stage::Skipped };
        for instance in 0..self.instances.len() {
            if self.instances[instance].part == part && !self.instances[instance].taken_over {
                if let Err(why) = runs.and_then(|()| self.node_joins(instance)) {
                    self.skip(instance, why);
                }
            }
        }
        true
    }

    fn next_due(&mut self) -> Option<usize> {
        // "`run pause` lets what runs end and begins nothing more." "Cancel works on a paused run." What was taken over
        // whole begins nothing.
        if self.paused && self.stop.is_none() {
            let whole = |part: usize| self.instances.iter().all(|i| i.part != part || i.taken_over);
            let taken = self.due.iter().position(|&part| self.parts[part].wave.is_none() && whole(part))?;
            return Some(self.due.remove(taken));
        }
        if self.due.is_empty() || self.wave_begins().is_some_and(|at| self.now < at) {
            return None;
        }
        Some(self.due.remove(0))
    }

    fn has_ended(&self, part: usize) -> bool {
        matches!(self.parts[part].stage, Stage::Began | Stage::Skipped)
            && self.instances.iter().filter(|i| i.part == part).all(|i| i.fate.is_some())
    }

    /// "`pause` is waited between the end of a wave and the beginning of the next." It counts from the end of the last
    /// attempt. Nothing is waited for when nothing more begins.
    fn wave_begins(&self) -> Option<i64> {
        let rollout = self.case.definition.rollout.as_ref()?;
        let wave = self.parts[*self.due.first()?].wave?;
        if wave == 0 || self.has_begun(wave) || self.stop.is_some() || self.struck.is_some() {
            return None;
        }
        Some(self.last_end? + i64::try_from(rollout.pause.0.as_millis()).expect("it is bounded"))
    }

    fn has_begun(&self, wave: usize) -> bool {
        self.parts.iter().any(|part| part.wave == Some(wave) && part.stage == Stage::Began)
    }

    /// Whether the turn of an entry means that it runs.
    fn part_runs(&self, part: usize) -> Result<(), Why> {
        if self.stop.is_some() {
            return Err(Why::Stopped);
        }
        let Part { entry, wave, .. } = self.parts[part];
        let condition = self.case.definition.tasks[entry].condition();
        // fail-fast: "every later step but `on_failure` ones is skipped"; "no further wave starts".
        if let Some(struck) = self.struck
            && condition != Some(Condition::OnFailure)
        {
            let other_wave = wave.is_some() && wave != self.parts[struck].wave;
            return Err(if other_wave { Why::WaveNeverBegan } else { Why::Failure });
        }
        if self.graph { self.graph_condition(part, condition) } else { self.list_condition(entry, condition) }
    }

    fn list_condition(&self, entry: usize, condition: Option<Condition>) -> Result<(), Why> {
        match condition {
            // "Fail-fast has not struck; on the nodes still in."
            None | Some(Condition::Always) => Ok(()),
            // "No earlier step failed anywhere"; "skipped as soon as anything failed in the run".
            Some(Condition::OnSuccess) if self.failures.is_empty() => Ok(()),
            Some(Condition::OnSuccess) => Err(Why::Failure),
            // "Answers the failures of entries before it in the list, not of those after it."
            Some(Condition::OnFailure) => {
                let earlier = self.failures.iter().any(|&i| self.instances[i].entry < entry);
                if earlier { Ok(()) } else { Err(Why::NothingFailed) }
            }
        }
    }

    fn graph_condition(&self, part: usize, condition: Option<Condition>) -> Result<(), Why> {
        let ends: Vec<Fate> = self.parts[part].after.iter().map(|before| self.end_of(*before)).collect();
        match condition {
            // "All dependencies ended, however."
            Some(Condition::Always) => Ok(()),
            // "All dependencies succeeded"; dependents "are skipped, transitively".
            None | Some(Condition::OnSuccess) => match ends.iter().find(|end| **end != Fate::Succeeded) {
                None => Ok(()),
                Some(Fate::Failed) => Err(Why::DependencyFailed),
                Some(_) => Err(Why::DependencySkipped),
            },
            // "A dependency failed."
            Some(Condition::OnFailure) if ends.contains(&Fate::Failed) => Ok(()),
            Some(Condition::OnFailure) => Err(Why::NoDependencyFailed),
        }
    }

    /// How an entry of a graph ended. What was taken over counts where its turn came.
    fn end_of(&self, part: usize) -> Fate {
        let fates = || self.instances.iter().filter(|i| i.part == part).filter_map(|i| i.fate);
        if self.parts[part].stage == Stage::Skipped {
            Fate::Skipped
        } else if fates().any(|fate| fate == Fate::Failed) {
            Fate::Failed
        } else if fates().any(|fate| fate == Fate::Succeeded) {
            Fate::Succeeded
        } else {
            Fate::Skipped
        }
    }

    /// Whether a node takes part in an entry that begins.
    fn node_joins(&self, instance: usize) -> Result<(), Why> {
        let Instance { entry, node, .. } = self.instances[instance];
        let Some(node) = node else { return Ok(()) };
        let failures = || self.failures.iter().map(|&i| &self.instances[i]).filter(|i| i.node == Some(node));
        if self.answers(entry) {
            if self.case.definition.rollout.is_some() {
                // "A node is touched when its wave began."
                if !self.is_touched(node) {
                    return Err(Why::NodeUntouched);
                }
                // "When it was spent they run on every node that was touched so far, failed or not. Within the budget
                // they run on the failed nodes only."
                if self.struck.is_none() && !failures().any(|failed| failed.entry < entry) {
                    return Err(Why::NodeNotConcerned);
                }
            }
            // "On every node of the run that is reachable, failed ones too."
            return if self.offline[node] { Err(Why::NodeOffline) } else { Ok(()) };
        }
        // List, `continue`: "the failed node leaves; the others go on".
        if !self.graph && failures().next().is_some() { Err(Why::NodeLeft) } else { Ok(()) }
    }

    pub(crate) fn is_touched(&self, node: usize) -> bool {
        let waves = self.instances.iter().filter(|i| i.node == Some(node)).map(|i| &self.parts[i.part]);
        waves.filter(|part| part.wave.is_some()).any(|part| part.stage == Stage::Began)
    }

    // What the definition says.

    fn task(&self, instance: usize) -> &'a Task {
        let Instance { entry, leaf, .. } = self.instances[instance];
        &self.case.definition.tasks[entry].leaves()[leaf]
    }

    /// The condition inside a branch; a leaf of its own has it as an entry.
    fn leaf_condition(&self, instance: usize) -> Option<Condition> {
        match &self.case.definition.tasks[self.instances[instance].entry] {
            Entry::Branch(branch) => branch.tasks[self.instances[instance].leaf].condition,
            Entry::Leaf(_) => None,
        }
    }

    fn answers(&self, entry: usize) -> bool {
        self.case.definition.tasks[entry].condition() == Some(Condition::OnFailure)
    }

    pub(crate) fn is_answer(&self, instance: usize) -> bool {
        self.answers(self.instances[instance].entry)
            || self.leaf_condition(instance) == Some(Condition::OnFailure)
    }

    fn is_offline(&self, instance: usize) -> bool {
        self.instances[instance].node.is_some_and(|node| self.offline[node])
    }

    // What can be asked.

    /// When time alone makes something happen.
    pub(crate) fn next_tick(&self) -> Option<i64> {
        let pending = self.instances.iter().filter(|i| i.status() == Some(Status::Pending));
        let patience = pending.filter_map(|i| i.attempts.last().and_then(|attempt| attempt.waits_until));
        patience.chain(self.wave_begins().filter(|_| !self.paused)).min()
    }

    /// How the run ended, and whether in part; nothing while it goes on.
    pub(crate) fn run_end(&self) -> Option<(RunState, bool)> {
        let decided = self.parts.iter().all(|part| matches!(part.stage, Stage::Began | Stage::Skipped));
        if !decided || self.instances.iter().any(|instance| instance.fate.is_none()) {
            return None;
        }
        let failed = !self.failures.is_empty();
        let within = self.case.definition.rollout.is_some() && self.struck.is_none();
        Some(match self.stop {
            Some(Stop::Cancelled) => (RunState::Cancelled, false),
            Some(Stop::TimedOut) => (RunState::Failed, false),
            // "`completed` only when nothing failed"; "a run that stayed within its budget ends `completed`, with
            // `partial: true` if any node failed".
            None if !failed => (RunState::Completed, false),
            None if within => (RunState::Completed, true),
            // fail-fast: "`failed`"; `continue`: "`failed`, with `partial: true`".
            None => (RunState::Failed, self.struck.is_none()),
        })
    }
}
