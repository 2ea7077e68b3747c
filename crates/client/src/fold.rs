//! Owns the projection of a run: its summary and results as they were read once, updated by the run's events.
//!
//! The first view may be newer than the event after which the stream starts, so the view may already contain some
//! events. Applying them again changes nothing: no result and no ended run returns to an earlier state.
//!
//! Events do not contain why something waits, which nodes are silent, and the last line of a failed instance's output.
//! These are as old as the last read.

use std::collections::{BTreeSet, HashMap};

use downbeat_api::{
    AddedExecution, Ended, Event, EventBody, Execution, InstanceResult, Outline, Plan, Reported, StateStay,
    StepWaiting, UNBOUND, Where, WholeRun,
};
use downbeat_core::backend::Params;
use downbeat_core::execution::{Decision, Outcome, Status, Verdict, fit_into_lease};
use downbeat_core::ids::{ExecutionId, NodeId};
use downbeat_core::run::RunState;
use downbeat_core::{Span, Timestamp};

/// The view of a run, and the state to update it.
#[derive(Clone, Debug)]
pub struct Projection {
    whole: WholeRun,
    outline: Outline,
    /// The name of each step's task.
    tasks: Vec<String>,
    /// Whether each step is placed: such a step has one result for all attempts.
    placed: Vec<bool>,
    hostnames: HashMap<NodeId, String>,
    /// The position of each execution's result, and when the execution was leased if that is known.
    positions: HashMap<ExecutionId, ResultPosition>,
    /// The results that pending retries have replaced: they count again when the retry is withdrawn.
    former: HashMap<ExecutionId, Former>,
    /// Executions whose events lack a part of the view.
    incomplete: BTreeSet<ExecutionId>,
    /// The last applied event.
    seq: u64,
    is_derived: bool,
}

/// A result that a retry has replaced, and its key among the results of its step.
#[derive(Clone, Debug)]
struct Former {
    key: String,
    result: InstanceResult,
}

/// The position of an execution's result in the view.
#[derive(Clone, Debug)]
struct ResultPosition {
    step: u32,
    key: String,
    leased_at: Option<Timestamp>,
}

impl Projection {
    /// Creates a projection. `whole` must have been read after the event `seq` was committed.
    pub fn new(whole: WholeRun, plan: &Plan, seq: u64) -> Self {
        let hostnames = plan.nodes.iter().map(|node| (node.id, node.hostname.clone())).collect();
        let mut projection = Self {
            whole,
            outline: Outline::of_plan(plan),
            tasks: plan.steps.iter().map(|step| step.name.clone()).collect(),
            placed: plan.steps.iter().map(|step| matches!(step.place, Where::Placed(_))).collect(),
            hostnames,
            positions: HashMap::new(),
            former: HashMap::new(),
            incomplete: BTreeSet::new(),
            seq,
            is_derived: false,
        };
        projection.index();
        projection
    }

    /// Replaces the view by one that was read after the event `seq` was committed.
    pub fn replace(&mut self, whole: WholeRun, seq: u64) {
        (self.whole, self.seq, self.is_derived) = (whole, seq, false);
        self.incomplete.clear();
        self.index();
    }

    fn index(&mut self) {
        self.keep_last_attempts();
        let leased_at = |execution| self.positions.get(execution).and_then(|position| position.leased_at);
        let results = self.whole.results.iter().flat_map(|(step, results)| {
            results.iter().map(|(key, result)| {
                let position =
                    ResultPosition { step: *step, key: key.clone(), leased_at: leased_at(&result.execution) };
                (result.execution, position)
            })
        });
        self.positions = results.collect();
    }

    /// Keeps the last attempt of each placed step without items. The attempts have different nodes, and may be on different
    /// pages of the view if one was added while they were read.
    fn keep_last_attempts(&mut self) {
        for (step, results) in &mut self.whole.results {
            if self.placed.get(*step as usize) == Some(&true)
                && let Some(last) =
                    results.values().filter(|one| one.item.is_none()).map(|one| one.attempts).max()
            {
                results.retain(|_, one| one.item.is_some() || one.attempts == last);
            }
        }
    }

