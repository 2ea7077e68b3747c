//! Owns how far a run is, and the doors through which facts come in and changes go out.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::outputs::Outputs;
use crate::backend::Params;
use crate::change::Change;
use crate::dice::Dice;
use crate::execution::{Execution, State, Verdict};
use crate::ids::{ExecutionId, NodeId, RunId};
use crate::limits;
use crate::node::Reach;
use crate::plan::Plan;
use crate::run::{RunEnd, RunState};
use crate::spec::budget_text;

/// What a decision may know beyond the run: the time, chance, and which nodes can be reached.
#[allow(missing_debug_implementations)]
pub struct Turn<'a> {
    pub now: Timestamp,
    pub dice: &'a mut Dice,
    pub reach: &'a dyn Fn(NodeId) -> Reach,
    /// What expressions may ask of a node.
    pub facts: &'a dyn Fn(NodeId) -> Option<serde_json::Value>,
    /// Whether any node fits a placed step, by what lasts; else why not.
    pub fits: &'a dyn Fn(u32) -> Result<(), String>,
}

/// Why everything that is left is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    Cancelled,
    TimedOut,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Succeeded,
    Failed,
    /// Failed without having been sent.
    GivenUp,
    Cancelled,
    Lost,
    Skipped,
}

/// An attempt that ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub pass: u32,
    pub walk: u32,
    pub step: u32,
    pub end: End,
}

/// How an entry ended, for those that depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryEnd {
    Succeeded,
    Failed,
    Skipped,
}

#[derive(Clone, Debug)]
pub(super) enum Stage {
    /// For this many entries.
    Waiting {
        missing: u32,
    },
    Open(Open),
    Ended(EntryEnd),
}

/// A pass that has begun and not ended.
#[derive(Clone, Debug)]
pub(super) struct Open {
    pub walks: Vec<Walk>,
    /// What its walks are for, if they are for items.
    pub items: Option<Arc<[Value]>>,
    /// Walks that have not ended.
    pub open: u32,
    /// Of those, walks that have begun.
    pub begun: u32,
    pub failed: bool,
    pub ran: bool,
    /// Walks that wait for room, in their order.
    pub line: VecDeque<u32>,
}

impl Open {
    pub(super) fn new(walks: Vec<Walk>, items: Option<Arc<[Value]>>) -> Self {
        let open = u32::try_from(walks.len()).expect("plans are bounded");
        Self { walks, items, open, begun: 0, failed: false, ran: false, line: VecDeque::new() }
    }
}

/// One way through an entry's leaves: a node's, an item's, or the only one of an entry that is placed.
#[derive(Clone, Debug)]
pub(super) struct Walk {
    /// Index into the plan's nodes.
    pub node: Option<u32>,
    pub item: Option<u32>,
    pub position: u32,
    pub attempt: u32,
    pub retries: u32,
    pub losses: u32,
    pub failed: bool,
    /// Whether an attempt was made of any of its leaves, or there is room for one.
    pub begun: bool,
}

impl Walk {
    pub(super) fn new(node: Option<u32>, item: Option<u32>) -> Self {
        Self { node, item, position: 0, attempt: 0, retries: 0, losses: 0, failed: false, begun: false }
    }
}

/// A step on a node, or for an item.
pub(super) type Instance = (u32, Option<NodeId>, Option<u32>);

/// An attempt that has not ended.
#[derive(Clone, Debug)]
pub(super) struct Active {
    pub pass: u32,
    pub step: u32,
    pub walk: u32,
    pub node: Option<NodeId>,
    pub leased: bool,
    /// Sent again after a loss: waits this long for its node to come back, offline or not, unless it is deleted.
    pub patience: Option<Timestamp>,
    /// A retry that is held back until then.
    pub not_before: Option<Timestamp>,
    /// Placed, and no node has fitted since then.
    pub unfit_since: Option<Timestamp>,
}

