//! Owns the checked job definition: what a job file means once it is known to be right. It serialises to the
//! same shape as a job file, and is trusted when read back; reading what people write is `parse`'s work.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use crate::backend::Params;
use crate::expr::has_expression;
use crate::level;
use crate::limits;
use crate::select::Selector;
use crate::span::Span;
use crate::spec::Rollout;

/// A whole job: tasks, where they run, and the rules.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Definition {
    #[serde(default)]
    pub name: Option<String>,
    #[serde(default)]
    pub cluster: Option<String>,
    /// Fan out over these nodes. Either this or a placement is the rule for tasks without their own.
    #[serde(default)]
    pub target: Option<Selector>,
    #[serde(default)]
    pub placement: Option<Placement>,
    #[serde(default)]
    pub strategy: Strategy,
    /// In waves of nodes.
    #[serde(default)]
    pub rollout: Option<Rollout>,
    /// Holds its nodes from its start to its end: no other run does anything there meanwhile.
    #[serde(default)]
    pub exclusive: bool,
    /// Among runs that wait, and among work that waits for nodes: higher ones first.
    #[serde(default)]
    pub priority: i32,
    /// What a run may be given, with what it is when it is not given; `null` must be given.
    #[serde(default)]
    pub params: Params,
    /// For the whole run.
    #[serde(default)]
    pub timeout: Option<Span>,
    /// Executions of the run that may be open at once.
    #[serde(default)]
    pub max_parallel: Option<u32>,
    /// What each of its tasks takes one of, shared with all runs of the cluster.
    #[serde(default)]
    pub limits: Limits,
    /// How long a task may wait while no node fits it; its tasks may say otherwise.
    #[serde(default)]
    pub placement_timeout: Option<Span>,
    pub tasks: Vec<Entry>,
}

/// A definition as it is written down: what was not said is left out, but for the strategy, which everything has that
/// is no roll-out.
#[derive(Serialize)]
struct Written<'d> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'d String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<&'d String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<&'d Selector>,
    #[serde(skip_serializing_if = "Option::is_none")]
    placement: Option<&'d Placement>,
    #[serde(skip_serializing_if = "Option::is_none")]
    strategy: Option<Strategy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rollout: Option<&'d Rollout>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    exclusive: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<&'d Params>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_parallel: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<&'d Limits>,
    #[serde(skip_serializing_if = "Option::is_none")]
    placement_timeout: Option<Span>,
    tasks: &'d [Entry],
}

impl Serialize for Definition {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self {
            name,
            cluster,
            target,
            placement,
            strategy,
            rollout,
            exclusive,
            priority,
            params,
            timeout,
            max_parallel,
            limits,
            placement_timeout,
            tasks,
        } = self;
        Written {
            name: name.as_ref(),
            cluster: cluster.as_ref(),
            target: target.as_ref(),
            placement: placement.as_ref(),
            strategy: rollout.is_none().then_some(*strategy),
            rollout: rollout.as_ref(),
            exclusive: *exclusive,
            priority: Some(*priority).filter(|priority| *priority != 0),
            params: Some(params).filter(|params| !params.is_empty()),
            timeout: *timeout,
            max_parallel: *max_parallel,
            limits: Some(limits).filter(|limits| !limits.is_empty()),
            placement_timeout: *placement_timeout,
            tasks,
        }
        .serialize(serializer)
    }
}

impl Definition {
    /// Returns the tasks of all steps: the leaves, depth first.
    pub fn steps(&self) -> impl Iterator<Item = &Task> + Clone {
        self.tasks.iter().flat_map(Entry::leaves)
    }

    /// Whether the entry runs once, on a node that is found when its turn comes.
    pub fn is_placed(&self, entry: &Entry) -> bool {
        match entry {
            Entry::Leaf(Task { target: Some(_), .. }) => false,
            Entry::Leaf(Task { placement: Some(_), .. }) => true,
            Entry::Leaf(_) | Entry::Branch(_) => self.target.is_none(),
        }
    }

