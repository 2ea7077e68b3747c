//! Tells the engine and the tables the same story, step by step, and compares what they make of it.

use std::fmt::Write as _;

use downbeat_core::execution::{Execution, State, Status, Verdict};
use downbeat_core::ids::{ExecutionId, RunId};
use downbeat_core::run::engine;
use downbeat_core::{Change, Dice, Timestamp};
use uuid::Uuid;

use super::case::{Case, MOST_NODES, node_id, node_number, number};
use super::tables::{Fate, Stop, Tables, Why};
use crate::world::World;

const BEGINNING_MS: i64 = 1_000_000_000;

/// What stories must have been about, some of them.
pub(crate) const KINDS: [&str; 26] = [
    "budget spent",
    "death",
    "fail-fast struck",
    "lost",
    "node offline",
    "paused",
    "race",
    "restart",
    "restart that finds news",
    "stopped",
    "tried again",
    "untouched nodes",
    "within the budget",
    "skip: stopped",
    "skip: failure",
    "skip: wave never began",
    "skip: node left",
    "skip: nothing failed",
    "skip: dependency failed",
    "skip: dependency skipped",
    "skip: no dependency failed",
    "skip: node offline",
    "skip: node untouched",
    "skip: node not concerned",
    "skip: failed on this node",
    "skip: nothing failed on this node",
];

const SKIPS: [(&str, Why); 13] = [
    ("skip: stopped", Why::Stopped),
    ("skip: failure", Why::Failure),
    ("skip: wave never began", Why::WaveNeverBegan),
    ("skip: node left", Why::NodeLeft),
    ("skip: nothing failed", Why::NothingFailed),
    ("skip: dependency failed", Why::DependencyFailed),
    ("skip: dependency skipped", Why::DependencySkipped),
    ("skip: no dependency failed", Why::NoDependencyFailed),
    ("skip: node offline", Why::NodeOffline),
    ("skip: node untouched", Why::NodeUntouched),
    ("skip: node not concerned", Why::NodeNotConcerned),
    ("skip: failed on this node", Why::FailedOnThisNode),
    ("skip: nothing failed on this node", Why::NothingFailedOnThisNode),
];

/// Something that happened.
#[derive(Clone, Copy, Debug)]
enum Fact {
    Leased(usize),
    Started(usize),
    Finished(usize, Verdict),
    Lost(usize),
    Offline(usize),
    Online(usize),
    Stopped(Stop),
    Paused(bool),
}

/// A line of the story.
#[derive(Clone, Copy, Debug)]
enum Line {
    Begins,
    OfflineAtFirst(usize),
    Happens(Fact),
    LaterMs(i64),
    Restart,
    /// Before the submission after so many.
    DiesAfter(u32),
    NobodyHears,
    Race(usize),
}

/// How often things happen in one story, of 32.
struct Habits {
    fails: u64,
    loses: u64,
    node_goes: u64,
    pauses: u64,
    restarts: u64,
    dies: u64,
    deaf: u64,
    races: u64,
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
            pauses: [0, 0, 1, 3][number(dice, 4)],
            restarts: [0, 2, 6][number(dice, 3)],
            dies: [0, 2, 6][number(dice, 3)],
            deaf: [0, 0, 3][number(dice, 3)],
            races: [0, 0, 12][number(dice, 3)],
            stops_at: (dice.below(8) == 0).then(|| (number(dice, 12), stop)),
        }
    }
}

/// What stories were about, so that a test can say that nothing was left out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts(pub(crate) std::collections::BTreeMap<&'static str, u64>);

impl Counts {
    fn note(&mut self, what: &'static str, happened: bool) {
        if happened {
            *self.0.entry(what).or_default() += 1;
        }
    }

    pub(crate) fn add(&mut self, other: &Counts) {
        for (what, count) in &other.0 {
            *self.0.entry(what).or_default() += count;
        }
    }
}

/// Plays a whole story; the error is a report for people.
pub(crate) fn play(case: &Case, seed: u64, counts: &mut Counts) -> Result<(), String> {
    let mut dice = Dice::new(seed ^ 0x5707_1e5);
    let mut first = Story::new(case, Vec::new(), seed, dice.clone());
    first.run().map_err(|error| first.report(&error))?;
    first.note(counts);
    let well = first.tables.failures.is_empty() && first.tables.stop.is_none();
    if well || dice.below(2) == 0 {
        return Ok(());
    }
    // "`run retry RUN` makes a new run of an ended one that did not complete, or completed in part."
    let taken = first.taken_over();
    let mut second = Story::new(case, taken, seed + 1, Dice::new(dice.next_u64()));
    second.run().map_err(|error| second.report(&format!("tried again: {error}")))?;
    counts.note("tried again", true);
    second.note(counts);
    Ok(())
}