    pub fn whole(&mut self) -> &WholeRun {
        if !std::mem::replace(&mut self.is_derived, true) {
            self.whole.derive(&self.outline);
            let WholeRun { run, results } = &mut self.whole;
            let waits = |step: &u32| {
                results
                    .get(step)
                    .is_some_and(|step| step.values().any(|result| result.status == Status::Pending))
            };
            run.waiting.retain(|waiting| waits(&waiting.step));
        }
        &self.whole
    }

    /// Returns the number of the last applied event.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Returns the nodes of an event without a known hostname; [`set_hostname`](Self::set_hostname) must be called
    /// before the event is applied.
    pub fn unknown_nodes(&self, event: &Event) -> Vec<NodeId> {
        let added: &[AddedExecution] = match &event.body {
            EventBody::ExecutionsAdded { executions } => executions,
            _ => &[],
        };
        let nodes = event.node.into_iter().chain(added.iter().filter_map(|execution| execution.node));
        nodes.filter(|node| !self.hostnames.contains_key(node)).collect()
    }

    pub fn set_hostname(&mut self, node: NodeId, hostname: String) {
        self.hostnames.insert(node, hostname);
    }

    /// Sets why the run and its steps wait.
    pub fn set_waiting(&mut self, pending_reason: Option<String>, waiting: Vec<StepWaiting>) {
        self.whole.run.summary.pending_reason = pending_reason;
        self.whole.run.waiting = waiting;
        self.is_derived = false;
    }

    /// Returns the executions that have to be read because their events lack a part of the view;
    /// [`complete`](Self::complete) completes them.
    pub fn take_incomplete(&mut self) -> BTreeSet<ExecutionId> {
        std::mem::take(&mut self.incomplete)
    }

    /// Completes the result of an execution that was read.
    pub fn complete(&mut self, execution: &Execution) {
        if let Some(hostname) = &execution.node {
            self.bind(execution.id, hostname);
        }
        let Some(result) = self.result(execution.id) else { return };
        result.status = execution.status;
        result.attempts = execution.attempt;
        result.node.clone_from(&execution.node);
        result.duration = execution.duration;
        result.exit_code = execution.exit_code;
        result.error.clone_from(&execution.error);
        result.reason.clone_from(&execution.reason);
        if execution.failed_for_good.is_some() {
            result.failed_for_good.clone_from(&execution.failed_for_good);
        }
        result.reused = execution.reused;
        result.cached = execution.cached;
        result.outputs.clone_from(&execution.outputs);
    }

