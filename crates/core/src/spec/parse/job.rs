//! Reads the top of a job file.

use super::field::{Checker, Hint, misspelt};
use super::life::{LifeFields, ON_END, ON_VIOLATION, deadlines};
use super::path::Path;
use super::rollout::FleetFields;
use super::task::{BOTH_PLACES, timeouts};
use super::tree::{Content, Entry, Node};
use crate::backend::Catalogue;
use crate::cluster::{BadName, check_name};
use crate::limits;
use crate::spec::{Definition, Noted, On, Overlap, Problem, Strategy};

/// The names that other tools use for the fields of a job.
const OTHER_NAMES: &[Hint] = &[
    ("hosts", "did you mean `target`?"),
    ("nodes", "did you mean `target`?"),
    ("selector", "did you mean `target`?"),
    ("steps", "did you mean `tasks`?"),
    ("jobs", "did you mean `tasks`?"),
    ("stages", "did you mean `tasks`?"),
    ("vars", "did you mean `params`?"),
    ("inputs", "did you mean `params`?"),
    ("cron", "did you mean `schedule: {cron: …}`?"),
    ("every", "did you mean `schedule: {every: …}`?"),
    ("timezone", "put it under `schedule`"),
    ("catch_up", "put it under `schedule`"),
    ("jitter", "put it under `schedule`"),
    ("trigger", "did you mean `triggers`?"),
    ("webhook", "did you mean `triggers: [{http: …}]`?"),
    ("serial", "did you mean `rollout: {batch: 1}`?"),
    ("concurrency", "did you mean `overlap`, `max_parallel`, or `limits`?"),
    ("max_concurrent_runs", "put it under `constraints`"),
    ("max_allowed", "put it under `constraints`"),
    ("max_expected", "put it under `constraints`"),
    ("backend", "a job has a list of tasks; put it on a task under `tasks`"),
    ("action", "a job has a list of tasks; put it on a task under `tasks`"),
    ("env", "put it under `params` of the tasks that need it"),
    ("max_retries", "put it on the tasks that may be repeated; `retry: {max: …}` repeats the whole run"),
];
pub(in crate::spec) const PRIORITIES: std::ops::RangeInclusive<i32> = -100..=100;

pub(super) fn check(tree: &Node<'_>, catalogue: &Catalogue) -> Result<Noted, Vec<Problem>> {
    let mut checker = Checker::new(catalogue);
    match checker.job(tree) {
        Some(definition) if checker.is_clean() => Ok(Noted { definition, notes: checker.into_notes() }),
        _ => Err(checker.into_problems()),
    }
}

