//! Owns how a run is shown: as a summary, as a list of results, and short in lists.

use std::collections::BTreeMap;

use downbeat_core::Span;
use downbeat_core::backend::Params;
use downbeat_core::execution::{Execution as Record, Status};
use downbeat_core::ids::{ClusterId, ExecutionId, RunId, ServerId};
use downbeat_core::limits;
use downbeat_core::run::retry::waits_until;
use downbeat_core::run::{RolloutSize, RunBrief, RunRecord, RunState, RunStatus};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::cluster::Cluster;
use crate::execution::{Facts, Names, Waiting};
use crate::outline::{Outline, StepOutline};
use crate::plan::left_out;
use crate::problem::NodeReason;
use crate::progress::{InstanceState, StepProgress};
use crate::rollout::Rollout;
use crate::run_metrics::{RunMetrics, StateStay};
use crate::schema;

/// One execution of a job: a summary, whose size does not depend on the number of nodes and items. `results` lists what
/// became of each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Run {
    #[serde(flatten)]
    pub summary: RunSummary,
    /// The lowest step that has not ended; null if all have.
    pub step: Option<u32>,
    /// Instances (step × node, step × item) by the status of their last attempt that counts.
    pub counts: Counts,
    /// Nodes that matched its targets when it was created but were left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<Absent>,
    /// Its nodes that are stale or offline now, and what happens to their steps; only until the run ends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub silent: Vec<Absent>,
    /// The values of the job's params, including defaults.
    #[serde(default, skip_serializing_if = "Params::is_empty")]
    #[schema(value_type = Object)]
    pub params: Params,
    /// Its attempts as a whole, if its job has `retry`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round: Option<Round>,
    /// The progress of its roll-out, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
    /// The first steps that wait: placed ones with why no node runs them yet, others with the nodes that they wait for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<StepWaiting>,
    /// The states that it has entered, in this order. Empty if an older server executed it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub states: Vec<StateStay>,
    /// Null if an older server shows it, and while a client follows a run by its events.
    #[serde(default)]
    pub metrics: Option<RunMetrics>,
    /// Its definition, if requested with `definition=1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub definition: Option<Value>,
}

/// An attempt of a whole run. All counts and results of a run are those of its last round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Round {
    /// The number of the current round, from 1.
    pub number: u32,
    /// How many rounds there are at most.
    pub most: u32,
    /// When the next round begins, while the run waits for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_at: Option<Timestamp>,
}

impl Round {
    fn of(run: &RunRecord) -> Option<Self> {
        // A run that a person retried has one round.
        let retry = run.definition.retry.filter(|_| run.retry_of.is_none())?;
        Some(Self { number: run.live.round, most: retry.max.saturating_add(1), next_at: waits_until(run) })
    }
}

/// Nodes that share a reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Absent {
    pub reason: String,
    #[serde(flatten)]
    pub nodes: FewNodes,
}

/// The number of some nodes, and the first of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FewNodes {
    pub count: u64,
    /// The hostnames of at most 20 of them.
    pub nodes: Vec<String>,
}

impl FewNodes {
    pub fn add(&mut self, hostname: &str) {
        self.count += 1;
        if self.nodes.len() < limits::NODES_NAMED {
            self.nodes.push(hostname.to_owned());
        }
    }
}

impl Absent {
    /// Groups nodes by reason, in the order of the first node of each.
    pub fn group(nodes: &[NodeReason]) -> Vec<Self> {
        let mut groups: Vec<Self> = Vec::new();
        for NodeReason { node, reason } in nodes {
            match groups.iter_mut().find(|group| group.reason == *reason) {
                Some(group) => group.nodes.add(node),
                None => {
                    let mut nodes = FewNodes::default();
                    nodes.add(node);
                    groups.push(Self { reason: reason.clone(), nodes });
                }
            }
        }
        groups
    }
}