struct Story<'a> {
    case: &'a Case,
    world: World,
    tables: Tables<'a>,
    /// The last attempt of each instance.
    ids: Vec<Option<ExecutionId>>,
    /// The instance of a step (row) on a node (column; the first is for no node).
    lookup: Vec<usize>,
    dice: Dice,
    habits: Habits,
    told: Vec<Line>,
    seen: Counts,
}

impl<'a> Story<'a> {
    fn new(case: &'a Case, taken_over: Vec<Execution>, seed: u64, mut dice: Dice) -> Self {
        let (definition, resolved) = case.shared();
        let mut world = World::of(definition, resolved, seed);
        world.now = at(0);
        let place = |execution: &Execution| (execution.step as usize, execution.pinned.map(node_number));
        let taken: Vec<_> = taken_over.iter().map(place).collect();
        let tables = Tables::new(case, &taken);
        if !taken_over.is_empty() {
            world.take_over(taken_over);
        }
        let steps = case.idempotent.len();
        let mut lookup = vec![usize::MAX; steps * (MOST_NODES + 1)];
        for (index, instance) in tables.instances.iter().enumerate() {
            lookup[instance.step * (MOST_NODES + 1) + instance.node.map_or(0, |node| node + 1)] = index;
        }
        let habits = Habits::random(&mut dice);
        let ids = vec![None; tables.instances.len()];
        Self { case, world, tables, ids, lookup, dice, habits, told: Vec::new(), seen: Counts::default() }
    }

    fn run(&mut self) -> Result<(), String> {
        for node in 0..self.case.nodes {
            if self.chance(self.habits.node_goes) {
                self.world.offline.insert(node_id(node));
                self.tables.offline[node] = true;
                self.told.push(Line::OfflineAtFirst(node));
            }
        }
        if self.chance(self.habits.pauses) {
            self.hear(Fact::Paused(true));
        }
        if self.habits.stops_at.is_some_and(|(step, _)| step == 0) {
            self.hear(Fact::Stopped(self.habits.stops_at.expect("it is there").1));
            return self.compare();
        }
        self.begin();
        self.compare()?;
        for step in 1..2_000 {
            if self.tables.run_end().is_some() {
                return Ok(());
            }
            // Never nothing: clocks that stand still cannot say which of two failures was the first.
            let seconds = self.dice.below(3);
            self.pass_time(1 + 1_000 * i64::try_from(seconds).expect("small"))?;
            if self.tables.run_end().is_none() {
                self.next(step)?;
                self.compare()?;
            }
        }
        Err("the run does not end".to_owned())
    }

    fn begin(&mut self) {
        self.told.push(Line::Begins);
        if self.world.executions.is_empty() && self.dice.below(8) > 0 {
            self.may_die();
            self.world.begin();
        } else {
            self.world.restart();
        }
        self.tables.decide();
        self.tick();
    }

    fn chance(&mut self, of_32: u64) -> bool {
        self.dice.below(32) < of_32
    }

    /// The next thing that happens.
    fn next(&mut self, step: usize) -> Result<(), String> {
        if let Some((when, stop)) = self.habits.stops_at
            && step >= when
            && self.tables.stop.is_none()
        {
            self.hear(Fact::Stopped(stop));
            return Ok(());
        }
        if self.chance(self.habits.restarts) {
            self.told.push(Line::Restart);
            self.seen.note("restart", true);
            self.world.restart();
            return Ok(());
        }
        if self.chance(self.habits.deaf) {
            self.told.push(Line::NobodyHears);
            for news in 0..1 + self.dice.below(3) {
                // With several news at once a failure in reaction to one may come before or after the next one, and only
                // nodes that are offline make such failures.
                match self.choose() {
                    Some(Fact::Offline(_)) if news > 0 => break,
                    Some(fact) => self.tell(fact, false),
                    None => break,
                }
                if self.tables.offline.contains(&true) {
                    break;
                }
            }
            self.told.push(Line::Restart);
            self.seen.note("restart that finds news", true);
            self.world.restart();
            self.tables.decide();
            self.tick();
            return Ok(());
        }
        if let Some(fact) = self.choose() {
            self.hear(fact);
            return Ok(());
        }
        // Nothing can happen by itself: time goes by, a person resumes, or a node comes back.
        if self.tables.paused {
            self.hear(Fact::Paused(false));
        } else if let Some(tick) = self.tables.next_tick() {
            return self.pass_time(tick - self.tables.now);
        } else {
            return Err("nothing is open, and the run goes on".to_owned());
        }
        Ok(())
    }

