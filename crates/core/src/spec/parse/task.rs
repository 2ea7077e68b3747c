//! Reads one entry of `tasks`: a leaf, or a branch of leaves. `action` reads the leaf's action and params.

use super::action::WorkFields;
use super::field::{Checker, Hint, misspelt};
use super::path::Path;
use super::tree::{Content, Entry, Node};
use crate::limits;
use crate::shown::shown;
use crate::span::Span;
use crate::spec::definition::{self, Approve, Branch, Condition, Delivery, OnDisconnect, Retry, Task};
use crate::spec::{At, On, fields};

/// An entry under the job's `tasks` is a task or a branch.
const ENTRY: &[On] = &[On::Task, On::Branch];
/// The names that other tools use for the fields of a task.
const OTHER_NAMES: &[Hint] = &[
    ("run", "write `backend: exec`, `action: shell` and `params: {command: ...}`"),
    ("shell", "write `backend: exec`, `action: shell` and `params: {command: ...}`"),
    ("script", "write `backend: exec`, `action: shell` and `params: {command: ...}`"),
    ("command", "put it under `params`: backend: exec, action: run, params: {command: ...}"),
    ("env", "put it under `params`"),
    ("working_dir", "put it under `params`"),
    ("cmd", "write `backend: exec`, `action: run` and `params: {command: ...}`"),
    ("module", "did you mean `backend`?"),
    ("uses", "did you mean `backend`?"),
    ("type", "did you mean `backend`?"),
    ("with", "did you mean `params`?"),
    ("args", "did you mean `params`?"),
    ("needs", "did you mean `depends_on`?"),
    ("depends", "did you mean `depends_on`?"),
    ("after", "did you mean `depends_on`?"),
    ("if", "did you mean `condition`?"),
    ("when", "did you mean `condition`?"),
    ("on_failure", "did you mean `condition: on_failure`?"),
    ("ignore_errors", "did you mean `strategy: continue` at the job?"),
    ("continue_on_error", "did you mean `strategy: continue` at the job?"),
    ("loop", "did you mean `for_each`?"),
    ("with_items", "did you mean `for_each`?"),
    ("matrix", "did you mean `for_each`?"),
    ("register", "did you mean `outputs`?"),
    ("hosts", "did you mean `target`?"),
    ("nodes", "did you mean `target`?"),
    ("id", "did you mean `name`?"),
    ("steps", "did you mean `tasks`?"),
];
const LONGEST_FACTOR: f64 = 100.0;