/// How far a run is.
#[derive(Clone, Debug)]
pub struct Progress {
    pub(super) plan: Arc<Plan>,
    pub(super) run: RunId,
    pub(super) epoch: u64,
    /// The values of the job's params.
    pub(super) params: Arc<Params>,
    pub(super) passes: Vec<Stage>,
    /// Passes that have not ended.
    pub(super) remaining: usize,
    pub(super) active: HashMap<ExecutionId, Active>,
    /// Whether any attempt was ever sent again and waits for its node: else nobody's patience need be looked for.
    pub(super) is_patient: bool,
    /// Nodes that failed and left (on a list that goes on without them), and the step that they failed in.
    pub(super) left: HashMap<u32, u32>,
    /// Failures that count against the budget: once per node.
    pub(super) spent: Spent,
    /// The pass and step whose failure made fail-fast strike.
    pub(super) struck: Option<(u32, u32)>,
    pub(super) failures: u64,
    pub(super) first_failure: Option<(u32, Option<u32>)>,
    /// The lowest number of a step that failed.
    pub(super) lowest_failure: Option<u32>,
    /// Of a roll-out, how many waves have begun.
    pub(super) waves_begun: u32,
    /// When the last attempt ended that was made here: a pause between waves counts from then.
    pub(super) last_end: Option<Timestamp>,
    /// A pass whose wave begins then.
    pub(super) pausing: Option<(Timestamp, u32)>,
    /// A person has paused it: no pass begins.
    pub(super) paused: bool,
    /// Instances that succeeded in the run that this one tries again.
    pub(super) carried: HashSet<Instance>,
    pub(super) outputs: Outputs,
    /// Passes that may begin when there is room in the run.
    pub(super) held: BTreeSet<u32>,
    /// Passes with walks that wait for room in the run.
    pub(super) lined: BTreeSet<u32>,
    /// Passes with walks that wait for room among their own items.
    pub(super) full: BTreeSet<u32>,
    /// Whether the run had stopped and fail-fast had struck when those that wait were last looked at.
    pub(super) swept: (bool, bool),
    /// When to look next whether nodes fit what is placed and waits.
    pub(super) look_at: Option<Timestamp>,
    /// Instances so far, as far as they come from items.
    pub(super) instances: usize,
    pub(super) stopping: Option<Stop>,
    pub(super) state: RunState,
    /// Passes whose turn has come. The one that stands first in the job file is decided first: facts that become known
    /// together come to the same, whichever is heard first.
    pub(super) due: BTreeSet<u32>,
    /// Attempts of which became known that they ended, and not decided yet what follows.
    pub(super) ended: Vec<Ended>,
    /// What restoring found to be decided once everything recorded is known.
    pub(super) resume: Resume,
    outbox: Outbox,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Resume {
    pub stop: Option<Stop>,
    pub failures: Vec<Failure>,
    pub ended: Vec<Ended>,
    pub walks: Vec<(u32, u32)>,
    pub passes: Vec<u32>,
}

/// A failure that is on record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Failure {
    pub cause: Cause,
    pub at: Timestamp,
    pub step: u32,
    pub pass: u32,
    pub node: Option<u32>,
}

/// What an instance failed of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cause {
    Own,
    /// Its next attempt was withdrawn when fail-fast struck: whatever the clocks said, something else had failed before.
    Struck,
}

/// An attempt that is given up.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Over {
    pub step: u32,
    pub pass: u32,
    pub walk: u32,
    pub execution: ExecutionId,
    pub error: String,
}

/// The failures that count: nodes, each once, and steps that had no node of their own.
#[derive(Clone, Debug, Default)]
pub(super) struct Spent {
    nodes: HashSet<u32>,
    placed: u32,
}

impl Spent {
    pub(super) fn note(&mut self, node: Option<u32>) {
        match node {
            Some(node) => {
                self.nodes.insert(node);
            }
            None => self.placed += 1,
        }
    }

    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.nodes.len()).expect("nodes are bounded") + self.placed
    }
}

/// What this turn came to.
#[derive(Clone, Debug, Default)]
struct Outbox {
    added: Vec<Execution>,
    changes: Vec<Change>,
    path: Vec<RunState>,
    end: Option<RunEnd>,
}