    fn choose(&mut self) -> Option<Fact> {
        if self.chance(self.habits.node_goes) {
            let node = number(&mut self.dice, self.case.nodes);
            return Some(if self.tables.offline[node] { Fact::Online(node) } else { Fact::Offline(node) });
        }
        if self.chance(self.habits.pauses) {
            return Some(Fact::Paused(!self.tables.paused));
        }
        let open = self.open();
        if open.is_empty() {
            return None;
        }
        let chosen = open[number(&mut self.dice, open.len())];
        Some(self.fact_about(chosen))
    }

    /// What nodes can do something about.
    fn open(&self) -> Vec<usize> {
        let reachable = |node: Option<usize>| node.is_none_or(|node| !self.tables.offline[node]);
        let is_open = |i: &usize| {
            let instance = &self.tables.instances[*i];
            match instance.status() {
                // "A paused run begins nothing more": the dispatcher holds back what waits.
                Some(Status::Pending) => !self.tables.paused && reachable(instance.node),
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
            return Fact::Finished(instance, Verdict::Cancelled);
        }
        let failed = self.chance(self.habits.fails);
        Fact::Finished(instance, if failed { Verdict::Failed } else { Verdict::Succeeded })
    }

    fn is_running(&self, id: ExecutionId) -> bool {
        self.world.executions[&id].state.status() == Status::Running
    }

    /// Tells both, and lets both decide; the server may die over it.
    fn hear(&mut self, fact: Fact) {
        self.may_die();
        let race = self.may_race(fact);
        self.tell(fact, true);
        if let Some(instance) = race
            && self.world.race.take().is_none()
        {
            self.tables.leased(instance);
            self.told.push(Line::Race(instance));
            self.seen.note("race", true);
        }
        self.tables.decide();
        self.world.dies_after = None;
        self.tick();
    }

    /// Something that waits and that a node may be given while the engine still thinks that it waits.
    fn may_race(&mut self, fact: Fact) -> Option<usize> {
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
            self.told.push(Line::DiesAfter(submissions));
            self.seen.note("death", true);
        }
    }

    fn tell(&mut self, fact: Fact, heard: bool) {
        self.told.push(Line::Happens(fact));
        let (run, at) = (self.world.record.id.clone(), self.world.now);
        let id = |instance: usize| self.ids[instance].expect("it has an attempt");
        let change = match fact {
            Fact::Leased(instance) => {
                let execution = self.world.executions[&id(instance)].clone();
                self.tables.leased(instance);
                self.world.leased(&execution)
            }
            Fact::Started(instance) => self.world.started(id(instance)),
            Fact::Finished(instance, verdict) => {
                self.tables.finished(instance, verdict);
                self.world.finished(id(instance), verdict)
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
                if heard {
                    self.world.turn(|progress, turn| progress.node_offline(node_id(node), turn));
                }
                return;
            }
            Fact::Online(node) => {
                self.tables.offline[node] = false;
                self.world.offline.remove(&node_id(node));
                return;
            }
            Fact::Stopped(stop) => {
                self.tables.stopped(stop);
                match stop {
                    Stop::Cancelled => Change::RunCancelRequested { run, by: "test".to_owned(), at },
                    Stop::TimedOut => {
                        self.world.timed_out = true;
                        self.world.turn(|progress, turn| progress.stop(engine::Stop::TimedOut, turn));
                        return;
                    }
                }
            }
            Fact::Paused(paused) => {
                self.tables.paused = paused;
                self.seen.note("paused", paused);
                Change::RunPauseSet { run, paused, by: "test".to_owned(), at }
            }
        };
        let applied = if heard { self.world.happens(&change) } else { self.world.apply(&change) };
        assert!(applied, "{fact:?} was refused");
    }

    fn pass_time(&mut self, by_ms: i64) -> Result<(), String> {
        let due = self.tables.next_tick();
        self.tables.now += by_ms;
        self.world.now = at(self.tables.now);
        self.told.push(Line::LaterMs(by_ms));
        // Both have said when time alone matters, and the same.
        if due.is_some_and(|due| due <= self.tables.now) {
            self.tables.decide();
            self.tick();
            self.compare()?;
        }
        Ok(())
    }