impl Checker<'_> {
    pub(super) fn entry(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<definition::Entry> {
        let entries = self.map(path, node, "a task's fields")?;
        if entries.iter().any(|entry| entry.key == "tasks") {
            self.branch(path, entries).map(definition::Entry::Branch)
        } else {
            self.leaf(path, node.at, entries, On::Task).map(definition::Entry::Leaf)
        }
    }

    fn branch(&mut self, path: Path<'_>, entries: &[Entry<'_>]) -> Option<Branch> {
        let mut branch = Branch::default();
        for entry in entries {
            let field = path.field(&entry.key);
            let value = &entry.value;
            match entry.key.as_ref() {
                "name" => branch.name = self.label(field, value),
                "condition" => branch.condition = self.choice(field, value, &Condition::ALL),
                "depends_on" => branch.depends_on = self.texts(field, value, "task names"),
                "for_each" => branch.for_each = self.for_each(field, value),
                "tasks" => branch.tasks = self.leaves(field, value),
                key if fields::names(&[On::Task]).contains(&key) => {
                    let message = format!(
                        "an entry with `tasks` is a branch, and a branch has no `{key}`; put it on its leaves"
                    );
                    self.problem(field, entry.at, message);
                }
                _ => self.unknown_field(path, entry, &[On::Branch], OTHER_NAMES),
            }
        }
        Some(branch)
    }

    fn leaves(&mut self, path: Path<'_>, node: &Node<'_>) -> Vec<Task> {
        let Some(items) = self.list(path, node, "tasks") else { return Vec::new() };
        if items.is_empty() {
            self.problem(path, node.at, "the branch is empty; give it a task, or remove it");
        }
        let mut tasks = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let path = path.index(index);
            let Some(entries) = self.map(path, item, "a task's fields") else { continue };
            if let Some(deeper) = entries.iter().find(|entry| entry.key == "tasks") {
                self.problem(path.field("tasks"), deeper.at, ONLY_LEAVES);
                continue;
            }
            tasks.extend(self.leaf(path, item.at, entries, On::Leaf));
        }
        tasks
    }

    /// Reads a task directly under the job's `tasks` (`On::Task`) or in a branch (`On::Leaf`).
    fn leaf(&mut self, path: Path<'_>, at: At, entries: &[Entry<'_>], on: On) -> Option<Task> {
        let mut task = Task::default();
        let mut work = WorkFields::default();
        let (mut max_retries_at, mut retry_at, mut placement_at) = (None, None, None);
        let (mut misplaced_params, mut is_approval) = (false, false);
        for entry in entries {
            let field = path.field(&entry.key);
            let value = &entry.value;
            match entry.key.as_ref() {
                "name" => task.name = self.label(field, value),
                "backend" => work.backend = Some((value, self.text(field, value, "the name of a backend"))),
                "action" => work.action = Some((value, self.text(field, value, "the name of an action"))),
                "params" => work.params = Some(value),
                "timeout" => task.timeout = self.span(field, value, timeouts(limits::TASK_TIMEOUT_MOST_S)),
                "max_retries" => {
                    max_retries_at = Some(entry.at);
                    task.retry = self.whole_number(field, value, 0..=limits::RETRIES).map(Retry::times);
                }
                "retry" => {
                    retry_at = Some(entry.at);
                    task.retry = self.retry(field, value);
                }
                "condition" => task.condition = self.choice(field, value, &Condition::ALL),
                "delivery" => task.delivery = self.choice(field, value, &Delivery::ALL),
                "outputs" => task.outputs = self.outputs(field, value).unwrap_or_default(),
                "on_disconnect" => task.on_disconnect = self.choice(field, value, &OnDisconnect::ALL),
                key @ ("depends_on" | "target" | "placement" | "for_each") if on == On::Leaf => {
                    self.problem(field, entry.at, misplaced(key));
                }
                "depends_on" => task.depends_on = self.texts(field, value, "task names"),
                "for_each" => task.for_each = self.for_each(field, value),
                "limits" => task.limits = self.limits(field, value).unwrap_or_default(),
                "cache" => task.cache = self.cache(field, value),
                "placement_timeout" => {
                    task.placement_timeout = self.span(field, value, timeouts(limits::TASK_TIMEOUT_MOST_S));
                }
                "target" => task.target = self.target(field, value),
                "placement" => {
                    placement_at = Some(entry.at);
                    task.placement = self.placement(field, value);
                }
                "max_parallel" => self.problem(field, entry.at, PARALLEL_ON_TASK),
                "approve" if on == On::Leaf => self.problem(field, entry.at, APPROVAL_IN_BRANCH),
                "approve" => {
                    is_approval = true;
                    task.approve = self.approve(field, value);
                }
                key if self.is_param(entries, key) => {
                    misplaced_params = true;
                    let message = format!("`{key}` is a param of the action; put it under `params:`");
                    self.problem(field, entry.at, message);
                }
                _ => {
                    let valid = if on == On::Task { ENTRY } else { &[On::Leaf] };
                    self.unknown_field(path, entry, valid, OTHER_NAMES);
                }
            }
        }
        if let (Some(_), Some(at)) = (max_retries_at, retry_at) {
            let message =
                "`max_retries` and `retry` are both given; keep one (max_retries: 3 is retry: {max: 3})";
            self.problem(path.field("retry"), at, message);
        }
        if let (Some(_), Some(at)) = (&task.target, placement_at) {
            self.problem(path.field("placement"), at, BOTH_PLACES);
        }
        if is_approval {
            let known = fields::names(&[On::Task]);
            let is_other = |key: &str| known.contains(&key) && !APPROVAL.contains(&key);
            for entry in entries.iter().filter(|entry| is_other(&entry.key)) {
                let message = format!(
                    "a person decides a task with `approve`, so it has no `{}`; remove one of them",
                    shown(&entry.key)
                );
                self.problem(path.field(&entry.key), entry.at, message);
            }
            return Some(task);
        }
        self.require_work(path, at, entries, &work);
        // Misplaced params must not also be reported as missing.
        if misplaced_params {
            return None;
        }
        self.action(path, at, &mut task, work)?;
        Some(task)
    }

    fn approve(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<Approve> {
        let mut approve = Approve::default();
        for entry in self.fields_of(path, node, On::Approve)? {
            let field = path.field(&entry.key);
            let value = &entry.value;
            match entry.key.as_ref() {
                "message" => {
                    let text = self.text(field, value, "a question such as \"Deploy to production?\"");
                    let (bytes, most) = (text.map_or(0, str::len), limits::APPROVAL_TEXT_BYTES);
                    if bytes > most {
                        let message = format!("the message has {bytes} bytes; at most {most} are possible");
                        self.problem(field, value.at, message);
                    }
                    if !self.refuse_expression(field, value, "`message`") {
                        approve.message = text.map(str::to_owned);
                    }
                }
                "timeout" => {
                    approve.timeout = self.span(field, value, timeouts(limits::RUN_TIMEOUT_MOST_S));
                }
                _ => self.unknown_field(path, entry, &[On::Approve], &[]),
            }
        }
        Some(approve)
    }

    /// Reports a task without a `backend` or an `action`, unless the field is only misspelt.
    fn require_work(&mut self, path: Path<'_>, at: At, entries: &[Entry<'_>], work: &WorkFields<'_, '_>) {
        let missing = |field: &str, found: bool| !found && !misspelt(entries, field, ENTRY);
        let no_backend = missing("backend", work.backend.is_some());
        let no_action = missing("action", work.action.is_some());
        let message = match (no_backend, no_action) {
            (true, true) => "a task needs a `backend` and an `action` (or `tasks`, to be a branch)",
            (true, false) => "the field `backend` is missing; what carries out the action?",
            (false, true) => "the field `action` is missing; what should the backend do?",
            (false, false) => return,
        };
        self.problem(path, at, message);
    }

    pub(super) fn retry(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<Retry> {
        let entries = self.fields_of(path, node, On::Retry)?;
        let (mut max, mut delay, mut factor, mut max_delay) = (None, None, None, None);
        for entry in entries {
            let field = path.field(&entry.key);
            let value = &entry.value;
            match entry.key.as_ref() {
                "max" => max = Some(self.whole_number(field, value, 0..=limits::RETRIES).unwrap_or_default()),
                "delay" => delay = self.span(field, value, pauses()),
                "max_delay" => max_delay = self.span(field, value, pauses()),
                "factor" => match value.content() {
                    Content::Number { value: number, .. }
                        if number.as_f64().is_some_and(|factor| (1.0..=LONGEST_FACTOR).contains(&factor)) =>
                    {
                        factor = number.as_f64();
                    }
                    _ => self.wrong(field, value, &format!("a number from 1 to {LONGEST_FACTOR}")),
                },
                _ => self.unknown_field(path, entry, &[On::Retry], &[]),
            }
        }
        let Some(max) = max else {
            if !misspelt(entries, "max", &[On::Retry]) {
                self.problem(path, node.at, "the field `max` is missing: the number of retries");
            }
            return None;
        };
        let delay = delay.unwrap_or_else(Retry::default_delay);
        // The default cap must not shorten a longer delay that the user set.
        let max_delay = max_delay.unwrap_or_else(|| Retry::default_max_delay().max(delay));
        if max_delay < delay {
            let message = format!("max_delay {max_delay} is shorter than delay {delay}; raise it");
            self.problem(path, node.at, message);
        }
        Some(Retry { max, delay, factor: factor.unwrap_or_else(Retry::default_factor), max_delay })
    }
}

