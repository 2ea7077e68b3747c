//! Owns the input of the checker: submissions, records, the book and the streams.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::book::Book;

/// Everything that is known after all faults have healed. Plain data: a test can forge it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Evidence {
    pub(crate) book: Book,
    pub(crate) submissions: Vec<Submission>,
    pub(crate) runs: BTreeMap<String, Run>,
    /// The executions of the standing tasks of `default`, as a run whose steps are the numbers of the tasks.
    pub(crate) standing: Option<Run>,
    /// All events with all of their data, as they are stored.
    pub(crate) stored: Vec<Stored>,
    /// What is left of deleted clusters in the tables.
    pub(crate) left: Vec<String>,
    /// The whole event feed, as each server lists it.
    pub(crate) feeds: Vec<Vec<Event>>,
    /// Events that followers of the stream received, over all their reconnects: number and kind.
    pub(crate) watched: Vec<Vec<(u64, String)>>,
    /// All runs with their state, as each server lists them.
    pub(crate) listings: Vec<BTreeMap<String, String>>,
    /// Open executions and runs, as each server counts them: status and count.
    pub(crate) open: Vec<BTreeMap<String, u64>>,
    /// Processes of executions that still live although everything ended.
    pub(crate) processes: Vec<String>,
    /// Responses that no client may get.
    pub(crate) complaints: Vec<String>,
}

/// A client's submission, with the responses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Submission {
    /// Its idempotency key, which is the run's name too.
    pub(crate) key: String,
    /// The ids that servers returned, over all attempts.
    pub(crate) answered: BTreeSet<String>,
    pub(crate) cancel_asked: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    pub(crate) id: String,
    pub(crate) job: String,
    pub(crate) state: String,
    pub(crate) status: String,
    pub(crate) owner: String,
    pub(crate) steps: Vec<Step>,
    pub(crate) executions: Vec<Execution>,
    /// With a roll-out, the wave of each node.
    pub(crate) waves: BTreeMap<String, usize>,
    /// With a roll-out, how many nodes may fail; 0 otherwise.
    pub(crate) budget: u64,
    /// It completed although nodes failed.
    pub(crate) partial: bool,
    /// It has its nodes to itself.
    pub(crate) exclusive: bool,
}

/// The rules for a step, read from the definition, not from the product's plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) name: String,
    pub(crate) placed: bool,
    pub(crate) retries: u32,
    /// Whether a lost attempt is sent again.
    pub(crate) resend: bool,
    pub(crate) on_failure: bool,
    /// Steps that end on every node before this one begins on any.
    pub(crate) barrier: BTreeSet<u32>,
    /// Steps that end on a node before this one begins on it.
    pub(crate) per_node: BTreeSet<u32>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Execution {
    pub(crate) id: String,
    pub(crate) step: u32,
    pub(crate) node: Option<String>,
    pub(crate) attempt: u32,
    pub(crate) status: String,
    pub(crate) exit_code: Option<i64>,
    pub(crate) error: Option<String>,
}

/// An event as it is stored.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Stored {
    pub(crate) seq: u64,
    pub(crate) kind: String,
    pub(crate) data: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Event {
    pub(crate) seq: u64,
    pub(crate) kind: String,
    pub(crate) run: Option<String>,
    pub(crate) execution: Option<String>,
    pub(crate) data: Value,
}

impl Execution {
    pub(crate) fn read(view: &Value) -> Self {
        Self {
            id: text(&view["id"]),
            step: u32::try_from(view["step"].as_u64().unwrap()).unwrap(),
            node: view["node"].as_str().map(str::to_owned),
            attempt: u32::try_from(view["attempt"].as_u64().unwrap()).unwrap(),
            status: text(&view["status"]),
            exit_code: view["exit_code"].as_i64(),
            error: view["error"].as_str().map(str::to_owned),
        }
    }
}

impl Event {
    pub(crate) fn read(view: &Value) -> Self {
        Self {
            seq: view["seq"].as_u64().unwrap(),
            kind: text(&view["kind"]),
            run: view["run"].as_str().map(str::to_owned),
            execution: view["execution"].as_str().map(str::to_owned),
            data: view["data"].clone(),
        }
    }
}

impl Evidence {
    /// All runs, and the standing tasks as if they were one.
    pub(crate) fn all_runs(&self) -> impl Iterator<Item = &Run> {
        self.runs.values().chain(&self.standing)
    }
}