    /// The clock strikes when the engine asked for it, however often.
    fn tick(&mut self) {
        for _ in 0..100 {
            if self.world.progress.next_tick().is_none_or(|tick| tick > self.world.now) {
                return;
            }
            self.world.turn(|progress, turn| progress.tick(turn));
        }
        panic!("the engine asks for the same moment again and again");
    }

    /// Everything that is recorded, against everything that must be.
    fn compare(&mut self) -> Result<(), String> {
        let mut found: Vec<(usize, &Execution)> = Vec::with_capacity(self.world.executions.len());
        for execution in self.world.executions.values() {
            let column = execution.pinned.map_or(0, |node| node_number(node) + 1);
            let instance = self.lookup[execution.step as usize * (MOST_NODES + 1) + column];
            if execution.reused.is_some() != self.tables.instances[instance].taken_over {
                return Err(format!("{} is reused", self.name(instance)));
            }
            if execution.reused.is_none() {
                found.push((instance, execution));
            }
        }
        found.sort_by_key(|(instance, execution)| (*instance, execution.attempt));
        let mut found = found.into_iter().peekable();
        for (index, instance) in self.tables.instances.iter().enumerate() {
            for (attempt, expected) in (1..).zip(&instance.attempts) {
                let Some((_, execution)) = found.next_if(|(other, _)| *other == index) else {
                    return Err(format!("{} has no attempt {attempt}", self.name(index)));
                };
                self.ids[index] = Some(execution.id);
                let got = (execution.attempt, status_of(&execution.state), why_of(&execution.state));
                if got != (attempt, (expected.status, expected.stop), expected.why) {
                    return Err(format!("{} is {got:?}", self.name(index)));
                }
                if let State::Pending { not_before } = execution.state
                    && (not_before.is_some() != expected.held_until.is_some()
                        || not_before.is_some_and(|at| {
                            at.as_millisecond() - BEGINNING_MS > expected.held_until.unwrap()
                        }))
                {
                    return Err(format!("{} is held back until {not_before:?}", self.name(index)));
                }
            }
        }
        if let Some((index, execution)) = found.next() {
            return Err(format!("{} has an attempt {} too many", self.name(index), execution.attempt));
        }
        let record = &self.world.record;
        let end = record.end.as_ref().map(|end| (record.state, end.partial));
        if end != self.tables.run_end() || record.state.is_terminal() != end.is_some() {
            return Err(format!("the run is {} ({end:?})", record.state));
        }
        let tick = self.world.progress.next_tick().map(|at| at.as_millisecond() - BEGINNING_MS);
        if end.is_none() && tick != self.tables.next_tick() {
            return Err(format!("the next tick is at {tick:?}, not at {:?}", self.tables.next_tick()));
        }
        Ok(())
    }

    /// What a run that tries this one again begins with: what succeeded, but nothing that answered failures.
    fn taken_over(&self) -> Vec<Execution> {
        let taken = |index: usize, id: ExecutionId| {
            let former = &self.world.executions[&id];
            Execution {
                id: ExecutionId(Uuid::from_u128(index as u128 + 1)),
                run: RunId::from("run"),
                attempt: 1,
                reused: Some(former.id),
                ..former.clone()
            }
        };
        (0..)
            .zip(&self.tables.instances)
            .filter(|(index, instance)| {
                instance.fate == Some(Fate::Succeeded) && !self.tables.is_answer(*index)
            })
            .filter_map(|(index, _)| Some(taken(index, self.ids[index]?)))
            .collect()
    }

    fn note(&self, counts: &mut Counts) {
        let tables = &self.tables;
        let rollout = self.case.definition.rollout.is_some();
        let skipped =
            |why: Why| tables.instances.iter().any(|i| i.attempts.iter().any(|a| a.why == Some(why)));
        counts.add(&self.seen);
        counts.note("stopped", tables.stop.is_some());
        counts.note("fail-fast struck", tables.struck.is_some() && !rollout);
        counts.note("budget spent", tables.struck.is_some() && rollout);
        counts.note("within the budget", rollout && tables.struck.is_none() && !tables.failures.is_empty());
        counts.note("untouched nodes", rollout && (0..self.case.nodes).any(|node| !tables.is_touched(node)));
        for (what, why) in SKIPS {
            counts.note(what, skipped(why));
        }
    }

    fn name(&self, instance: usize) -> String {
        let instance = &self.tables.instances[instance];
        let node = instance.node.map_or("-".to_owned(), |node| format!("n{node}"));
        format!("{}@{node}", instance.step)
    }

