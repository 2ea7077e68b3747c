//! A slow, obvious interpreter of the tables of `docs/fleet.md`. It is told what happened and says what every instance
//! must have come to by now. It knows nothing of the engine: it holds plain lists, and looks through all of them after
//! everything that it is told. Here is what follows from what; the sentences themselves are in `rules`.

use downbeat_core::execution::{Status, Verdict};
use downbeat_core::run::RunState;

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
    pub(super) sent: bool,
    /// Sent again after a loss, and pinned: until then it waits for its node.
    waits_until: Option<i64>,
    /// The most that it may be held back as a retry.
    pub(crate) held_until: Option<i64>,
    made: usize,
    ended: usize,
}

impl Default for Attempt {
    fn default() -> Self {
        Self {
            status: Status::Pending,
            why: None,
            stop: false,
            sent: false,
            waits_until: None,
            held_until: None,
            made: 0,
            ended: 0,
        }
    }
}

/// What an instance gets from the step that it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    NothingUsed,
    Missing,
    Value(u64),
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
pub(super) enum Stage {
    Waiting,
    Due,
    Began,
    Skipped,
}

/// What begins together: an entry on all of its nodes, or with a roll-out on those of one wave.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) entry: usize,
    pub(super) wave: Option<usize>,
    /// The parts that end before this one begins.
    pub(super) after: Vec<usize>,
    pub(super) stage: Stage,
}

pub(crate) struct Tables<'a> {
    pub(super) case: &'a Case,
    pub(super) graph: bool,
    pub(crate) instances: Vec<Instance>,
    pub(super) parts: Vec<Part>,
    /// Parts whose turn has come, the longest waiting first.
    pub(super) due: Vec<usize>,
    /// Instances that failed, in the order in which they did.
    pub(crate) failures: Vec<usize>,
    /// The part in which fail-fast struck.
    pub(crate) struck: Option<usize>,
    pub(crate) stop: Option<Stop>,
    pub(crate) paused: bool,
    pub(crate) offline: Vec<bool>,
    pub(crate) now: i64,
    /// When the last attempt ended.
    pub(super) last_end: Option<i64>,
    count: usize,
}

impl<'a> Tables<'a> {
    /// `taken_over`: the steps and nodes that succeeded in the run that this one tries again.
    pub(crate) fn new(case: &'a Case, taken_over: &[(usize, Option<usize>)]) -> Self {
        let graph = case.definition.is_graph();
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
        let attempt = Attempt { waits_until, held_until, made: self.count, ..Attempt::default() };
        self.instances[instance].attempts.push(attempt);
        // "A step for a node that is offline fails without being sent." "A value that is missing only later fails the
        // attempt that needs it."
        let unreachable = waits_until.is_none() && self.is_offline(instance);
        if unreachable || self.given(instance) == Given::Missing {
            self.end(instance, Status::Failed, None);
        }
    }

    fn skip(&mut self, instance: usize, why: Why) {
        self.count += 1;
        self.instances[instance].attempts.push(Attempt { made: self.count, ..Attempt::default() });
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
        // Of failures of one moment that of the first step counts first.
        gone.sort_by_key(|&i| (self.instances[i].step, self.instances[i].node));
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
            let concerned = self.instances[instance].part == part && !self.instances[instance].taken_over;
            if concerned && let Err(why) = runs.and_then(|()| self.node_joins(instance)) {
                self.skip(instance, why);
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
        self.due.sort_unstable();
        Some(self.due.remove(0))
    }

    fn has_ended(&self, part: usize) -> bool {
        matches!(self.parts[part].stage, Stage::Began | Stage::Skipped)
            && self.instances.iter().filter(|i| i.part == part).all(|i| i.fate.is_some())
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