    /// Applies an event. Events that were applied before change nothing.
    pub fn apply(&mut self, event: &Event) {
        if event.seq <= self.seq {
            return;
        }
        (self.seq, self.is_derived) = (event.seq, false);
        let at = event.at;
        let summary = &mut self.whole.run.summary;
        match &event.body {
            EventBody::RunTaken { owner, .. } => summary.owner = *owner,
            EventBody::RunCancelRequested {} => summary.cancel_requested_at = Some(at),
            EventBody::RunPauseSet { paused, .. } => {
                summary.paused_at = paused.then_some(at);
                summary.paused = *paused && !summary.state.is_terminal();
            }
            EventBody::RunAdmitted { .. } => summary.pending_reason = None,
            // The metrics have the counts.
            EventBody::RunChecked { .. } | EventBody::RunActed { .. } => self.whole.run.metrics = None,
            EventBody::RunWoken {} => summary.pending_reason = None,
            EventBody::RunMoved { path, end, .. } => self.move_run(path, end.as_ref(), at),
            EventBody::ExecutionsAdded { executions } => {
                for execution in executions {
                    self.add(execution, at);
                }
            }
            EventBody::ExecutionLeased {} => self.lease(event),
            EventBody::ExecutionStarted {} => {
                self.change(event, Status::Leased, |result| result.status = Status::Running);
            }
            EventBody::ExecutionFinished(Reported(outcome)) => self.finish(event, outcome),
            EventBody::ExecutionLost { reason } => {
                let lost = self.change(event, Status::Running, |result| {
                    result.status = Status::Lost;
                    result.error = Some(reason.clone());
                });
                // The event does not contain how long it ran.
                self.incomplete.extend(event.execution.filter(|_| lost));
            }
            EventBody::ExecutionCancelRequested { reason } => {
                self.change(event, Status::Pending, |result| {
                    result.status = Status::Cancelled;
                    result.reason = Some(reason.clone());
                });
                self.withdraw(event);
            }
            EventBody::ApprovalDecided { approved, reason } => {
                let by = event.by.clone().unwrap_or_default();
                let decision = Decision { approved: *approved, reason: reason.clone(), by };
                self.change(event, Status::Pending, |result| {
                    if decision.approved {
                        result.status = Status::Succeeded;
                        result.duration = Some(Span::default());
                        result.outputs = decision.outputs(at);
                    } else {
                        result.status = Status::Failed;
                        result.error = Some(decision.rejection());
                    }
                });
            }
            EventBody::ExecutionGivenUp { error } => {
                self.change(event, Status::Pending, |result| {
                    result.status = Status::Failed;
                    result.error = Some(error.clone());
                });
            }
            EventBody::ExecutionSkipped { reason } => {
                self.change(event, Status::Pending, |result| {
                    result.status = Status::Skipped;
                    result.reason = Some(reason.clone());
                });
                self.withdraw(event);
            }
            EventBody::InstanceFailed { step, item, reason } => {
                let Some(execution) = event.execution else { return };
                if self.result(execution).is_none() && !self.is_former(at) {
                    self.reveal(execution, *step, *item, event.node);
                }
                if let Some(result) = self.result(execution) {
                    result.failed_for_good = Some(reason.clone());
                }
            }
            EventBody::RunCreated { .. }
            | EventBody::ClusterCreated { .. }
            | EventBody::ClusterChanged { .. }
            | EventBody::ClusterDeleted { .. }
            | EventBody::JobApplied { .. }
            | EventBody::JobPauseSet { .. }
            | EventBody::JobDeleted { .. }
            | EventBody::JobDecided { .. }
            | EventBody::BackfillCreated { .. }
            | EventBody::BackfillMoved { .. }
            | EventBody::BackfillCancelled { .. }
            | EventBody::JobNotTriggered { .. }
            | EventBody::TriggersFollowed { .. }
            | EventBody::NodeRegistered { .. }
            | EventBody::NodeMoved { .. }
            | EventBody::NodeDrainSet { .. }
            | EventBody::NodeProblemsSet { .. }
            | EventBody::NodeDeleted { .. }
            | EventBody::DeliveryQueued { .. }
            | EventBody::DeliveryTaken { .. }
            | EventBody::DeliveryTried { .. }
            | EventBody::DeliveryRequested { .. }
            | EventBody::Unknown(_) => {}
        }
    }

    fn move_run(&mut self, path: &[RunState], end: Option<&Ended>, at: Timestamp) {
        let summary = &mut self.whole.run.summary;
        let Some(to) = path.last().copied().filter(|_| !summary.state.is_terminal()) else { return };
        let is_new = StateStay::follow(&mut self.whole.run.states, summary.state, path, at);
        // Only the server derives them.
        self.whole.run.metrics = None;
        let was_retrying = summary.state == RunState::Retrying;
        summary.state = to;
        summary.status = to.status();
        summary.pending_reason = None;
        if is_new && was_retrying && path.first() == Some(&RunState::Pending) {
            self.begin_round();
        }
        let summary = &mut self.whole.run.summary;
        if path.contains(&RunState::Running) {
            summary.started_at.get_or_insert(at);
        }
        if to.is_terminal() {
            summary.finished_at = Some(at);
            summary.duration = summary.started_at.map(|started| between(started, at));
            summary.partial = end.is_some_and(|end| end.partial);
            summary.error = end.and_then(|end| end.error.clone());
            summary.paused = false;
            self.whole.run.silent.clear();
        }
    }

    /// The results of a new round replace all others.
    fn begin_round(&mut self) {
        let WholeRun { run, results } = &mut self.whole;
        results.clear();
        run.waiting.clear();
        self.incomplete.clear();
        if let Some(round) = &mut run.round {
            (round.number, round.next_at) = (round.number.saturating_add(1), None);
        }
    }

    /// Returns the round that the view shows, from 1.
    fn round(&self) -> u32 {
        self.whole.run.round.map_or(1, |round| round.number)
    }