/// The fields of a task that a person decides.
pub(in crate::spec) const APPROVAL: [&str; 4] = ["name", "approve", "condition", "depends_on"];

const APPROVAL_IN_BRANCH: &str = "a branch runs on each node at its own pace, and a person approves once for all nodes; \
     move the task out of the branch";

const ONLY_LEAVES: &str =
    "a branch cannot contain another branch; move these tasks up, or into a separate branch";

const PARALLEL_ON_TASK: &str = "set it in `for_each`: {items: [...], \
     max_parallel: 2}; for the whole run, set it on the job";

pub(super) const BOTH_PLACES: &str =
    "`target` (on each of these nodes) and `placement` (once, on one fitting node) are both given; keep one";

pub(super) fn timeouts(most_s: u64) -> std::ops::RangeInclusive<Span> {
    Span::from_secs(limits::TASK_TIMEOUT_LEAST_S)..=Span::from_secs(most_s)
}

fn pauses() -> std::ops::RangeInclusive<Span> {
    Span::default()..=Span::from_secs(limits::TASK_TIMEOUT_MOST_S)
}

fn misplaced(key: &str) -> String {
    if key == "for_each" {
        "a leaf in a branch cannot have `for_each`; put it on the branch".to_owned()
    } else if key == "depends_on" {
        "a leaf inside a branch runs after the leaf before it and has no `depends_on`; put it on the branch"
            .to_owned()
    } else {
        format!(
            "a branch runs on the job's nodes, so a leaf inside it cannot have a `{key}`; move it out of the branch"
        )
    }
}