impl Progress {
    /// A run that has not begun. `state` is where its record stands.
    pub fn new(plan: Arc<Plan>, run: RunId, epoch: u64, state: RunState) -> Self {
        let passes: Vec<Stage> = plan
            .passes
            .iter()
            .map(|pass| Stage::Waiting {
                missing: u32::try_from(pass.after.len()).expect("plans are bounded"),
            })
            .collect();
        Self {
            remaining: passes.len(),
            passes,
            outputs: Outputs::new(),
            params: Arc::default(),
            plan,
            run,
            epoch,
            active: HashMap::new(),
            is_patient: false,
            left: HashMap::new(),
            spent: Spent::default(),
            struck: None,
            failures: 0,
            first_failure: None,
            lowest_failure: None,
            waves_begun: 0,
            last_end: None,
            pausing: None,
            paused: false,
            carried: HashSet::new(),
            held: BTreeSet::new(),
            lined: BTreeSet::new(),
            full: BTreeSet::new(),
            swept: (false, false),
            look_at: None,
            instances: 0,
            stopping: None,
            state,
            due: BTreeSet::new(),
            ended: Vec::new(),
            resume: Resume::default(),
            outbox: Outbox::default(),
        }
    }

    /// The values of the job's params, for expressions.
    #[must_use]
    pub fn with_params(mut self, params: Arc<Params>) -> Self {
        self.params = params;
        self
    }

    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    pub fn run(&self) -> &RunId {
        &self.run
    }

    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    pub fn state(&self) -> RunState {
        self.state
    }

    pub fn is_ended(&self) -> bool {
        self.state.is_terminal()
    }

    /// Starts the walk.
    pub fn begin(&mut self, turn: &mut Turn<'_>) {
        if self.state == RunState::Pending {
            self.walk_to(&[RunState::Starting, RunState::Running]);
        }
        self.due = self.roots();
        self.settle(turn);
    }

    /// The passes that wait for nothing.
    pub(super) fn roots(&self) -> BTreeSet<u32> {
        let waits = |stage: &Stage| !matches!(stage, Stage::Waiting { missing: 0 });
        (0..).zip(&self.passes).filter(|(_, stage)| !waits(stage)).map(|(pass, _)| pass).collect()
    }

    /// Takes in a committed change that concerns this run, and decides what follows.
    pub fn observe(&mut self, change: &Change, turn: &mut Turn<'_>) {
        self.observe_all([change], turn);
    }