    /// Returns whether something happened in a round before the one that the view shows.
    fn is_former(&self, at: Timestamp) -> bool {
        let mut stays = self.whole.run.states.iter();
        self.round() > 1 && stays.any(|stay| stay.state == RunState::Pending && stay.entered_at >= at)
    }

    fn hostname(&self, node: NodeId) -> String {
        self.hostnames.get(&node).cloned().unwrap_or_else(|| node.to_string())
    }

    /// Returns the result of an execution that was added.
    fn added(&self, added: &AddedExecution) -> InstanceResult {
        InstanceResult {
            step: added.step,
            task: self.tasks.get(added.step as usize).cloned().unwrap_or_default(),
            node: added.node.map(|node| self.hostname(node)),
            item: added.item,
            status: added.status,
            attempts: added.attempt,
            duration: added.duration,
            exit_code: added.exit_code,
            error: added.error.clone(),
            reason: added.reason.clone(),
            failed_for_good: None,
            stderr: None,
            waits: None,
            reused: added.reused,
            cached: added.cached,
            outputs: added.outputs.clone(),
            execution: added.id,
        }
    }

    fn add(&mut self, added: &AddedExecution, at: Timestamp) {
        if added.round.unwrap_or(1) < self.round() {
            return;
        }
        let is_placed = self.placed.get(added.step as usize).copied().unwrap_or(added.node.is_none());
        let result = self.added(added);
        let key = result.key();
        let results = self.whole.results.entry(added.step).or_default();
        // After a final failure only a retry that was withdrawn can follow.
        let is_newer =
            |earlier: &InstanceResult| earlier.attempts < added.attempt && earlier.failed_for_good.is_none();
        let former = if is_placed && added.item.is_none() {
            if !results.values().all(is_newer) {
                return;
            }
            std::mem::take(results).pop_first()
        } else {
            if !results.get(&key).is_none_or(is_newer) {
                return;
            }
            results.remove_entry(&key)
        };
        if let Some((key, result)) = former {
            // An earlier attempt is kept no longer than the one after it.
            self.former.remove(&result.execution);
            self.former.insert(added.id, Former { key, result });
        }
        // An older server sends fewer facts about an execution that ended when it was created.
        let is_incomplete = match added.status {
            Status::Pending | Status::Leased | Status::Running => false,
            Status::Succeeded => added.reused.is_none(),
            Status::Failed | Status::Lost => added.error.is_none(),
            Status::Skipped | Status::Cancelled => added.reason.is_none(),
        };
        self.incomplete.extend(is_incomplete.then_some(added.id));
        let leased_at = (added.status == Status::Leased).then_some(at);
        self.positions.insert(added.id, ResultPosition { step: added.step, key: key.clone(), leased_at });
        results.insert(key, result);
    }

    /// Returns the result of an execution; nothing if a later attempt replaced it.
    fn result(&mut self, execution: ExecutionId) -> Option<&mut InstanceResult> {
        let position = self.positions.get(&execution)?;
        let result = self.whole.results.get_mut(&position.step)?.get_mut(&position.key)?;
        (result.execution == execution).then_some(result)
    }

    /// Changes the result of the event's execution, unless its status is already after `latest`. Returns whether it was
    /// changed.
    fn change(&mut self, event: &Event, latest: Status, change: impl FnOnce(&mut InstanceResult)) -> bool {
        let result = event.execution.and_then(|execution| self.result(execution));
        let Some(result) = result.filter(|result| result.status.is_open() && result.status <= latest) else {
            return false;
        };
        result.waits = None;
        change(result);
        true
    }

    /// Shows the former result again, if the event's execution is a retry that ended before it was sent.
    fn withdraw(&mut self, event: &Event) {
        let Some(execution) = event.execution else { return };
        if self.result(execution).is_none_or(|result| result.status.is_open()) {
            return;
        }
        let Some(Former { key, result }) = self.former.remove(&execution) else { return };
        let Some(position) = self.positions.remove(&execution) else { return };
        let results = self.whole.results.entry(position.step).or_default();
        results.remove(&position.key);
        results.insert(key, result);
    }