impl Run {
    /// Reads the standing tasks of a cluster: `lists` are all versions of its list.
    pub(crate) fn of_standing<'a>(
        cluster: &str,
        owner: String,
        lists: impl Iterator<Item = &'a Value>,
        executions: &[Value],
    ) -> Self {
        let tasks = lists.flat_map(|list| list["tasks"].as_array().into_iter().flatten());
        // A task keeps its number and, here, its name.
        let names: BTreeMap<u64, String> =
            tasks.map(|task| (task["number"].as_u64().unwrap_or(0), text(&task["name"]))).collect();
        let count = names.keys().next_back().map_or(0, |last| last + 1);
        let step = |number| Step { name: names.get(&number).cloned().unwrap_or_default(), ..Step::default() };
        let numbers: BTreeMap<&String, u64> = names.iter().map(|(number, name)| (name, *number)).collect();
        let execution = |view: &Value| {
            let number = numbers.get(&text(&view["task"])).copied().unwrap_or(u64::from(u32::MAX));
            let mut view = view.clone();
            view["step"] = number.into();
            Execution::read(&view)
        };
        Self {
            id: format!("standing:{cluster}"),
            state: "pre_run".to_owned(),
            owner,
            steps: (0..count).map(step).collect(),
            executions: executions.iter().map(execution).collect(),
            ..Self::default()
        }
    }

    pub(crate) fn read(view: &Value, executions: &[Value]) -> Self {
        Self {
            id: text(&view["id"]),
            job: text(&view["job"]),
            state: text(&view["state"]),
            status: text(&view["status"]),
            owner: text(&view["owner"]),
            steps: steps(&view["definition"]),
            executions: executions.iter().map(Execution::read).collect(),
            waves: waves(view, executions),
            budget: view["definition"]["rollout"]["max_failures"].as_u64().unwrap_or(0),
            partial: view["partial"] == true,
            exclusive: view["definition"]["exclusive"] == true,
        }
    }

    /// The attempts of each instance: of a step on a node, or of a placed step wherever it went.
    pub(crate) fn instances(&self) -> BTreeMap<(u32, String), Vec<&Execution>> {
        let mut instances: BTreeMap<_, Vec<&Execution>> = BTreeMap::new();
        for execution in &self.executions {
            let placed = self.steps.get(execution.step as usize).is_some_and(|step| step.placed);
            let place = if placed { "-" } else { execution.node.as_deref().unwrap_or("-") };
            instances.entry((execution.step, place.to_owned())).or_default().push(execution);
        }
        instances.values_mut().for_each(|attempts| attempts.sort_by_key(|execution| execution.attempt));
        instances
    }
}

/// Waves of so many nodes, by hostname: read from the definition, as the steps are.
fn waves(view: &Value, executions: &[Value]) -> BTreeMap<String, usize> {
    let Some(batch) = view["definition"]["rollout"]["batch"].as_u64() else { return BTreeMap::new() };
    // Every node has an execution, if only a skipped one.
    let nodes: BTreeSet<String> = executions.iter().map(|execution| text(&execution["node"])).collect();
    let batch = usize::try_from(batch).unwrap();
    nodes.into_iter().enumerate().map(|(index, node)| (node, index / batch)).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The steps of a definition, and all that each waits for, directly or not.
pub(crate) fn steps(definition: &Value) -> Vec<Step> {
    let entries = definition["tasks"].as_array().cloned().unwrap_or_default();
    let graph = entries.iter().any(|entry| entry["depends_on"].as_array().is_some_and(|on| !on.is_empty()));
    let mut steps: Vec<Step> = Vec::new();
    let mut spans: Vec<(String, std::ops::Range<u32>)> = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let leaves = entry["tasks"].as_array().cloned().unwrap_or_else(|| vec![entry.clone()]);
        let first = number(steps.len());
        let mut before: BTreeSet<u32> = BTreeSet::new();
        let names = entry["depends_on"].as_array().cloned().unwrap_or_default();
        for (earlier, span) in &spans {
            if !graph || names.iter().any(|name| name == earlier.as_str()) {
                before.extend(span.clone());
                span.clone().for_each(|step| before.extend(steps[step as usize].barrier.clone()));
            }
        }
        for leaf in &leaves {
            let here = number(steps.len());
            let targeted = [&definition["target"], &leaf["target"]].iter().any(|target| !target.is_null());
            let placed = !targeted || (!leaf["placement"].is_null() && leaf["target"].is_null());
            let on_failure = [entry, leaf].iter().any(|task| task["condition"] == "on_failure");
            steps.push(Step {
                name: text(&leaf["name"]),
                placed,
                retries: u32::try_from(leaf["retry"]["max"].as_u64().unwrap_or(0)).unwrap(),
                resend: match leaf["delivery"].as_str() {
                    Some(delivery) => delivery == "at_least_once",
                    None => placed,
                },
                on_failure,
                barrier: before.clone(),
                per_node: (first..here).collect(),
            });
        }
        let name = entry["name"].as_str().map_or_else(|| format!("#{index}"), str::to_owned);
        spans.push((name, first..number(steps.len())));
    }
    steps
}

fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap()
}