/// A run in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunSummary {
    #[schema(value_type = String)]
    pub id: RunId,
    /// The job's name; null for an inline definition without one.
    pub job: Option<String>,
    #[schema(value_type = Uuid)]
    pub cluster: ClusterId,
    /// The cluster's name; its id if the name is not known.
    // Older servers do not send it.
    #[serde(default)]
    pub cluster_name: String,
    /// The exact state.
    #[schema(schema_with = schema::run_state)]
    pub state: RunState,
    /// The coarse status, for people.
    #[schema(schema_with = schema::run_status)]
    pub status: RunStatus,
    /// Something failed, and the rest continued.
    pub partial: bool,
    /// The progress of each step; in a list of runs, the number of steps in its plan.
    pub steps: Steps,
    /// The number of nodes that its targets resolved to.
    pub nodes: u32,
    /// Who requested it.
    pub by: String,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    /// From start to finish.
    #[schema(value_type = Option<String>, example = "2.3s")]
    pub duration: Option<Span>,
    /// When its cancellation was requested.
    pub cancel_requested_at: Option<Timestamp>,
    /// A person has paused it: no further execution starts.
    #[serde(default)]
    pub paused: bool,
    /// Since when it is paused.
    pub paused_at: Option<Timestamp>,
    /// The version of the stored job that it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_version: Option<u64>,
    /// The time of the schedule that started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled_at: Option<Timestamp>,
    /// The run that this one retries.
    #[schema(value_type = Option<String>)]
    pub retry_of: Option<RunId>,
    /// Results are not read from the cache. They are still written to it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_cache: bool,
    /// Why it has not started, while it waits for admission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_reason: Option<String>,
    pub error: Option<String>,
    /// The server that executes its plan.
    #[schema(value_type = Uuid)]
    pub owner: ServerId,
}

impl RunSummary {
    /// Returns the state that decides which cancelled instances failed: that of a cancelled run, if that was requested.
    pub(crate) fn state_or_cancelled(&self) -> RunState {
        if self.cancel_requested_at.is_some() { RunState::Cancelled } else { self.state }
    }
}

/// A run in a list, with its progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunRow {
    #[serde(flatten)]
    pub summary: RunSummary,
    /// Its instances that have an attempt, by the status of the last attempt that counts. Null if an older program
    /// changed the run, until it has ended and was counted.
    #[serde(default)]
    pub counts: Option<Counts>,
    /// How far it is, if it is a roll-out. Absent if an older program created it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutRow>,
}

/// How far a roll-out is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RolloutRow {
    /// The last wave that began; from 1, null before the first.
    pub wave: Option<u32>,
    /// The number of waves.
    pub waves: u32,
    /// The failures that count against the budget: each node once.
    pub failed: u32,
    /// How many nodes may fail. After one more failure, no further wave starts.
    pub budget: u32,
}

impl RolloutRow {
    fn of(run: &RunBrief) -> Option<Self> {
        let RolloutSize { waves, budget } = run.rollout?;
        let progress = run.live.rollout;
        let (wave, failed) = (progress.map(|now| now.wave), progress.map_or(0, |now| now.failed));
        Some(Self { wave, waves, failed, budget })
    }
}

impl RunRow {
    pub fn of(run: &RunBrief, counts: Option<&BTreeMap<Status, u64>>) -> Self {
        let counts = counts.map(|counts| {
            let mut sums = Counts::default();
            counts.iter().for_each(|(status, count)| sums.add(*status, *count));
            sums
        });
        Self { summary: RunSummary::of(run), counts, rollout: RolloutRow::of(run) }
    }
}

/// The steps of a run: their number, or the progress of each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Steps {
    Count(u32),
    Each(Vec<StepProgress>),
}

impl Steps {
    pub fn count(&self) -> usize {
        match self {
            Steps::Count(count) => *count as usize,
            Steps::Each(steps) => steps.len(),
        }
    }
}