    /// Whether any task says what it depends on, be it on nothing; else the tasks are a list.
    pub fn is_graph(&self) -> bool {
        self.tasks.iter().any(|entry| entry.said_depends_on().is_some())
    }

    /// How long a task may wait while no node fits it.
    pub fn placement_timeout(&self, task: &Task) -> Span {
        let said = task.placement_timeout.or(self.placement_timeout);
        said.unwrap_or(Span::from_secs(limits::PLACEMENT_TIMEOUT_DEFAULT_S))
    }

    /// What an execution of a task takes one of: what the task says, and what the job says of all.
    pub fn limits_of<'d>(&'d self, task: &'d Task) -> impl Iterator<Item = (&'d String, &'d Limit)> {
        let of_job = self.limits.iter().filter(|(key, _)| !task.limits.contains_key(*key));
        task.limits.iter().chain(of_job)
    }

    /// The level that a server must know to carry it out: an older one would pass over what it does not know, and do
    /// something else.
    pub fn level(&self) -> u32 {
        if self.is_of_graph_level() {
            return level::GRAPH;
        }
        let mut tasks = self.steps();
        let fleet = self.rollout.is_some()
            || self.exclusive
            || self.priority != 0
            || !self.params.is_empty()
            || tasks.any(|task| !task.outputs.is_empty() || task.params.values().any(has_expression));
        if fleet { level::FLEET } else { level::FIRST }
    }

    fn is_of_graph_level(&self) -> bool {
        let of_task = |task: &Task| {
            !task.limits.is_empty()
                || task.cache.is_some()
                || task.placement_timeout.is_some()
                || task.placement.as_ref().is_some_and(Placement::is_of_graph_level)
        };
        // Before, a graph in which nothing depends on anything was a list.
        let loose = self.is_graph() && self.tasks.iter().all(|entry| entry.depends_on().is_empty());
        loose
            || self.max_parallel.is_some()
            || !self.limits.is_empty()
            || self.placement_timeout.is_some()
            || self.placement.as_ref().is_some_and(Placement::is_of_graph_level)
            || self.tasks.iter().any(|entry| entry.for_each().is_some() || entry.leaves().iter().any(of_task))
    }
}

/// What happens to the rest when something fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    #[default]
    FailFast,
    Continue,
}

/// One entry of a job's list: a leaf, or a branch of leaves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly every entry is a leaf, so boxing it would save nothing"
)]
pub enum Entry {
    // Tried first: a branch has `tasks`, a leaf never does.
    Branch(Branch),
    Leaf(Task),
}

/// A per-node pipeline of leaves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Branch {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<Condition>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depends_on: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_each: Option<ForEach>,
    pub tasks: Vec<Task>,
}

/// A leaf: one backend's action with its params.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub backend: String,
    pub action: String,
    #[serde(default, skip_serializing_if = "Params::is_empty")]
    pub params: Params,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Span>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<Condition>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depends_on: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Selector>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery: Option<Delivery>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_disconnect: Option<OnDisconnect>,
    /// Names that it says values for when it succeeds; later tasks may use them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<String>,
    /// Once for each of these. Of a leaf in a branch it is the branch's to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_each: Option<ForEach>,
    /// What it takes one of while it runs, shared with all runs of the cluster.
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
    /// Whether an earlier result with equal inputs will do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<Cache>,
    /// How long it may wait while no node fits it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement_timeout: Option<Span>,
}

impl Task {
    pub fn timeout_or_default(&self) -> Span {
        self.timeout.unwrap_or(Span::from_secs(limits::TASK_TIMEOUT_DEFAULT_S))
    }

    /// What people call it: its name, or `backend action`.
    pub fn label(&self) -> String {
        self.name.clone().unwrap_or_else(|| format!("{} {}", self.backend, self.action))
    }
}

impl Entry {
    pub fn name(&self) -> Option<&str> {
        match self {
            Entry::Leaf(task) => task.name.as_deref(),
            Entry::Branch(branch) => branch.name.as_deref(),
        }
    }

