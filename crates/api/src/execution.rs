//! Owns how an execution is shown, and how node ids become hostnames.

use std::collections::HashMap;

use downbeat_core::Span;
use downbeat_core::backend::Params;
use downbeat_core::execution::{Execution as Record, Outcome, State, Status};
use downbeat_core::ids::{ExecutionId, NodeId, RunId, TaskId};
use downbeat_core::limits;
use downbeat_core::run::RunRecord;
use downbeat_core::spec::Limits;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::run::{UNBOUND, is_zero};
use crate::schema;

/// One attempt of one step, or of one standing task, on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Execution {
    #[schema(value_type = Uuid)]
    pub id: ExecutionId,
    /// Null for an execution of a standing task.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub run: Option<RunId>,
    pub step: u32,
    /// The task's name, or `backend action`.
    pub task: String,
    /// The standing task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Uuid>)]
    pub task_id: Option<TaskId>,
    /// Its index among the items of its task's `for_each`, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<u32>,
    /// The hostname of the node that runs, ran or will run it; null while no node is bound to it.
    pub node: Option<String>,
    #[schema(value_type = Option<Uuid>)]
    pub node_id: Option<NodeId>,
    /// From 1 in each round.
    pub attempt: u32,
    /// The round of its run, from 1; absent in the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round: Option<u32>,
    #[schema(schema_with = schema::execution_status)]
    pub status: Status,
    pub exit_code: Option<i32>,
    /// Why it failed or was lost.
    pub error: Option<String>,
    /// Why it was skipped or cancelled.
    pub reason: Option<String>,
    /// Why no further attempt follows, if it failed for good. Absent if an older server ran it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_for_good: Option<String>,
    pub created_at: Timestamp,
    /// A pending retry does not start before this time.
    pub not_before: Option<Timestamp>,
    pub leased_at: Option<Timestamp>,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    /// From start to finish.
    #[schema(value_type = Option<String>, example = "1.5s")]
    pub duration: Option<Span>,
    /// The execution of an earlier run whose result was reused; this one did not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Uuid>)]
    pub reused: Option<ExecutionId>,
    /// The reused result came from the cache: an earlier result with equal inputs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cached: bool,
    /// The limits that it uses from its lease to its end, with evaluated keys.
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    #[schema(value_type = Object)]
    pub limits: Limits,
    /// Identifies the inputs if its task is cached: equal keys mean equal results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_key: Option<String>,
    /// Its evaluated params, if its task's params contain expressions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub params: Option<Params>,
    /// The values of the outputs that its task declares.
    #[serde(default, skip_serializing_if = "Params::is_empty")]
    #[schema(value_type = Object)]
    pub outputs: Params,
    /// Why no node runs it yet, while it is pending. Only if a single execution is requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<Waiting>,
}

/// A node, and why it does not run a pending execution yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Waiting {
    /// `-` stands for all nodes.
    pub node: String,
    pub reason: String,
    /// A single word for the reason, which stays the same while times in the text change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// How many other nodes have the same reason and are not listed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub others: u64,
}

impl Waiting {
    /// Keeps the first nodes for each reason; the last of these counts the others. Reasons beyond a bound are counted
    /// together.
    pub fn group(all: Vec<Self>) -> Vec<Self> {
        let mut last_of: HashMap<String, (usize, usize)> = HashMap::new();
        let mut kept: Vec<Self> = Vec::new();
        let mut beyond = 0;
        for waiting in all {
            match last_of.get_mut(&waiting.reason) {
                Some((last, shown)) if *shown >= limits::NODES_PER_REASON => kept[*last].others += 1,
                _ if kept.len() >= limits::NODES_NAMED => beyond += 1,
                found => {
                    let shown = found.map_or(0, |(_, shown)| *shown);
                    last_of.insert(waiting.reason.clone(), (kept.len(), shown + 1));
                    kept.push(waiting);
                }
            }
        }
        if beyond > 0 {
            let reason = format!("{beyond} other nodes do not fit either");
            kept.push(Self { node: UNBOUND.to_owned(), reason, cause: None, others: 0 });
        }
        kept
    }
}

/// Hostnames of nodes.
#[derive(Clone, Debug, Default)]
pub struct Names(HashMap<NodeId, String>);