/// The result of one step on one node, or for one item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InstanceResult {
    pub step: u32,
    /// The task's name, or `backend action`.
    pub task: String,
    /// The hostname of its node; null while no node has it.
    pub node: Option<String>,
    /// Its index among the items of its task's `for_each`, from 0.
    pub item: Option<u32>,
    /// The status of the last attempt that counts: a retry that was withdrawn before it was sent does not.
    #[schema(schema_with = schema::execution_status)]
    pub status: Status,
    pub attempts: u32,
    #[schema(value_type = Option<String>, example = "2.3s")]
    pub duration: Option<Span>,
    pub exit_code: Option<i32>,
    /// Why it failed or was lost.
    pub error: Option<String>,
    /// Why it was skipped or cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why no further attempt follows, if it failed for good. Absent if an older server ran it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_for_good: Option<String>,
    /// The last line of its standard error, if it failed; only for the first failures of a page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
    /// Why it has not started, while it waits for its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<String>,
    /// The execution of an earlier run whose result was reused; this one did not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Uuid>)]
    pub reused: Option<ExecutionId>,
    /// The reused result came from the cache: an earlier result with equal inputs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cached: bool,
    /// The values of the outputs that its task declares.
    #[serde(default, skip_serializing_if = "Params::is_empty")]
    #[schema(value_type = Object)]
    pub outputs: Params,
    /// The execution of the last attempt that counts.
    #[schema(value_type = Uuid)]
    pub execution: ExecutionId,
}

/// A step that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StepWaiting {
    pub step: u32,
    pub task: String,
    /// The item that waits, if the step has `for_each`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<u32>,
    /// How many other items of the step also wait; for a step on several nodes, how many nodes `nodes` does not list.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub others: u64,
    /// It waits for the nodes in `nodes`; otherwise any node may run it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bound: bool,
    #[schema(value_type = Uuid)]
    pub execution: ExecutionId,
    pub nodes: Vec<Waiting>,
}

pub(crate) fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The number of instances with each status. Until a run ends, instances without an attempt count as pending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Counts {
    pub pending: u64,
    pub leased: u64,
    pub running: u64,
    pub succeeded: u64,
    pub failed: u64,
    pub skipped: u64,
    pub cancelled: u64,
    pub lost: u64,
}

impl Counts {
    fn add(&mut self, status: Status, more: u64) {
        let count = match status {
            Status::Pending => &mut self.pending,
            Status::Leased => &mut self.leased,
            Status::Running => &mut self.running,
            Status::Succeeded => &mut self.succeeded,
            Status::Failed => &mut self.failed,
            Status::Skipped => &mut self.skipped,
            Status::Cancelled => &mut self.cancelled,
            Status::Lost => &mut self.lost,
        };
        *count += more;
    }

    pub fn total(&self) -> u64 {
        self.open() + self.ended()
    }

    pub fn open(&self) -> u64 {
        self.pending + self.leased + self.running
    }

    pub fn ended(&self) -> u64 {
        self.succeeded + self.failed + self.skipped + self.cancelled + self.lost
    }
}

impl RunSummary {
    pub fn of(run: &RunBrief) -> Self {
        Self {
            id: run.id.clone(),
            job: run.job.clone(),
            cluster: run.cluster,
            cluster_name: Cluster::name_of(run.cluster),
            state: run.state(),
            status: run.state().status(),
            partial: run.live.end().is_some_and(|end| end.partial),
            steps: Steps::Count(run.steps),
            nodes: run.nodes,
            by: run.by.clone(),
            created_at: run.created_at,
            started_at: run.live.started_at,
            finished_at: run.live.finished_at(),
            duration: run.live.started_at.zip(run.live.finished_at()).map(|(started, finished)| {
                Span(finished.duration_since(started).try_into().unwrap_or_default())
            }),
            cancel_requested_at: run.live.cancel_requested_at,
            paused: run.live.paused_at.is_some() && !run.state().is_terminal(),
            paused_at: run.live.paused_at,
            job_version: run.job_version,
            scheduled_at: run.id.schedule().map(|(_, _, at)| at),
            retry_of: run.retry_of.clone(),
            no_cache: run.no_cache,
            pending_reason: None,
            error: run.live.end().and_then(|end| end.error.clone()),
            owner: run.live.owner,
        }
    }
}

/// The results of one step, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTotals {
    pub all: u64,
    pub ended: u64,
    /// The task was skipped as a whole, or its items could not be evaluated: it has one result for all items.
    pub as_a_whole: bool,
}

