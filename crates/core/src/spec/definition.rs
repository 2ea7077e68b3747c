//! Owns the checked job definition. It serialises to the same shape as a job file, and is trusted when it is read back;
//! `parse` reads and checks job files that users write.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::backend::Params;
use crate::expr::has_expression;
use crate::select::Selector;
use crate::span::Span;
use crate::spec::{Action, Constraints, HttpHook, Overlap, Rollout, Schedule, Trigger, What};
use crate::words::words;
use crate::{level, limits};

/// A whole job. `fields` describes each field.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Definition {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Selector>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// Set in every parsed definition, except those with a roll-out, whose budget decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Strategy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exclusive: bool,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub priority: i32,
    #[serde(default, skip_serializing_if = "Params::is_empty")]
    pub params: Params,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Span>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cleanup_timeout: Option<Span>,
    /// The retry of the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_parallel: Option<u32>,
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement_timeout: Option<Span>,
    /// Without effect on a run, so that it needs no level.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "fitted")]
    pub schedule: Vec<Schedule>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub constraints: Option<Constraints>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap: Option<Overlap>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on_violation: Vec<Action>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on_success: Vec<Action>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on_failure: Vec<Action>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Span>,
    /// Without effect on a run, like `schedule`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub triggers: Vec<Trigger>,
    #[serde(deserialize_with = "fitted")]
    pub tasks: Vec<Entry>,
}

/// Reads a list without spare room. Servers keep the definitions of all stored jobs in memory, and room for four entries,
/// which a list of one has otherwise, is larger than the rest of a small job.
fn fitted<'de, D: Deserializer<'de>, T: Deserialize<'de>>(list: D) -> Result<Vec<T>, D::Error> {
    let mut list = Vec::deserialize(list)?;
    list.shrink_to_fit();
    Ok(list)
}

fn is_zero(priority: &i32) -> bool {
    *priority == 0
}

impl Definition {
    /// Returns the tasks of all steps: the leaves, depth first.
    pub fn steps(&self) -> impl Iterator<Item = &Task> + Clone {
        self.tasks.iter().flat_map(Entry::leaves)
    }

    pub fn step_count(&self) -> u32 {
        u32::try_from(self.steps().count()).unwrap_or(u32::MAX)
    }

    /// Returns whether the entry runs once, on a node that is chosen when the entry is due.
    pub fn is_placed(&self, entry: &Entry) -> bool {
        match entry {
            Entry::Leaf(Task { target: Some(_), .. }) => false,
            Entry::Leaf(Task { placement: Some(_), .. } | Task { approve: Some(_), .. }) => true,
            Entry::Leaf(_) | Entry::Branch(_) => self.target.is_none(),
        }
    }

    pub fn strategy(&self) -> Strategy {
        self.strategy.unwrap_or_default()
    }

    /// Returns whether any task has `depends_on`, even an empty one; otherwise the tasks are a list.
    pub fn is_graph(&self) -> bool {
        self.tasks.iter().any(|entry| entry.explicit_depends_on().is_some())
    }

    /// Returns how long a task may wait while no node fits it.
    pub fn placement_timeout(&self, task: &Task) -> Span {
        let set = task.placement_timeout.or(self.placement_timeout);
        set.unwrap_or(Span::from_secs(limits::PLACEMENT_TIMEOUT_DEFAULT_S))
    }

    /// Returns how long the `on_failure` steps may take after the run timed out.
    pub fn cleanup_timeout(&self) -> Span {
        self.cleanup_timeout.unwrap_or(Span::from_secs(limits::CLEANUP_TIMEOUT_DEFAULT_S))
    }

