//! Owns how a plan is shown: its steps, their nodes, their retries and their dependencies.

use downbeat_core::Span;
use downbeat_core::backend::Params;
use downbeat_core::ids::NodeId;
use downbeat_core::plan::{EdgeKind, Plan as Compiled, Resolved, Shape, StepIx};
use downbeat_core::spec::{Approve, Cache, Condition, Delivery, Entry, ForEach, Limits, Placement, Strategy};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::problem::NodeReason;
use crate::rollout::{PlannedRollout, WaveNodes};
use crate::schema;

/// The steps of a job, with their nodes and their order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Plan {
    pub job: Option<String>,
    /// `list`: one entry after the other. `graph`: tasks declare their dependencies.
    #[serde(default)]
    #[schema(schema_with = schema::shape)]
    pub shape: Shape,
    /// `fail-fast` or `continue`.
    #[schema(value_type = String)]
    pub strategy: Strategy,
    /// No other run uses its nodes from its start to its end.
    #[serde(default)]
    pub exclusive: bool,
    /// Order among pending runs and among executions that wait for nodes: higher values first.
    #[serde(default)]
    pub priority: i32,
    /// For the whole run; null means no limit.
    #[schema(value_type = Option<String>, example = "30m")]
    pub timeout: Option<Span>,
    /// How long its `on_failure` steps may take after the run timed out; absent without such steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "10m")]
    pub cleanup_timeout: Option<Span>,
    /// How many executions of the run may be open at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_parallel: Option<u32>,
    /// Its waves, if it is a roll-out. Each wave runs the whole list before the next one starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<PlannedRollout>,
    /// Every node that any step targets, by hostname.
    pub nodes: Vec<NodeName>,
    /// The sets of nodes that steps run on: indexes into `nodes`. Steps name a set by its index here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sets: Vec<Vec<u32>>,
    /// The nodes that are stale or offline now, and what happens to their steps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub silent: Vec<NodeReason>,
    /// Nodes that match the targets but are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<NodeReason>,
    /// Parts of the definition that are valid but probably not intended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    pub steps: Vec<Step>,
}

/// A node, by id and name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeName {
    #[schema(value_type = Uuid)]
    pub id: NodeId,
    pub hostname: String,
}

/// A task's step in the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Step {
    pub index: u32,
    /// Its index among the top-level tasks; the leaves of a branch have the same.
    #[serde(default)]
    pub entry: u32,
    /// The task's name, or `backend action`.
    pub name: String,
    /// Empty if a person decides the step, like `action`.
    pub backend: String,
    pub action: String,
    /// What a person who decides the step is asked, and for how long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub approve: Option<Approve>,
    /// The name of the branch that it belongs to, if any.
    pub branch: Option<String>,
    #[serde(rename = "where")]
    pub place: Where,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = schema::condition)]
    pub condition: Option<Condition>,
    /// The steps that must end before this one starts.
    pub after: Vec<Edge>,
    /// As they are written: expressions are evaluated for each attempt.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub params: Params,
    /// For one attempt.
    #[serde(default)]
    #[schema(value_type = String, example = "30m")]
    pub timeout: Span,
    /// How often a failed instance is retried.
    #[serde(default)]
    pub retries: u32,
    /// `at_least_once`: a lost attempt is retried. `at_most_once`: it fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String)]
    pub delivery: Option<Delivery>,
    /// Whether every node declares that running it twice is harmless; null for a placed step.
    pub idempotent: Option<bool>,
    /// The outputs that it declares.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<String>,
    /// Where a placed step may run; absent if anywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub placement: Option<Placement>,
    /// The items; the step runs once for each. The leaves of a branch have those of their branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub for_each: Option<ForEach>,
    /// The limits that it uses, including those of its job; keys as they are written.
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    #[schema(value_type = Object)]
    pub limits: Limits,
    /// Whether an earlier result may be reused, and how old it may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub cache: Option<Cache>,
    /// How long a placed step may wait while no node fits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "30m")]
    pub placement_timeout: Option<Span>,
}

/// The index of a set of nodes in the plan's `sets`, or the string `placed`: once, on a node that fits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Where {
    Set(u32),
    Placed(String),
    /// Hostnames: the form of older servers.
    Nodes(Vec<String>),
}

impl Where {
    pub fn placed() -> Self {
        Self::Placed("placed".to_owned())
    }
}

/// An earlier step, and how this step waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Edge {
    pub step: u32,
    /// `barrier`: all of its instances have ended. `per_node`: its instance on the same node has ended.
    #[schema(schema_with = schema::edge_kind)]
    pub kind: EdgeKind,
}

/// A valid definition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Valid {
    pub valid: bool,
    pub job: Option<String>,
    /// The number of steps.
    pub steps: u32,
}

impl Step {
    /// Returns the backend and its action, or `approve`.
    pub fn does(&self) -> String {
        match self.approve {
            Some(_) => "approve".to_owned(),
            None => format!("{} {}", self.backend, self.action),
        }
    }
}