    /// Shows a failed execution instead of its retry that was withdrawn. The first view had only the retry, so the
    /// failed execution has to be read. If the retry was withdrawn while the pages of the view were read, it had neither.
    fn reveal(&mut self, execution: ExecutionId, step: u32, item: Option<u32>, node: Option<NodeId>) {
        let key = match (item, node) {
            (Some(item), _) => format!("[{item}]"),
            (None, Some(node)) => self.hostname(node),
            (None, None) => UNBOUND.to_owned(),
        };
        let hostname = node.map(|node| self.hostname(node));
        let is_single = item.is_none() && self.placed.get(step as usize).copied().unwrap_or(false);
        let task = self.tasks.get(step as usize).cloned().unwrap_or_default();
        let results = self.whole.results.entry(step).or_default();
        // A placed retry that was not sent has no node.
        let unsent = if results.contains_key(&key) { key.as_str() } else { UNBOUND };
        let is_unsent = |result: &InstanceResult| {
            matches!(result.status, Status::Skipped | Status::Cancelled) && result.attempts > 1
        };
        let failed = match results.get(unsent) {
            Some(retry) if is_unsent(retry) => {
                let mut failed = retry.clone();
                results.remove(unsent);
                (failed.execution, failed.status, failed.node) = (execution, Status::Failed, hostname);
                failed.reason = None;
                failed
            }
            None if !is_single || results.is_empty() => InstanceResult {
                step,
                task,
                node: hostname,
                item,
                status: Status::Failed,
                attempts: 1,
                duration: None,
                exit_code: None,
                error: None,
                reason: None,
                failed_for_good: None,
                stderr: None,
                waits: None,
                reused: None,
                cached: false,
                outputs: Params::new(),
                execution,
            },
            Some(_) | None => return,
        };
        results.insert(key.clone(), failed);
        self.positions.insert(execution, ResultPosition { step, key, leased_at: None });
        self.incomplete.insert(execution);
    }

    /// Moves a placed result from no node to the key of its node.
    fn bind(&mut self, execution: ExecutionId, hostname: &str) {
        let Some(position) = self.positions.get_mut(&execution).filter(|position| position.key == UNBOUND)
        else {
            return;
        };
        if let Some(results) = self.whole.results.get_mut(&position.step)
            && let Some(result) = results.remove(UNBOUND)
        {
            results.insert(hostname.to_owned(), result);
            hostname.clone_into(&mut position.key);
        }
    }

    fn lease(&mut self, event: &Event) {
        let hostname = event.node.map(|node| self.hostname(node));
        let leased = self.change(event, Status::Pending, |result| {
            result.status = Status::Leased;
            result.node.clone_from(&hostname);
        });
        let position =
            event.execution.filter(|_| leased).and_then(|execution| self.positions.get_mut(&execution));
        let Some(position) = position else { return };
        position.leased_at = Some(event.at);
        if let Some((execution, hostname)) = event.execution.zip(hostname) {
            self.bind(execution, &hostname);
        }
    }

    fn finish(&mut self, event: &Event, outcome: &Outcome) {
        let position = event.execution.and_then(|execution| self.positions.get(&execution));
        let outcome = match position.and_then(|position| position.leased_at) {
            Some(leased_at) => fit_into_lease(outcome.clone(), leased_at),
            None => outcome.clone(),
        };
        self.change(event, Status::Running, |result| {
            result.exit_code = outcome.exit_code;
            result.duration = Some(between(outcome.started_at, outcome.finished_at));
            match outcome.verdict {
                Verdict::Succeeded => {
                    result.status = Status::Succeeded;
                    result.outputs = outcome.outputs;
                }
                Verdict::Failed => {
                    result.status = Status::Failed;
                    result.error = outcome.error;
                }
                Verdict::Cancelled => {
                    result.status = Status::Cancelled;
                    result.reason = Some(outcome.error.unwrap_or_else(|| "cancelled".to_owned()));
                }
            }
        });
    }
}

/// Returns a duration with the server's rounding.
fn between(started: Timestamp, finished: Timestamp) -> Span {
    let exact = Span(finished.duration_since(started).try_into().unwrap_or_default());
    exact.to_string().parse().unwrap_or(exact)
}