    /// Returns the limits of a task: its own, and those of the job that it does not override.
    pub fn limits_of<'d>(&'d self, task: &'d Task) -> impl Iterator<Item = (&'d String, &'d Limit)> {
        let of_job = self.limits.iter().filter(|(key, _)| !task.limits.contains_key(*key));
        task.limits.iter().chain(of_job)
    }

    /// Returns the level that a server must know to run this job: an older server would ignore fields that it does not
    /// know.
    pub fn level(&self) -> u32 {
        if self.retry.is_some() {
            return level::ROUNDS;
        }
        if self.steps().any(|task| task.approve.is_some()) {
            return level::APPROVALS;
        }
        if self.has_life() {
            return level::LIFE;
        }
        if self.cleanup_timeout.is_some() {
            return level::CLEANUP;
        }
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

    /// Returns whether anything is set about the life of its runs.
    fn has_life(&self) -> bool {
        let actions = [&self.on_violation, &self.on_success, &self.on_failure];
        self.constraints.is_some()
            || self.overlap.is_some()
            || self.deadline.is_some()
            || actions.iter().any(|actions| !actions.is_empty())
    }

    /// Returns how many runs of the job may be active at once.
    pub fn max_concurrent_runs(&self) -> Option<u32> {
        let of_overlap = self.overlap.filter(|overlap| *overlap != Overlap::Allow).map(|_| 1);
        self.constraints.as_ref().and_then(|constraints| constraints.max_concurrent_runs).or(of_overlap)
    }

    pub fn requires_previous_success(&self) -> bool {
        self.constraints.as_ref().is_some_and(|constraints| constraints.require_previous_success)
    }

    pub fn pre_run_hook(&self) -> Option<&HttpHook> {
        self.constraints.as_ref()?.pre_run_hook.as_ref()
    }

    pub fn post_run_hook(&self) -> Option<&HttpHook> {
        self.constraints.as_ref()?.post_run_hook.as_ref()
    }

    pub fn max_expected(&self) -> Option<Span> {
        self.constraints.as_ref()?.max_expected
    }

    pub fn max_allowed(&self) -> Option<Span> {
        self.constraints.as_ref()?.max_allowed
    }

    /// Returns how long the plan of a run may take: `timeout` or `max_allowed`, whichever is shorter.
    pub fn time_limit(&self) -> Option<Span> {
        self.timeout.into_iter().chain(self.max_allowed()).min()
    }

    /// Returns whether constraints are checked before a run starts.
    pub fn checks_before(&self) -> bool {
        self.max_concurrent_runs().is_some()
            || self.requires_previous_success()
            || self.pre_run_hook().is_some()
    }

    /// Returns whether constraints are checked, or actions follow, when the plan of a run has ended.
    pub fn acts_after(&self) -> bool {
        self.max_expected().is_some()
            || self.max_allowed().is_some()
            || self.post_run_hook().is_some()
            || !self.on_success.is_empty()
            || !self.on_failure.is_empty()
    }

    /// Returns the action that decides what becomes of a run that violates a constraint. `None` if it starts anyway.
    pub fn decision_on_violation(&self) -> Option<Action> {
        if let Some(what) = self.overlap.and_then(Overlap::action) {
            return Some(what.into());
        }
        let decides = |action: &&Action| action.what.kind().decides();
        match self.on_violation.iter().find(decides) {
            None if self.on_violation.is_empty() => Some(What::Skip.into()),
            decision => decision.cloned(),
        }
    }

    /// Returns the other actions on a violation: calls of webhooks and of jobs.
    pub fn calls_on_violation(&self) -> impl Iterator<Item = &Action> {
        self.on_violation.iter().filter(|action| !action.what.kind().decides())
    }

    fn is_of_graph_level(&self) -> bool {
        let of_task = |task: &Task| {
            !task.limits.is_empty()
                || task.cache.is_some()
                || task.placement_timeout.is_some()
                || task.placement.as_ref().is_some_and(Placement::is_of_graph_level)
        };
        // Earlier levels treat a graph without dependencies as a list.
        let loose = self.is_graph() && self.tasks.iter().all(|entry| entry.depends_on().is_empty());
        loose
            || self.max_parallel.is_some()
            || !self.limits.is_empty()
            || self.placement_timeout.is_some()
            || self.placement.as_ref().is_some_and(Placement::is_of_graph_level)
            || self.tasks.iter().any(|entry| entry.for_each().is_some() || entry.leaves().iter().any(of_task))
    }
}

words! {
    /// The effect of a failure on the rest of the run.
    #[derive(Default)]
    pub enum Strategy {
        #[default]
        FailFast = "fail-fast",
        Continue = "continue",
    }
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Branch {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<Condition>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depends_on: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_each: Option<ForEach>,
    #[serde(deserialize_with = "fitted")]
    pub tasks: Vec<Task>,
}

/// A leaf: one backend's action with its params. `fields` describes each field.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Task {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Empty for an approval, like `action`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub backend: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub action: String,
    /// Set if a person decides the task, and no node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approve: Option<Approve>,
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
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_each: Option<ForEach>,
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<Cache>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement_timeout: Option<Span>,
}