impl Checker<'_> {
    fn job(&mut self, tree: &Node<'_>) -> Option<Definition> {
        let top = Path::Top;
        let entries = self.job_entries(tree)?;
        let mut fleet = FleetFields::default();
        let (mut definition, tasks) = self.job_fields(entries, &mut fleet);
        let path = top.field("tasks");
        let Some(tasks) = tasks else {
            if !misspelt(entries, "tasks", &[On::Job]) {
                self.problem(top, tree.at, "the field `tasks` is missing; a job needs at least one task");
            }
            return None;
        };
        let items = self.job_tasks(path, tasks)?;
        // Keeps each entry at its index in the file, valid or not, so that references to it can still be checked.
        let mut read = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            if self.is_full() {
                return None;
            }
            read.push(self.entry(path.index(index), item));
        }
        self.names(path, items);
        self.graph(path, items);
        definition.tasks = read.into_iter().collect::<Option<_>>()?;
        self.fleet_rules(&definition, fleet);
        self.fan_out_rules(path, items, &definition);
        // Names in expressions can only be checked in a job that is valid so far.
        if self.is_clean() {
            self.expressions(path, items, &definition);
        }
        Some(definition)
    }

    /// Reads the name or the id of a cluster.
    fn cluster(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<String> {
        let text = self.text(path, node, "the name of a cluster")?;
        match check_name(text) {
            Ok(()) | Err(BadName::LooksLikeId) => Some(text.to_owned()),
            Err(error) => self.refuse(path, node.at, error.to_string()),
        }
    }

    fn job_entries<'n, 't>(&mut self, tree: &'n Node<'t>) -> Option<&'n [Entry<'t>]> {
        let message = match tree.content() {
            Content::Map(entries) => return Some(entries),
            Content::Null => "the file is empty; a job needs at least a list of `tasks`",
            Content::List(_) => "a job is a map of fields, not a list; put the list under `tasks:`",
            _ => return self.refuse_kind(Path::Top, tree, "a map of fields, at least `tasks`"),
        };
        self.refuse(Path::Top, tree.at, message)
    }

    /// Reads all fields except `tasks`, which it returns.
    fn job_fields<'n, 't>(
        &mut self,
        entries: &'n [Entry<'t>],
        fleet: &mut FleetFields,
    ) -> (Definition, Option<&'n Node<'t>>) {
        let top = Path::Top;
        let mut definition = Definition::default();
        let (mut tasks, mut triggers, mut placement_at) = (None, None, None);
        let mut life = LifeFields::default();
        for entry in entries {
            let field = top.field(&entry.key);
            let value = &entry.value;
            match entry.key.as_ref() {
                "name" => definition.name = self.identifier(field, value),
                "cluster" => definition.cluster = self.cluster(field, value),
                "target" => {
                    fleet.targeted = true;
                    definition.target = self.target(field, value);
                }
                "placement" => {
                    placement_at = Some(entry.at);
                    definition.placement = self.placement(field, value);
                }
                "strategy" => {
                    fleet.strategy = Some(entry.at);
                    definition.strategy = self.choice(field, value, &Strategy::ALL);
                }
                "rollout" => {
                    fleet.rollout = Some(entry.at);
                    definition.rollout = self.rollout(field, value);
                }
                "exclusive" => {
                    fleet.exclusive = Some(entry.at);
                    definition.exclusive = self.boolean(field, value).unwrap_or_default();
                }
                "priority" => {
                    definition.priority = self.whole_number(field, value, PRIORITIES).unwrap_or_default();
                }
                "params" => definition.params = self.job_params(field, value).unwrap_or_default(),
                "timeout" => {
                    definition.timeout = self.span(field, value, timeouts(limits::RUN_TIMEOUT_MOST_S));
                }
                "cleanup_timeout" => {
                    definition.cleanup_timeout =
                        self.span(field, value, timeouts(limits::TASK_TIMEOUT_MOST_S));
                }
                "retry" => definition.retry = self.retry(field, value),
                "max_parallel" => definition.max_parallel = self.parallel(field, value),
                "limits" => definition.limits = self.limits(field, value).unwrap_or_default(),
                "placement_timeout" => {
                    definition.placement_timeout =
                        self.span(field, value, timeouts(limits::TASK_TIMEOUT_MOST_S));
                }
                "schedule" => definition.schedule = self.schedules(field, value),
                "constraints" => {
                    life.constraints = Some(entry.at);
                    definition.constraints = self.constraints(field, value);
                }
                "overlap" => {
                    life.overlap = Some(entry.at);
                    definition.overlap = self.choice(field, value, &Overlap::ALL);
                }
                "on_violation" => {
                    life.on_violation = Some(entry.at);
                    definition.on_violation = self.actions(field, value, ON_VIOLATION);
                }
                "on_success" => definition.on_success = self.actions(field, value, ON_END),
                "on_failure" => definition.on_failure = self.actions(field, value, ON_END),
                "deadline" => definition.deadline = self.span(field, value, deadlines()),
                // They set params, which may follow.
                "triggers" => triggers = Some(value),
                "tasks" => tasks = Some(value),
                _ => self.unknown_field(top, entry, &[On::Job], OTHER_NAMES),
            }
        }
        self.life_rules(&definition, life, entries);
        if fleet.rollout.is_none() {
            definition.strategy.get_or_insert_default();
        }
        if let Some(triggers) = triggers {
            definition.triggers = self.triggers(top.field("triggers"), triggers, &definition);
        }
        if let Some(at) = placement_at
            && fleet.targeted
        {
            self.problem(top.field("placement"), at, BOTH_PLACES);
        }
        (definition, tasks)
    }

    /// Returns the entries of `tasks`: at least one, and not too many.
    fn job_tasks<'n, 't>(&mut self, path: Path<'_>, tasks: &'n Node<'t>) -> Option<&'n [Node<'t>]> {
        let items = match tasks.content() {
            Content::Null => &[],
            _ => self.list(path, tasks, "tasks")?,
        };
        let steps: usize = items.iter().map(leaves).sum();
        if items.is_empty() {
            return self.refuse(path, tasks.at, "is empty; a job needs at least one task");
        }
        if steps > limits::STEPS_PER_RUN {
            let most = limits::STEPS_PER_RUN;
            let message = format!("there are {steps} steps; a run may have at most {most}; split the job");
            return self.refuse(path, tasks.at, message);
        }
        Some(items)
    }
}

/// Returns how many steps an entry of `tasks` has.
fn leaves(item: &Node<'_>) -> usize {
    item.field("tasks").and_then(Node::as_list).map_or(1, <[_]>::len)
}