impl Run {
    /// Creates the summary of a run from its results: those of each step, counted.
    pub fn of(run: &RunRecord, mut steps: Vec<StepProgress>, totals: &[StepTotals]) -> Self {
        let outline = Outline::of_run(run);
        let mut counts = Counts::default();
        for (outline, (step, totals)) in outline.steps.iter().zip(steps.iter_mut().zip(totals)) {
            step.instances = outline.known_instances(*totals);
            step.counts.iter().for_each(|(status, count)| counts.add(*status, *count));
        }
        let mut summary = RunSummary::of(&run.into());
        summary.steps = Steps::Each(steps);
        let mut shown = Self {
            summary,
            step: None,
            counts,
            left_out: Absent::group(&left_out(&run.resolved)),
            silent: Vec::new(),
            params: run.params.clone(),
            round: Round::of(run),
            rollout: None,
            waiting: Vec::new(),
            states: StateStay::all_of(run),
            metrics: Some(RunMetrics::of(run)),
            definition: None,
        };
        shown.derive(&outline, totals);
        shown
    }

    pub fn steps(&self) -> &[StepProgress] {
        match &self.summary.steps {
            Steps::Each(steps) => steps,
            Steps::Count(_) => &[],
        }
    }

    /// Derives the current step, and adds the instances to come to the counts of results.
    pub(crate) fn derive(&mut self, outline: &Outline, totals: &[StepTotals]) {
        let has_ended = self.summary.state.is_terminal();
        let steps = || outline.steps.iter().zip(totals);
        if !has_ended {
            // A step whose items are not known yet counts as one pending instance.
            let wanted = |(step, totals): (&StepOutline, &StepTotals)| match step.wanted(*totals) {
                Some(wanted) => wanted,
                None => totals.all.max(1),
            };
            self.counts.pending += steps().map(wanted).sum::<u64>().saturating_sub(self.counts.total());
        }
        let is_to_come =
            |(_, (step, totals)): &(u32, (&StepOutline, &StepTotals))| match step.wanted(**totals) {
                Some(wanted) => totals.ended < wanted,
                None => totals.all == 0 || totals.ended < totals.all,
            };
        let step = (0..).zip(steps()).find(is_to_come).map(|(index, _)| index);
        self.step = step.filter(|_| !has_ended);
    }
}

/// Results by step, then by [key](InstanceResult::key).
pub type Results = BTreeMap<u32, BTreeMap<String, InstanceResult>>;

/// A run with its results: a client builds it from pages of results and from events.
#[derive(Clone, Debug, PartialEq)]
pub struct WholeRun {
    pub run: Run,
    pub results: Results,
}

impl WholeRun {
    /// Creates a run with these results.
    pub fn new(run: Run, results: impl IntoIterator<Item = InstanceResult>) -> Self {
        let mut whole = Self { run, results: Results::new() };
        whole.extend(results);
        whole
    }

    /// Adds results. Of two results of one instance, the one with more attempts stays.
    pub fn extend(&mut self, results: impl IntoIterator<Item = InstanceResult>) {
        for result in results {
            let step = self.results.entry(result.step).or_default();
            let key = result.key();
            if step.get(&key).is_none_or(|earlier| earlier.attempts <= result.attempts) {
                step.insert(key, result);
            }
        }
    }

    /// Derives the counts, the current step and the progress of a roll-out from the results and the state.
    pub fn derive(&mut self, outline: &Outline) {
        let totals: Vec<StepTotals> = (0..)
            .zip(&outline.steps)
            .map(|(step, _)| self.results.get(&step).map(StepTotals::of).unwrap_or_default())
            .collect();
        let mut counts = Counts::default();
        self.results.values().flat_map(BTreeMap::values).for_each(|result| counts.add(result.status, 1));
        self.run.counts = counts;
        self.run.derive(outline, &totals);
        let results = &self.results;
        let state = |step: u32, node: &str| results.get(&step)?.get(node).map(InstanceState::from);
        self.run.rollout = Rollout::of(outline, &self.run.summary, state);
    }
}

