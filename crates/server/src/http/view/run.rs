//! Owns how a run is shown: alone with every step's result on every node, and short in lists.

use std::collections::BTreeMap;

use downbeat_core::Span;
use downbeat_core::execution::{Execution as Record, Status};
use downbeat_core::ids::{ClusterId, ExecutionId, RunId, ServerId};
use downbeat_core::run::{RunRecord, RunState, RunStatus};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::execution::{Facts, Names, Waiting};
use super::schema;

/// The key of a placed step's result while no node is bound to it.
const UNBOUND: &str = "-";

/// One execution of a job, with the results of every step on every node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Run {
    #[serde(flatten)]
    pub summary: RunSummary,
    /// The lowest step that has not ended; null when all have.
    pub step: Option<u32>,
    /// Hostnames of the nodes that its targets came to.
    pub expected: Vec<String>,
    /// Instances (step × node) by the status of their last attempt.
    pub counts: Counts,
    /// By step, then by hostname; `-` stands for a placed step that no node has taken yet.
    #[schema(value_type = BTreeMap<String, BTreeMap<String, InstanceResult>>)]
    pub results: BTreeMap<u32, BTreeMap<String, InstanceResult>>,
    /// Placed steps that wait for a node, and why each node has not taken them; the first few.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<StepWaiting>,
    /// The definition that it runs, when asked for with `definition=1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub definition: Option<Value>,
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
    /// Where it stands, strictly.
    #[schema(schema_with = schema::run_state)]
    pub state: RunState,
    /// The coarse view, for people.
    #[schema(schema_with = schema::run_status)]
    pub status: RunStatus,
    /// Something failed, and the rest went on.
    pub partial: bool,
    /// How many steps its plan has.
    pub steps: u32,
    /// How many nodes its targets came to.
    pub nodes: u32,
    /// Who asked for it.
    pub by: String,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub started_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub finished_at: Option<Timestamp>,
    /// From start to finish.
    #[schema(value_type = Option<String>, example = "2.3s")]
    pub duration: Option<Span>,
    /// When somebody asked to cancel it.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub cancel_requested_at: Option<Timestamp>,
    pub error: Option<String>,
    /// The server that walks its plan.
    #[schema(value_type = Uuid)]
    pub owner: ServerId,
}

/// How one step went on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InstanceResult {
    /// Of the last attempt.
    #[schema(schema_with = schema::execution_status)]
    pub status: Status,
    pub attempts: u32,
    #[schema(value_type = Option<String>, example = "2.3s")]
    pub duration: Option<Span>,
    pub exit_code: Option<i32>,
    /// Why it failed or was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Why it was skipped or cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The last attempt.
    #[schema(value_type = Uuid)]
    pub execution: ExecutionId,
}

/// A placed step that waits for a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StepWaiting {
    pub step: u32,
    pub task: String,
    #[schema(value_type = Uuid)]
    pub execution: ExecutionId,
    pub nodes: Vec<Waiting>,
}

/// How many instances there are of each status. While a run goes on, those that have no attempt yet are pending.
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
    fn add(&mut self, status: Status) {
        let place = match status {
            Status::Pending => &mut self.pending,
            Status::Leased => &mut self.leased,
            Status::Running => &mut self.running,
            Status::Succeeded => &mut self.succeeded,
            Status::Failed => &mut self.failed,
            Status::Skipped => &mut self.skipped,
            Status::Cancelled => &mut self.cancelled,
            Status::Lost => &mut self.lost,
        };
        *place += 1;
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
    pub fn of(run: &RunRecord) -> Self {
        let steps: usize = run.definition.tasks.iter().map(|entry| entry.leaves().len()).sum();
        Self {
            id: run.id.clone(),
            job: run.job.clone(),
            cluster: run.cluster,
            state: run.state,
            status: run.state.status(),
            partial: run.end.as_ref().is_some_and(|end| end.partial),
            steps: u32::try_from(steps).unwrap_or(u32::MAX),
            nodes: u32::try_from(run.resolved.nodes.len()).unwrap_or(u32::MAX),
            by: run.by.clone(),
            created_at: run.created_at,
            started_at: run.started_at,
            finished_at: run.finished_at,
            duration: run
                .started_at
                .zip(run.finished_at)
                .map(|(started, finished)| Span(finished.duration_since(started).try_into().unwrap_or_default())),
            cancel_requested_at: run.cancel_requested_at,
            error: run.end.as_ref().and_then(|end| end.error.clone()),
            owner: run.owner,
        }
    }
}

impl Run {
    /// The run with its executions, which come in the order of their ids: a later attempt replaces an earlier one.
    pub fn of(run: &RunRecord, executions: &[Record], names: &Names) -> Self {
        let wanted = instances(run);
        let mut results: BTreeMap<u32, BTreeMap<String, InstanceResult>> = BTreeMap::new();
        let mut placed_attempt: BTreeMap<u32, u32> = BTreeMap::new();
        for record in executions {
            let step = results.entry(record.step).or_default();
            if record.pinned.is_none() {
                // One instance, whichever node had it last: the earlier attempts are in the list of executions.
                let newest = placed_attempt.entry(record.step).or_default();
                if record.attempt < *newest {
                    continue;
                }
                *newest = record.attempt;
                step.clear();
            }
            let node = record.node().map_or_else(|| UNBOUND.to_owned(), |node| names.get(node));
            if step.get(&node).is_none_or(|earlier| earlier.attempts <= record.attempt) {
                step.insert(node, InstanceResult::of(record));
            }
        }
        let mut counts = Counts::default();
        for result in results.values().flat_map(BTreeMap::values) {
            counts.add(result.status);
        }
        if !run.state.is_terminal() {
            let all: u64 = wanted.iter().sum();
            counts.pending += all.saturating_sub(counts.total());
        }
        let step = wanted.iter().zip(0..).find(|&(&wanted, index)| {
            let ended = results.get(&index).map_or(0, |step| {
                step.values().filter(|result| !result.status.is_open()).count() as u64
            });
            !run.state.is_terminal() && ended < wanted
        });
        Self {
            summary: RunSummary::of(run),
            step: step.map(|(_, index)| index),
            expected: run.resolved.nodes.iter().map(|node| node.hostname.clone()).collect(),
            counts,
            results,
            waiting: Vec::new(),
            definition: None,
        }
    }
}

/// How many instances each step has.
fn instances(run: &RunRecord) -> Vec<u64> {
    let entries = run.definition.tasks.iter().zip(&run.resolved.entries);
    entries
        .flat_map(|(entry, set)| {
            let nodes = set.and_then(|set| run.resolved.sets.get(set as usize)).map_or(1, |set| set.len() as u64);
            std::iter::repeat_n(nodes, entry.leaves().len())
        })
        .collect()
}

impl InstanceResult {
    fn of(record: &Record) -> Self {
        let facts = Facts::of(&record.state);
        Self {
            status: record.state.status(),
            attempts: record.attempt,
            duration: facts.duration(),
            exit_code: facts.exit_code,
            error: facts.error,
            reason: facts.reason,
            execution: record.id,
        }
    }
}
