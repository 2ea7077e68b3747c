//! Owns how a plan is shown: steps, where each runs, and what it waits for.

use downbeat_core::ids::NodeId;
use downbeat_core::plan::{self, Plan as Compiled};
use downbeat_core::spec::{Condition, Entry, Strategy};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::schema;

/// What would run, or runs, where and in which order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Plan {
    pub job: Option<String>,
    /// `fail-fast` or `continue`.
    pub strategy: String,
    /// Every node that any step targets, by hostname.
    pub nodes: Vec<NodeName>,
    pub steps: Vec<Step>,
}

/// A node, by id and name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeName {
    #[schema(value_type = Uuid)]
    pub id: NodeId,
    pub hostname: String,
}

/// A task's place in the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Step {
    pub index: u32,
    /// The task's name, or `backend action`.
    pub name: String,
    pub backend: String,
    pub action: String,
    /// The branch that it is a leaf of, if it has a name.
    pub branch: Option<String>,
    #[serde(rename = "where")]
    pub place: Where,
    #[schema(schema_with = schema::condition)]
    pub condition: Option<Condition>,
    /// What ends before this begins.
    pub after: Vec<Edge>,
}

/// Hostnames, or the text `placed`: once, on a node that fits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Where {
    Nodes(Vec<String>),
    Placed(String),
}

impl Where {
    pub fn placed() -> Self {
        Self::Placed("placed".to_owned())
    }
}

/// An earlier step, and how it is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Edge {
    pub step: u32,
    pub kind: EdgeKind,
}

/// How much of the earlier step must have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EdgeKind {
    /// Every instance of it.
    Barrier,
    /// Its instance on the same node.
    PerNode,
}

/// A definition in which nothing is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Valid {
    pub valid: bool,
    pub job: Option<String>,
    /// How many steps it has.
    pub steps: u32,
}

impl Plan {
    pub fn of(plan: &Compiled) -> Self {
        let hostname = |index: &u32| plan.node(*index).hostname.clone();
        let mut steps: Vec<Step> = plan
            .steps
            .iter()
            .zip(0..)
            .map(|(step, index)| {
                let task = plan.task(index);
                let entry = &plan.entries[step.entry as usize];
                let branch = matches!(plan.definition.tasks[step.entry as usize], Entry::Branch(_));
                Step {
                    index,
                    name: task.label(),
                    backend: task.backend.clone(),
                    action: task.action.clone(),
                    branch: entry.name.clone().filter(|_| branch),
                    place: match plan.nodes_of(step.entry) {
                        Some(nodes) => Where::Nodes(nodes.iter().map(hostname).collect()),
                        None => Where::placed(),
                    },
                    condition: step.condition.or(entry.condition.filter(|_| step.position == 0)),
                    after: Vec::new(),
                }
            })
            .collect();
        for edge in plan.edges() {
            steps[edge.to as usize].after.push(Edge { step: edge.from, kind: edge.kind.into() });
        }
        let nodes = plan.resolved.nodes.iter();
        Self {
            job: plan.definition.name.clone(),
            strategy: match plan.definition.strategy {
                Strategy::FailFast => "fail-fast".to_owned(),
                Strategy::Continue => "continue".to_owned(),
            },
            nodes: nodes.map(|node| NodeName { id: node.id, hostname: node.hostname.clone() }).collect(),
            steps,
        }
    }
}

impl From<plan::EdgeKind> for EdgeKind {
    fn from(kind: plan::EdgeKind) -> Self {
        match kind {
            plan::EdgeKind::Barrier => EdgeKind::Barrier,
            plan::EdgeKind::PerNode => EdgeKind::PerNode,
        }
    }
}