impl Task {
    pub fn timeout_or_default(&self) -> Span {
        self.timeout.unwrap_or(Span::from_secs(limits::TASK_TIMEOUT_DEFAULT_S))
    }

    /// Returns the task's name, or `backend action`.
    pub fn label(&self) -> String {
        match &self.name {
            Some(name) => name.clone(),
            None if self.approve.is_some() => "approve".to_owned(),
            None => format!("{} {}", self.backend, self.action),
        }
    }
}

impl Entry {
    pub fn name(&self) -> Option<&str> {
        match self {
            Entry::Leaf(task) => task.name.as_deref(),
            Entry::Branch(branch) => branch.name.as_deref(),
        }
    }

    /// Returns the entry's name, or its position in the job file.
    pub fn name_or(&self, index: usize) -> String {
        self.name().map_or_else(|| format!("tasks[{index}]"), str::to_owned)
    }

    pub fn condition(&self) -> Option<Condition> {
        match self {
            Entry::Leaf(task) => task.condition,
            Entry::Branch(branch) => branch.condition,
        }
    }

    /// Returns the names of the tasks that must end before this entry starts.
    pub fn depends_on(&self) -> &[String] {
        self.explicit_depends_on().unwrap_or_default()
    }

    pub(super) fn explicit_depends_on(&self) -> Option<&[String]> {
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

words! {
    /// When a step runs.
    pub enum Condition {
        Always = "always",
        OnSuccess = "on_success",
        OnFailure = "on_failure",
    }
}

words! {
    /// Whether a lost attempt is retried.
    pub enum Delivery {
        AtLeastOnce = "at_least_once",
        AtMostOnce = "at_most_once",
    }
}

words! {
    /// The effect on running work when its lease could not be renewed for a full term.
    pub enum OnDisconnect {
        Continue = "continue",
        Stop = "stop",
    }
}

/// How often a failed instance is retried, or a failed run as a whole, and the delays between attempts.
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

    /// Returns the meaning of `max_retries: n`.
    pub fn times(max: u32) -> Self {
        Self {
            max,
            delay: Self::default_delay(),
            factor: Self::default_factor(),
            max_delay: Self::default_max_delay(),
        }
    }
}

/// What a person who approves a step reads, and how long the step waits for the approval.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approve {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Span>,
}

impl Approve {
    pub fn timeout_or_default(&self) -> Span {
        self.timeout.unwrap_or(Span::from_secs(limits::APPROVAL_TIMEOUT_DEFAULT_S))
    }
}

/// The nodes on which a task that runs once may run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Placement {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub requires: BTreeMap<String, Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forbid: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_per_node: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub backends: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prefer: Vec<Preference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<Spread>,
}

impl Placement {
    fn is_of_graph_level(&self) -> bool {
        !self.backends.is_empty() || !self.prefer.is_empty() || self.spread.is_some()
    }
}

/// A preference: a node that satisfies all of it gains `weight`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Preference {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub requires: BTreeMap<String, Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    pub weight: u32,
}

impl Default for Preference {
    fn default() -> Self {
        Self { requires: BTreeMap::new(), labels: Vec::new(), nodes: Vec::new(), weight: 1 }
    }
}

/// The groups over which the executions of a run are spread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Spread {
    /// The node with the fewest executions of the run is preferred.
    Node,
    /// The group of nodes with the same value of this label that has the fewest is preferred. Nodes without the label
    /// are one group.
    Label(String),
}

/// The items of a task or branch that runs once for each of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForEach {
    /// A list, or a string with an expression that evaluates to one.
    pub items: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_parallel: Option<u32>,
}

/// Limits by their key, which may contain expressions.
pub type Limits = BTreeMap<String, Limit>;

/// The number of executions that may use a key, counted over all runs of a cluster. Runs may set different numbers for
/// one key; each run obeys its own number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// At most this many at the same time.
    AtOnce(u32),
    /// At most this many starts within any span of this length.
    Rate(u32, Span),
}

/// Lets an earlier result be used instead of running the task, if it is at most `max_age` old.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cache {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age: Option<Span>,
}