impl Names {
    /// Returns the hostnames of the nodes that a run resolved when it was created.
    pub fn of_run(run: &RunRecord) -> Self {
        Self(run.resolved.nodes.iter().map(|node| (node.id, node.hostname.clone())).collect())
    }

    pub fn insert(&mut self, node: NodeId, hostname: String) {
        self.0.insert(node, hostname);
    }

    pub fn has(&self, node: NodeId) -> bool {
        self.0.contains_key(&node)
    }

    /// Returns the hostname, or the id of a node that is no longer known.
    pub fn get(&self, node: NodeId) -> String {
        self.0.get(&node).cloned().unwrap_or_else(|| node.to_string())
    }
}

/// The facts about an execution's state that views show.
#[derive(Default)]
pub(crate) struct Facts {
    pub(crate) exit_code: Option<i32>,
    pub(crate) error: Option<String>,
    pub(crate) reason: Option<String>,
    pub(crate) not_before: Option<Timestamp>,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) finished_at: Option<Timestamp>,
    pub(crate) outputs: Params,
}

impl Facts {
    pub(crate) fn of(state: &State) -> Self {
        let none = Self::default();
        match state {
            State::Pending { not_before } => Self { not_before: *not_before, ..none },
            State::Leased { .. } => none,
            State::Running { started_at, .. } => Self { started_at: Some(*started_at), ..none },
            State::Succeeded { outcome, .. } => {
                Self { outputs: outcome.outputs.clone(), ..Self::reported(outcome) }
            }
            State::Failed { outcome, error, at, .. } => {
                Self { error: error.clone(), ..Self::ended(outcome.as_ref(), *at) }
            }
            State::Skipped { reason, at } => {
                Self { reason: Some(reason.clone()), finished_at: Some(*at), ..none }
            }
            State::Cancelled { outcome, reason, at, .. } => {
                Self { reason: Some(reason.clone()), ..Self::ended(outcome.as_ref(), *at) }
            }
            State::Lost { started_at, reason, at, .. } => {
                Self { error: Some(reason.clone()), started_at: *started_at, finished_at: Some(*at), ..none }
            }
        }
    }

    fn reported(outcome: &Outcome) -> Self {
        let (started_at, finished_at) = (Some(outcome.started_at), Some(outcome.finished_at));
        Self { exit_code: outcome.exit_code, started_at, finished_at, ..Self::default() }
    }

    /// The times of the agent's report, if there is one.
    fn ended(outcome: Option<&Outcome>, at: Timestamp) -> Self {
        outcome.map_or_else(|| Self { finished_at: Some(at), ..Self::default() }, Self::reported)
    }

    pub(crate) fn duration(&self) -> Option<Span> {
        let (started, finished) = (self.started_at?, self.finished_at?);
        // Both times are within the lease; if a server's clock was set back, the duration is zero, not negative.
        Some(Span(finished.duration_since(started).try_into().unwrap_or_default()))
    }
}

impl Execution {
    pub fn of(record: &Record, task: String, names: &Names) -> Self {
        let facts = Facts::of(&record.state);
        Self {
            id: record.id,
            run: Some(record.run()).filter(|run| !run.is_standing()).cloned(),
            step: record.step(),
            task,
            task_id: None,
            item: record.item(),
            node: record.node().map(|node| names.get(node)),
            node_id: record.node(),
            attempt: record.attempt,
            round: (record.round > 1).then_some(record.round),
            status: record.state.status(),
            created_at: record.created_at,
            leased_at: record.state.lease().map(|lease| lease.granted_at),
            duration: facts.duration(),
            exit_code: facts.exit_code,
            error: facts.error,
            reason: facts.reason,
            failed_for_good: record.failed_for_good.as_deref().map(str::to_owned),
            not_before: facts.not_before,
            started_at: facts.started_at,
            finished_at: facts.finished_at,
            reused: record.reused,
            cached: record.is_cached(),
            limits: record.limits.as_deref().cloned().unwrap_or_default(),
            cache_key: record.cache_key.as_deref().map(str::to_owned),
            params: record.params.as_deref().cloned(),
            outputs: facts.outputs,
            waiting: Vec::new(),
        }
    }
}