impl StepTotals {
    fn of(results: &BTreeMap<String, InstanceResult>) -> Self {
        let ended = results.values().filter(|result| !result.status.is_open()).count();
        let as_a_whole = results.values().any(|result| result.item.is_none());
        Self { all: results.len() as u64, ended: ended as u64, as_a_whole }
    }
}

impl InstanceResult {
    pub fn of(record: &Record, task: String, names: &Names) -> Self {
        let facts = Facts::of(&record.state);
        Self {
            step: record.step(),
            task,
            node: record.node().map(|node| names.get(node)),
            item: record.item(),
            status: record.state.status(),
            attempts: record.attempt,
            duration: facts.duration(),
            exit_code: facts.exit_code,
            error: facts.error,
            reason: facts.reason,
            failed_for_good: record.failed_for_good.as_deref().map(str::to_owned),
            stderr: None,
            waits: None,
            reused: record.reused,
            cached: record.is_cached(),
            outputs: facts.outputs,
            execution: record.id,
        }
    }

    /// Returns its key among the results of its step: the hostname, `[3]` for the item with that number, or `-` while no
    /// node has it.
    pub fn key(&self) -> String {
        match (self.item, &self.node) {
            (Some(item), _) => format!("[{item}]"),
            (None, Some(node)) => node.clone(),
            (None, None) => UNBOUND.to_owned(),
        }
    }
}

/// The key of a placed step's result while no node is bound to it.
pub const UNBOUND: &str = "-";

#[cfg(test)]
mod tests {
    use downbeat_core::work::Origin;
    use std::sync::Arc;

    use downbeat_core::execution::{Lease, Outcome, State, Verdict};
    use downbeat_core::ids::{LeaseToken, NodeId, SessionId};
    use downbeat_core::plan::{NodeIx, NodeRef, Resolved, SetIx};
    use downbeat_core::run::{RunEnd, RunMade, RunStage};
    use serde_json::json;

    use super::*;
    use crate::Execution;