impl Plan {
    /// Returns the hostnames of the nodes that a step runs on; none for a placed step.
    pub fn nodes_of<'a>(&'a self, step: &'a Step) -> Option<Vec<&'a str>> {
        match &step.place {
            Where::Placed(_) => None,
            Where::Nodes(nodes) => Some(nodes.iter().map(String::as_str).collect()),
            Where::Set(set) => {
                let set = self.sets.get(*set as usize).map(Vec::as_slice).unwrap_or_default();
                let nodes = set.iter().filter_map(|node| self.nodes.get(*node as usize));
                Some(nodes.map(|node| node.hostname.as_str()).collect())
            }
        }
    }

    /// Returns the number of nodes that a step runs on; none for a placed step.
    pub fn node_count(&self, step: &Step) -> Option<u64> {
        match &step.place {
            Where::Placed(_) => None,
            Where::Nodes(nodes) => Some(nodes.len() as u64),
            Where::Set(set) => Some(self.sets.get(*set as usize).map_or(0, |set| set.len() as u64)),
        }
    }

    /// Returns the hostnames of each wave of a roll-out.
    pub fn waves(&self) -> Vec<Vec<&str>> {
        let waves = self.rollout.iter().flat_map(|rollout| &rollout.waves);
        let mut rest = self.sets.first().map(Vec::as_slice).unwrap_or_default();
        waves
            .map(|wave| match &wave.nodes {
                WaveNodes::Names(names) => names.iter().map(String::as_str).collect(),
                WaveNodes::Count(count) => {
                    let (part, others) = rest.split_at(rest.len().min(*count as usize));
                    rest = others;
                    let nodes = part.iter().filter_map(|node| self.nodes.get(*node as usize));
                    nodes.map(|node| node.hostname.as_str()).collect()
                }
            })
            .collect()
    }

    pub fn of(plan: &Compiled) -> Self {
        let mut steps: Vec<Step> = plan
            .steps
            .iter()
            .zip((0..).map(StepIx))
            .map(|(step, index)| {
                let task = plan.task(index);
                let entry = &plan.entries[step.entry];
                let written = &plan.definition.tasks[step.entry];
                let branch = matches!(written, Entry::Branch(_));
                Step {
                    index: index.0,
                    entry: step.entry.0,
                    name: task.label(),
                    backend: task.backend.clone(),
                    action: task.action.clone(),
                    approve: task.approve.clone(),
                    branch: entry.name.clone().filter(|_| branch),
                    place: entry.set.map_or_else(Where::placed, |set| Where::Set(set.0)),
                    condition: step.condition.or(entry.condition.filter(|_| step.position == 0)),
                    after: Vec::new(),
                    params: task.params.clone(),
                    timeout: task
                        .approve
                        .as_ref()
                        .map_or_else(|| task.timeout_or_default(), Approve::timeout_or_default),
                    retries: task.retry.map_or(0, |retry| retry.max),
                    delivery: Some(step.delivery),
                    idempotent: entry.set.map(|_| plan.resolved.idempotent.binary_search(&index).is_ok()),
                    outputs: task.outputs.clone(),
                    placement: plan
                        .placement(index)
                        .filter(|_| task.approve.is_none())
                        .filter(|placement| entry.set.is_none() && **placement != Placement::default())
                        .cloned(),
                    for_each: written.for_each().cloned(),
                    limits: plan
                        .definition
                        .limits_of(task)
                        .map(|(key, limit)| (key.clone(), *limit))
                        .collect(),
                    cache: task.cache,
                    placement_timeout: (entry.set.is_none() && task.approve.is_none())
                        .then(|| plan.definition.placement_timeout(task)),
                }
            })
            .collect();
        for edge in plan.edges() {
            steps[edge.to.get()].after.push(Edge { step: edge.from.0, kind: edge.kind });
        }
        let nodes = plan.resolved.nodes.iter();
        Self {
            job: plan.definition.name.clone(),
            shape: plan.shape,
            strategy: plan.definition.strategy(),
            exclusive: plan.definition.exclusive,
            priority: plan.definition.priority,
            timeout: plan.definition.timeout,
            cleanup_timeout: plan.cleanup_timeout().filter(|_| plan.definition.timeout.is_some()),
            max_parallel: plan.definition.max_parallel,
            rollout: plan
                .definition
                .rollout
                .as_ref()
                .map(|rollout| PlannedRollout::of(rollout, &plan.resolved)),
            nodes: nodes.map(|node| NodeName { id: node.id, hostname: node.hostname.clone() }).collect(),
            sets: plan.resolved.sets.iter().map(|set| set.iter().map(|node| node.0).collect()).collect(),
            silent: Vec::new(),
            left_out: left_out(&plan.resolved),
            notes: Vec::new(),
            steps,
        }
    }
}

/// Returns the nodes that match a run's targets but are drained.
pub(crate) fn left_out(resolved: &Resolved) -> Vec<NodeReason> {
    let nodes = resolved.left_out.iter();
    nodes.map(|node| NodeReason::from((node.hostname.clone(), "is drained"))).collect()
}