    pub fn condition(&self) -> Option<Condition> {
        match self {
            Entry::Leaf(task) => task.condition,
            Entry::Branch(branch) => branch.condition,
        }
    }

    /// The names of the tasks that end before it begins.
    pub fn depends_on(&self) -> &[String] {
        self.said_depends_on().unwrap_or_default()
    }

    pub(super) fn said_depends_on(&self) -> Option<&[String]> {
        match self {
            Entry::Leaf(task) => task.depends_on.as_deref(),
            Entry::Branch(branch) => branch.depends_on.as_deref(),
        }
    }

    pub fn for_each(&self) -> Option<&ForEach> {
        match self {
            Entry::Leaf(task) => task.for_each.as_ref(),
            Entry::Branch(branch) => branch.for_each.as_ref(),
        }
    }

    pub fn leaves(&self) -> &[Task] {
        match self {
            Entry::Leaf(task) => std::slice::from_ref(task),
            Entry::Branch(branch) => &branch.tasks,
        }
    }
}

/// When a step runs at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    Always,
    OnSuccess,
    OnFailure,
}

/// Whether a lost attempt is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Delivery {
    AtLeastOnce,
    AtMostOnce,
}

/// What an agent does with the work when it could not renew its lease for a full term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDisconnect {
    Continue,
    Stop,
}

/// How often a failed instance is tried again, and how long the pauses may be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Retry {
    pub max: u32,
    #[serde(default = "Retry::default_delay")]
    pub delay: Span,
    #[serde(default = "Retry::default_factor")]
    pub factor: f64,
    #[serde(default = "Retry::default_max_delay")]
    pub max_delay: Span,
}

impl Retry {
    pub fn default_delay() -> Span {
        Span::from_secs(1)
    }

    pub fn default_factor() -> f64 {
        2.0
    }

    pub fn default_max_delay() -> Span {
        Span::from_secs(30)
    }

    /// What `max_retries: n` alone means.
    pub fn times(max: u32) -> Self {
        Self {
            max,
            delay: Self::default_delay(),
            factor: Self::default_factor(),
            max_delay: Self::default_max_delay(),
        }
    }
}

/// Where a task that runs once may run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Placement {
    /// Capabilities: a text must be equal, a number is at least.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub requires: BTreeMap<String, Value>,
    /// Labels that the node must have (`name`), or have with a value (`name=value`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// Only these nodes, by hostname or id; empty means any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forbid: Vec<String>,
    /// Executions of this run that one node may hold at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_per_node: Option<u32>,
    /// Backends that the node must offer beside the task's own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub backends: Vec<String>,
    /// Which of the fitting nodes are better than others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prefer: Vec<Preference>,
    /// Over what the run's executions are spread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<Spread>,
}

impl Placement {
    fn is_of_graph_level(&self) -> bool {
        !self.backends.is_empty() || !self.prefer.is_empty() || self.spread.is_some()
    }
}

/// A node that satisfies all of this is preferred by so much.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Preference {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub requires: BTreeMap<String, Value>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// One of these, by hostname or id; empty means any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    #[serde(default = "Preference::default_weight")]
    pub weight: u32,
}

impl Preference {
    pub fn default_weight() -> u32 {
        1
    }
}

/// What the executions of a run are spread over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Spread {
    /// The node that holds the fewest of the run comes first.
    Node,
    /// The same for nodes with the same value of this label. Those without it are one group.
    Label(String),
}

/// A task or branch once for each of some items.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForEach {
    /// A list, or a text with an expression that comes to one.
    pub items: Value,
    /// Items that may be under way at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_parallel: Option<u32>,
}

/// Limits by their key, which may hold expressions.
pub type Limits = BTreeMap<String, Limit>;

/// How many executions may have a key, counted over all runs of a cluster. Runs may say different numbers; each is
/// held to its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// So many at once.
    AtOnce(u32),
    /// So many may begin within any span of this length.
    Rate(u32, Span),
}

/// An earlier result will do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cache {
    /// If it is not older than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age: Option<Span>,
}