    fn second(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn node(number: u128) -> NodeId {
        NodeId(uuid::Uuid::from_u128(number))
    }

    /// Two nodes: a step on both, then a placed one.
    fn run(state: RunState) -> RunRecord {
        let task = json!({"backend": "test", "action": "noop"});
        let definition =
            json!({"target": "all", "tasks": [task, {"backend": "test", "action": "noop", "placement": {}}]});
        let nodes = [1, 2].map(|number| NodeRef { id: node(number), hostname: format!("web-0{number}") });
        let made = RunMade {
            id: RunId::from("r"),
            cluster: ClusterId::DEFAULT,
            job: None,
            definition: Arc::new(serde_json::from_value(definition).unwrap()),
            resolved: Arc::new(Resolved {
                nodes: nodes.to_vec(),
                sets: vec![NodeIx::first(2).collect()],
                entries: vec![Some(SetIx(0)), None],
                idempotent: Vec::new(),
                waves: Vec::new(),
                left_out: Vec::new(),
                retry: None,
            }),
            by: "test".to_owned(),
            idempotency_key: None,
            request_hash: None,
            created_at: second(0),
            params: Default::default(),
            retry_of: None,
            no_cache: false,
            job_version: None,
        };
        let mut run = RunRecord::new(made, ServerId(uuid::Uuid::nil()));
        run.live.started_at = Some(second(1));
        run.live.stage = RunStage::of(state, false, Some((second(2), RunEnd::default()))).unwrap();
        run
    }

    fn lease(number: u128) -> Lease {
        let (token, session) = (LeaseToken(uuid::Uuid::nil()), SessionId(uuid::Uuid::nil()));
        Lease { token, node: node(number), session, granted_at: second(2) }
    }

    fn succeeded(number: u128) -> State {
        let (started_at, finished_at) = (second(3), second(5));
        let outcome = Outcome {
            verdict: Verdict::Succeeded,
            exit_code: Some(0),
            error: None,
            started_at,
            finished_at,
            outputs: Default::default(),
            received_at: None,
        };
        State::Succeeded { lease: Some(lease(number)), outcome }
    }

    fn lost(number: u128) -> State {
        State::Lost {
            lease: lease(number),
            started_at: None,
            reason: "its node went away".to_owned(),
            at: second(4),
        }
    }

    fn execution(id: u128, step: u32, pinned: Option<u128>, attempt: u32, state: State) -> Record {
        Record {
            id: ExecutionId(uuid::Uuid::from_u128(id)),
            of: Origin::Step { run: RunId::from("r"), step, item: None },
            pinned: pinned.map(node),
            attempt,
            created_at: second(1),
            state,
            params: Default::default(),
            reused: None,
            limits: None,
            cache_key: None,
            former: None,
            failed_for_good: None,
            round: 1,
        }
    }

    /// Returns the run as a client sees it that has read all results.
    fn whole(run: &RunRecord, executions: &[Record], names: &Names) -> WholeRun {
        let result = |record| InstanceResult::of(record, "t".to_owned(), names);
        let mut whole = WholeRun::new(Run::of(run, Vec::new(), &[]), executions.iter().map(result));
        whole.derive(&Outline::of_run(run));
        whole
    }

    #[test]
    fn the_last_attempt_is_the_result_and_only_it_counts() {
        let run = run(RunState::Running);
        let executions = [
            execution(1, 0, Some(1), 1, lost(1)),
            execution(2, 0, Some(2), 1, succeeded(2)),
            execution(3, 0, Some(1), 2, State::Pending { not_before: None }),
        ];
        let shown = whole(&run, &executions, &Names::of_run(&run));
        let retried = &shown.results[&0]["web-01"];
        assert_eq!((retried.status, retried.attempts, retried.error.as_deref()), (Status::Pending, 2, None));
        assert_eq!(shown.run.counts, Counts { pending: 2, succeeded: 1, ..Counts::default() });
        assert_eq!(shown.run.step, Some(0));
        assert_eq!(shown.results[&0]["web-02"].duration, Some(Span::from_secs(2)));
    }

    /// A step for each of some items, then one more.
    fn fan_out(items: &Value) -> RunRecord {
        let task = json!({"backend": "test", "action": "noop"});
        let definition = json!({"tasks": [
            {"backend": "test", "action": "noop", "for_each": {"items": items}}, task]});
        let mut run = run(RunState::Running);
        let made = Arc::make_mut(&mut run.made);
        made.definition = Arc::new(serde_json::from_value(definition).unwrap());
        made.resolved = Arc::new(Resolved { entries: vec![None, None], ..Resolved::default() });
        run
    }

    fn item(id: u128, item: u32, attempt: u32, state: State) -> Record {
        let of = Origin::Step { run: RunId::from("r"), step: 0, item: Some(item) };
        Record { of, ..execution(id, 0, None, attempt, state) }
    }

    #[test]
    fn items_have_their_number_as_their_key_and_say_whose_they_are() {
        let run = fan_out(&json!(["a", "b", "c"]));
        let executions = [
            item(1, 0, 1, succeeded(1)),
            item(2, 1, 1, lost(1)),
            item(3, 1, 2, State::Pending { not_before: None }),
        ];
        let mut names = Names::default();
        names.insert(node(1), "web-01".to_owned());
        let shown = whole(&run, &executions, &names);
        assert_eq!(shown.results[&0].keys().collect::<Vec<_>>(), ["[0]", "[1]"]);
        let (first, second) = (&shown.results[&0]["[0]"], &shown.results[&0]["[1]"]);
        assert_eq!((first.item, first.node.as_deref()), (Some(0), Some("web-01")));
        assert_eq!((second.attempts, second.node.as_deref(), second.status), (2, None, Status::Pending));
        // The second item, the third, and the step after them.
        assert_eq!((shown.run.counts.pending, shown.run.counts.succeeded, shown.run.step), (3, 1, Some(0)));
    }

    #[test]
    fn items_that_an_expression_says_are_unknown_until_they_are_there() {
        let run = fan_out(&json!("{{ steps.list.outputs.all }}"));
        let shown = whole(&run, &[], &Names::default());
        assert_eq!((shown.run.counts.pending, shown.run.step), (2, Some(0)));
        let both = [item(1, 0, 1, succeeded(1)), item(2, 1, 1, succeeded(1))];
        let shown = whole(&run, &both, &Names::default());
        assert_eq!((shown.run.counts.pending, shown.run.step), (1, Some(1)));
    }

    #[test]
    fn a_fan_out_that_is_skipped_as_a_whole_has_ended() {
        let run = fan_out(&json!(["a", "b", "c"]));
        let state = State::Skipped { reason: "something failed".to_owned(), at: second(4) };
        let shown = whole(&run, &[execution(1, 0, None, 1, state)], &Names::default());
        assert_eq!((shown.run.counts.skipped, shown.run.counts.pending, shown.run.step), (1, 1, Some(1)));
    }

    #[test]
    fn what_came_from_the_cache_says_so_and_what_was_taken_over_does_not() {
        let run = fan_out(&json!(["a", "b"]));
        let mut executions = [item(1, 0, 1, succeeded(1)), item(2, 1, 1, succeeded(1))];
        for execution in &mut executions {
            execution.reused = Some(ExecutionId(uuid::Uuid::from_u128(9)));
        }
        executions[1].cache_key = Some("key".into());
        let shown = whole(&run, &executions, &Names::default());
        let cached = |key: &str| (shown.results[&0][key].cached, shown.results[&0][key].reused.is_some());
        assert_eq!((cached("[0]"), cached("[1]")), ((false, true), (true, true)));
        let listed = Execution::of(&executions[1], "t".to_owned(), &Names::default());
        assert!(listed.cached && listed.cache_key.as_deref() == Some("key") && listed.item == Some(1));
    }

    #[test]
    fn what_was_never_created_is_not_pending_once_the_run_has_ended() {
        let shown = whole(&run(RunState::Cancelled), &[], &Names::default());
        assert_eq!((shown.run.counts, shown.run.step), (Counts::default(), None));
    }

    #[test]
    fn a_summary_is_the_same_from_counts_as_from_results() {
        let run = run(RunState::Running);
        let executions = [
            execution(1, 0, Some(1), 1, succeeded(1)),
            execution(2, 0, Some(2), 1, lost(2)),
            execution(3, 1, None, 1, State::Pending { not_before: None }),
        ];
        let step = |step, counts: &[(Status, u64)]| StepProgress {
            step,
            task: "t".to_owned(),
            counts: counts.iter().copied().collect(),
            ..StepProgress::default()
        };
        let steps =
            vec![step(0, &[(Status::Succeeded, 1), (Status::Lost, 1)]), step(1, &[(Status::Pending, 1)])];
        let totals = [
            StepTotals { all: 2, ended: 2, as_a_whole: true },
            StepTotals { all: 1, ended: 0, as_a_whole: true },
        ];
        let counted = Run::of(&run, steps, &totals);
        let whole = whole(&run, &executions, &Names::of_run(&run));
        assert_eq!((counted.counts, counted.step), (whole.run.counts, whole.run.step));
        assert_eq!(counted.step, Some(1));
        assert_eq!(counted.steps().iter().map(|step| step.instances).collect::<Vec<_>>(), [2, 1]);
        let text = serde_json::to_string(&counted).unwrap();
        assert_eq!(serde_json::from_str::<Run>(&text).unwrap(), counted);
    }

    #[test]
    fn nodes_that_share_a_reason_are_counted_together_and_few_are_named() {
        let node = |number: usize, reason: &str| NodeReason::from((format!("w{number}"), reason));
        let many: Vec<NodeReason> = (0..30).map(|n| node(n, if n == 1 { "y" } else { "x" })).collect();
        let groups = Absent::group(&many);
        let shown: Vec<_> = groups.iter().map(|g| (&*g.reason, g.nodes.count, g.nodes.nodes.len())).collect();
        assert_eq!(shown, [("x", 29, limits::NODES_NAMED), ("y", 1, 1)]);
    }
}