    fn describe(&self, line: Line) -> String {
        match line {
            Line::Begins => "begins".to_owned(),
            Line::OfflineAtFirst(node) => format!("n{node} is offline from the start"),
            Line::Happens(fact) => self.describe_fact(fact),
            Line::LaterMs(ms) => format!("{ms} ms later"),
            Line::Restart => "restart".to_owned(),
            Line::DiesAfter(submissions) => format!("dies {submissions} submissions after this:"),
            Line::NobodyHears => "nobody hears:".to_owned(),
            Line::Race(instance) => format!("and at that moment {} is leased", self.name(instance)),
        }
    }

    fn describe_fact(&self, fact: Fact) -> String {
        match fact {
            Fact::Leased(instance) => format!("{} is leased", self.name(instance)),
            Fact::Started(instance) => format!("{} starts", self.name(instance)),
            Fact::Finished(instance, verdict) => format!("{} ends: {verdict:?}", self.name(instance)),
            Fact::Lost(instance) => format!("{} is lost", self.name(instance)),
            Fact::Offline(node) => format!("n{node} goes offline"),
            Fact::Online(node) => format!("n{node} comes back"),
            Fact::Stopped(stop) => format!("the run is stopped: {stop:?}"),
            Fact::Paused(paused) => format!("paused: {paused}"),
        }
    }

    fn report(&self, error: &str) -> String {
        let mut text = format!(
            "{error}\n\ndefinition, on {} nodes, idempotent {:?}:\n",
            self.case.nodes, self.case.idempotent
        );
        text.push_str(&serde_json::to_string(&self.case.definition).expect("it serialises"));
        let story: Vec<String> = self.told.iter().map(|line| self.describe(*line)).collect();
        let _ = write!(text, "\n\nstory:\n  {}\n\nthe tables say:\n", story.join("\n  "));
        for (index, instance) in self.tables.instances.iter().enumerate() {
            let attempts: Vec<_> = instance.attempts.iter().map(|a| (a.status, a.stop, a.why)).collect();
            let _ = writeln!(text, "  {} {:?} {attempts:?}", self.name(index), instance.fate);
        }
        let _ = writeln!(text, "  run: {:?}\n\nthe engine says:", self.tables.run_end());
        let mut executions: Vec<&Execution> = self.world.executions.values().collect();
        executions.sort_by_key(|e| (e.step, self.world.place(e), e.attempt));
        for execution in executions {
            let (state, place) = (&execution.state, self.world.place(execution));
            let (status, why) = (status_of(state), reason_of(state).unwrap_or_default());
            let _ =
                writeln!(text, "  {}@{place} attempt {} {status:?} {why}", execution.step, execution.attempt);
        }
        let _ = writeln!(text, "  run: {} {:?}", self.world.record.state, self.world.record.end);
        text
    }
}

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(BEGINNING_MS + ms).expect("a time")
}

/// The status, and whether it was told to stop. Leased and running are the same to a run.
fn status_of(state: &State) -> (Status, bool) {
    match state {
        State::Leased { stop, .. } | State::Running { stop, .. } => (Status::Leased, *stop),
        other => (other.status(), false),
    }
}

fn reason_of(state: &State) -> Option<&str> {
    match state {
        State::Skipped { reason, .. } => Some(reason),
        _ => None,
    }
}

/// The kind of reason that a skip is recorded with, read off its words.
fn why_of(state: &State) -> Option<Why> {
    let reason = reason_of(state)?;
    Some(match reason {
        "the run was cancelled" => Why::Stopped,
        "nothing failed before" => Why::NothingFailed,
        "no dependency failed" => Why::NoDependencyFailed,
        "the node is offline" => Why::NodeOffline,
        "the node was never touched" => Why::NodeUntouched,
        "nothing failed on this node, and the budget of failures is not spent" => Why::NodeNotConcerned,
        "an earlier step failed on this node" => Why::FailedOnThisNode,
        "nothing failed before on this node" => Why::NothingFailedOnThisNode,
        _ if reason.starts_with("the run timed out") => Why::Stopped,
        _ if reason.starts_with("the roll-out stopped in wave") => Why::WaveNeverBegan,
        _ if reason.starts_with("the node failed in step") => Why::NodeLeft,
        _ if reason.starts_with('`') && reason.ends_with("was skipped") => Why::DependencySkipped,
        _ if reason.starts_with('`') && reason.ends_with("failed") => Why::DependencyFailed,
        _ if reason.starts_with("step") && reason.ends_with("failed") => Why::Failure,
        _ => panic!("nobody knows the reason `{reason}`"),
    })
}