    /// The same of changes that became known together: what follows is decided when all of them are taken in, so that it
    /// makes no difference which of them was heard first.
    pub fn observe_all<'c>(&mut self, changes: impl IntoIterator<Item = &'c Change>, turn: &mut Turn<'_>) {
        for change in changes {
            self.take_in(change, turn);
        }
        self.follow_ends(Vec::new(), turn);
        self.settle(turn);
    }

    fn take_in(&mut self, change: &Change, turn: &mut Turn<'_>) {
        match change {
            Change::ExecutionsAdded { executions, .. } => {
                for execution in executions {
                    match &execution.state {
                        State::Leased { .. } => self.leased(execution.id),
                        State::Succeeded { outcome, .. } => self.cached(execution.id, &outcome.outputs),
                        _ => {}
                    }
                }
            }
            Change::ExecutionLeased { execution, .. } => self.leased(*execution),
            Change::ExecutionFinished { execution, outcome, .. } => {
                let end = match outcome.verdict {
                    Verdict::Succeeded => {
                        self.note_outputs(*execution, &outcome.outputs);
                        End::Succeeded
                    }
                    Verdict::Failed => End::Failed,
                    Verdict::Cancelled => End::Cancelled,
                };
                self.ended(*execution, end, turn);
            }
            Change::ExecutionLost { execution, .. } => self.ended(*execution, End::Lost, turn),
            Change::ExecutionCancelRequested { execution, .. } => {
                // A leased one is only told to stop: it ends when its agent says so.
                if self.active.get(execution).is_some_and(|active| !active.leased) {
                    self.ended(*execution, End::Cancelled, turn);
                }
            }
            Change::ExecutionGivenUp { execution, .. } => self.ended(*execution, End::GivenUp, turn),
            Change::ExecutionSkipped { execution, .. } => self.ended(*execution, End::Skipped, turn),
            Change::RunCancelRequested { .. } => self.begin_stop(Stop::Cancelled, turn),
            Change::RunPauseSet { paused, .. } => self.paused = *paused,
            Change::ExecutionStarted { .. }
            | Change::RunAdmitted { .. }
            | Change::RunCreated { .. }
            | Change::RunTaken { .. }
            | Change::RunMoved { .. }
            | Change::NodeRegistered { .. }
            | Change::NodeMoved { .. }
            | Change::NodeDrainSet { .. }
            | Change::NodeProblemsSet { .. }
            | Change::NodeDeleted { .. }
            | Change::Unknown { .. } => {}
        }
    }

    /// Ends everything that is left.
    pub fn stop(&mut self, stop: Stop, turn: &mut Turn<'_>) {
        self.begin_stop(stop, turn);
        self.settle(turn);
    }

    pub(super) fn begin_stop(&mut self, stop: Stop, turn: &Turn<'_>) {
        if self.stopping.is_some() || self.is_ended() {
            return;
        }
        self.stopping = Some(stop);
        let mut executions: Vec<ExecutionId> = self.active.keys().copied().collect();
        executions.sort_unstable();
        let reason = self.stop_reason();
        for execution in executions {
            self.emit(Change::ExecutionCancelRequested {
                run: self.run.clone(),
                execution,
                epoch: self.epoch,
                reason: reason.clone(),
                at: turn.now,
            });
        }
        if self.state == RunState::Pending {
            // It never began: everything is skipped.
            self.due = self.roots();
        }
    }

    /// A node went offline or was deleted: what waits for it fails. What was sent again after a loss waits on for a node
    /// that is offline, and fails when it was deleted.
    pub fn node_gone(&mut self, node: NodeId, turn: &mut Turn<'_>) {
        // It may be back already. What waited for it fails all the same.
        let reach = match (turn.reach)(node) {
            Reach::Deleted => Reach::Deleted,
            Reach::Here | Reach::Offline => Reach::Offline,
        };
        let over = self
            .waiting(|active| reach.fails(active.patience.is_some()).filter(|_| active.node == Some(node)));
        self.give_up(over, turn);
    }

    /// Time went by: whose patience is over, and what has no node fitted for too long?
    pub fn tick(&mut self, turn: &mut Turn<'_>) {
        let now = turn.now;
        let mut over = self.waiting(|active| {
            active.patience.filter(|until| *until <= now).map(|_| "did not come back in time")
        });
        if self.look_at.is_some_and(|at| at <= now) {
            over.extend(self.look_for_nodes(turn));
        }
        self.give_up(over, turn);
        self.settle(turn);
    }

    /// When `tick` has something to do, or to look at.
    pub fn next_tick(&self) -> Option<Timestamp> {
        self.next_deadline().into_iter().chain(self.next_look()).min()
    }

    /// When something follows from time alone, whatever nodes there are.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let waiting = self.is_patient.then(|| self.active.values().filter(|active| !active.leased));
        let patience = waiting.into_iter().flatten().filter_map(|active| active.patience);
        let wave = self.pausing.filter(|_| !self.paused).map(|(until, _)| until);
        patience.chain(wave).min()
    }

    /// When it is looked at next whether nodes fit what is placed and waits.
    pub fn next_look(&self) -> Option<Timestamp> {
        self.look_at
    }

    /// Those that are not given to a node yet, and why they are given up.
    pub(super) fn waiting(&self, why: impl Fn(&Active) -> Option<&'static str>) -> Vec<Over> {
        let waiting = self.active.iter().filter(|(_, active)| !active.leased);
        let over = waiting.filter_map(|(&execution, active)| {
            let why = why(active)?;
            let Active { step, pass, walk, .. } = *active;
            let node = self.hostname(pass, walk).unwrap_or_default();
            Some(Over { step, pass, walk, execution, error: format!("node {node} {why}") })
        });
        over.collect()
    }

    /// In the order in which failures of one moment count, which is that of their steps: the records do not say which
    /// of them was the first, and whoever takes over must come to the same.
    pub(super) fn give_up(&mut self, mut over: Vec<Over>, turn: &Turn<'_>) {
        over.sort_unstable();
        for Over { execution, error, .. } in over {
            self.emit(Change::ExecutionGivenUp {
                run: self.run.clone(),
                execution,
                epoch: self.epoch,
                error,
                at: turn.now,
            });
        }
    }

    /// The changes that this turn came to. They are to be committed as one submission, and what was committed is to
    /// be observed.
    #[must_use]
    pub fn take_changes(&mut self, now: Timestamp) -> Vec<Change> {
        let Outbox { added, changes, path, end } = std::mem::take(&mut self.outbox);
        let mut all = Vec::with_capacity(changes.len() + 2);
        let mut added = added.into_iter().peekable();
        while added.peek().is_some() {
            all.push(Change::ExecutionsAdded {
                run: self.run.clone(),
                epoch: self.epoch,
                executions: added.by_ref().take(limits::EXECUTIONS_PER_CHANGE).collect(),
                at: now,
            });
        }
        all.extend(changes);
        if !path.is_empty() {
            all.push(Change::RunMoved { run: self.run.clone(), epoch: self.epoch, path, end, at: now });
        }
        all
    }

    fn leased(&mut self, execution: ExecutionId) {
        if let Some(active) = self.active.get_mut(&execution) {
            active.leased = true;
        }
    }

    pub(super) fn add(&mut self, execution: Execution) {
        self.outbox.added.push(execution);
    }

    pub(super) fn emit(&mut self, change: Change) {
        self.outbox.changes.push(change);
    }

    pub(super) fn walk_to(&mut self, path: &[RunState]) {
        debug_assert!(super::super::check_path(self.state, path).is_ok(), "{} to {path:?}", self.state);
        self.outbox.path.extend_from_slice(path);
        self.state = *path.last().expect("a path has an end");
    }

    /// Ends the run when nothing is left to do.
    pub(super) fn finish(&mut self) {
        if self.remaining > 0 || self.is_ended() {
            return;
        }
        let is_rollout = self.plan.definition.rollout.is_some();
        let (last, error) = match self.stopping {
            Some(Stop::Cancelled) => (RunState::Cancelled, Some("cancelled".to_owned())),
            Some(Stop::TimedOut) => (RunState::Failed, Some(self.stop_reason())),
            None if self.failures > 0 && (!is_rollout || self.struck.is_some()) => {
                (RunState::Failed, Some(self.failure_text()))
            }
            None => (RunState::Completed, None),
        };
        if self.state != RunState::Terminating {
            self.walk_to(&[RunState::Terminating]);
        }
        self.walk_to(&[last]);
        let partial = self.failures > 0 && self.stopping.is_none() && self.struck.is_none();
        self.outbox.end = Some(RunEnd { partial, error });
    }

    pub(super) fn stop_reason(&self) -> String {
        match self.stopping {
            Some(Stop::TimedOut) => {
                let timeout = self.plan.definition.timeout.unwrap_or_default();
                format!("the run timed out after {timeout}")
            }
            Some(Stop::Cancelled) | None => "the run was cancelled".to_owned(),
        }
    }

    pub(super) fn step_text(&self, step: u32) -> String {
        format!("step {step} ({})", self.plan.task(step).label())
    }

    fn failure_text(&self) -> String {
        let Some((step, node)) = self.first_failure else { return "failed".to_owned() };
        let place = node.map(|node| format!(" on {}", self.plan.node(node).hostname)).unwrap_or_default();
        let others = match self.failures {
            0 | 1 => String::new(),
            n => format!(", and {} more", n - 1),
        };
        let budget = match (self.plan.budget(), self.struck) {
            (Some(budget), Some(_)) => format!("; {}", budget_text(self.spent.count(), budget)),
            _ => String::new(),
        };
        format!("{} failed{place}{others}{budget}", self.step_text(step))
    }

    pub(super) fn hostname(&self, pass: u32, walk: u32) -> Option<&str> {
        let node = self.plan.nodes_of_pass(pass)?[walk as usize];
        Some(&self.plan.node(node).hostname)
    }
}
