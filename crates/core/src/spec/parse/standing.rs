//! Reads standing tasks: one from a request, a change of one, or the list of a file.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use serde_json::Value;

use super::field::{Checker, Hint};
use super::path::Path;
use super::read::{beyond, with_tree};
use super::tree::{Content, Entry, Node};
use crate::backend::{Catalogue, ParamProblem, Params, check_params};
use crate::expr::{has_expression, looks_like_expression, read_by_a_shell};
use crate::ids::TaskId;
use crate::limits;
use crate::nearest::advice;
use crate::shown::shown;
use crate::span::Span;
use crate::spec::{At, Problem};
use crate::standing::{StandingTask, TaskFields};

const FIELDS: &[&str] = &[
    "name",
    "command",
    "backend",
    "action",
    "params",
    "blocking",
    "timeout",
    "working_dir",
    "selector",
    "type",
    "config",
];
const CONFIG_FIELDS: &[&str] = &["command", "timeout_seconds", "working_dir"];
/// Fields that a standing task does not have, and what to do instead.
const OTHER_NAMES: &[Hint] = &[
    ("order", "the order of the list is its order; use `position`, or reorder the list"),
    ("position", "it is a parameter of the address: ?position=1"),
    ("id", "the server gives each task its id"),
    ("shell", "did you mean `command`?"),
    ("run", "did you mean `command`?"),
    ("target", "did you mean `selector`?"),
    ("nodes", "did you mean `selector`?"),
    ("timeout_seconds", "write `timeout` with a unit: 30m"),
    ("env", "put it under `params`, with `backend` and `action`"),
    ("max_retries", "a standing task is not retried; `downbeat task rerun` does it again"),
    ("condition", "a standing task has none; `blocking` decides what follows its failure"),
];
const EXPRESSION: &str = "a standing task cannot contain expressions (`{{`); write the value out";
const BOTH: &str =
    "is given besides `backend` and `action`; keep one: the command, or backend, action and params";
const NEEDS_WORK: &str = "a task needs a `command`, or a `backend` and an `action`";
const ONE_FORM: &str = "a `command` is given here and in `config`; keep one";
const EMPTY_FILE: &str = "the file is empty; it needs a list of `tasks`, which may be empty";

/// Reads the file with the list of a cluster's standing tasks, YAML or JSON.
pub fn parse_standing_list(
    text: &str,
    origin: &str,
    catalogue: &Catalogue,
) -> Result<Vec<TaskFields>, Vec<Problem>> {
    with_tree(text, origin, EMPTY_FILE, |tree| check(catalogue, |checker| checker.standing_list(tree)))
}

/// Reads the list from JSON. Problems have a path but no position.
pub fn standing_list_of_json(value: &Value, catalogue: &Catalogue) -> Result<Vec<TaskFields>, Vec<Problem>> {
    read_json(value, |tree| check(catalogue, |checker| checker.standing_list(tree)))
}

/// Reads a new task from JSON.
pub fn standing_task_of_json(value: &Value, catalogue: &Catalogue) -> Result<TaskFields, Vec<Problem>> {
    read_json(value, |tree| check(catalogue, |checker| checker.standing_task(Path::Top, tree, None)))
}

/// Reads a change of a task from JSON: the fields that it lacks stay as they are.
pub fn standing_update_of_json(
    value: &Value,
    task: &StandingTask,
    catalogue: &Catalogue,
) -> Result<TaskFields, Vec<Problem>> {
    let known = TaskFields::of(task);
    read_json(value, |tree| check(catalogue, |checker| checker.standing_task(Path::Top, tree, Some(&known))))
}

pub(super) fn read_json<T>(
    value: &Value,
    check: impl FnOnce(&Node<'_>) -> Result<T, Vec<Problem>>,
) -> Result<T, Vec<Problem>> {
    Node::of_json(value).map_err(beyond).and_then(|tree| check(&tree))
}

pub(super) fn check<T>(
    catalogue: &Catalogue,
    read: impl FnOnce(&mut Checker<'_>) -> Option<T>,
) -> Result<T, Vec<Problem>> {
    let mut checker = Checker::new(catalogue);
    match read(&mut checker) {
        Some(read) if checker.is_clean() => Ok(read),
        _ => Err(checker.into_problems()),
    }
}

/// The fields of a task that say what it does. Several of them exclude each other.
#[derive(Clone, Copy, Default)]
struct Work<'n, 't> {
    backend: Option<&'n Node<'t>>,
    action: Option<&'n Node<'t>>,
    params: Option<&'n Node<'t>>,
    /// `command` and `working_dir` on the task itself.
    short: Option<&'n Node<'t>>,
    short_at: At,
    config: Option<&'n Node<'t>>,
}

/// Where the params of a task are written.
#[derive(Clone, Copy)]
struct Written<'n, 't> {
    /// The field of the task that has them; `None` if the task itself has.
    field: Option<&'static str>,
    node: Option<&'n Node<'t>>,
    at: At,
}

impl Checker<'_> {
    fn standing_list(&mut self, tree: &Node<'_>) -> Option<Vec<TaskFields>> {
        let top = Path::Top;
        let entries = match tree.content() {
            Content::Map(entries) => entries,
            Content::Null => return self.refuse(top, tree.at, EMPTY_FILE),
            Content::List(_) => {
                let message = "the file is a map with the list of `tasks`, not a list; put it under `tasks:`";
                return self.refuse(top, tree.at, message);
            }
            _ => return self.refuse_kind(top, tree, "a map with the list of `tasks`"),
        };
        let mut tasks = None;
        for entry in entries {
            match entry.key.as_ref() {
                "tasks" => tasks = Some(&entry.value),
                _ => self.unknown_standing(top, entry, &["tasks"], &[]),
            }
        }
        let Some(tasks) = tasks else {
            return self.refuse(top, tree.at, "the field `tasks` is missing; it may be an empty list");
        };
        let path = top.field("tasks");
        let items = match tasks.content() {
            Content::Null => &[],
            _ => self.list(path, tasks, "tasks")?,
        };
        if items.len() > limits::STANDING_TASKS {
            let (count, most) = (items.len(), limits::STANDING_TASKS);
            let message = format!("there are {count} tasks; at most {most} are possible");
            return self.refuse(path, tasks.at, message);
        }
        let mut read = Vec::with_capacity(items.len());
        let mut names: HashMap<String, usize> = HashMap::new();
        for (index, item) in items.iter().enumerate() {
            if self.is_full() {
                return None;
            }
            let path = path.index(index);
            let Some(task) = self.standing_task(path, item, None) else { continue };
            if let Some(first) = names.insert(task.name.clone(), index) {
                let at = item.field("name").map_or(item.at, |name| name.at);
                let name = shown(&task.name);
                let message =
                    format!("the name `{name}` is already that of tasks[{first}]; names are unique");
                self.problem(path.field("name"), at, message);
            }
            read.push(task);
        }
        Some(read)
    }

    /// Reads a task; fields that it lacks are those of the known one.
    fn standing_task(
        &mut self,
        path: Path<'_>,
        node: &Node<'_>,
        known: Option<&TaskFields>,
    ) -> Option<TaskFields> {
        let entries = self.map(path, node, "a task's fields")?;
        let is_new = known.is_none();
        let mut task = known.cloned().unwrap_or_else(|| TaskFields::shell("", ""));
        let mut work = Work::default();
        let mut is_named = !is_new;
        for entry in entries {
            let field = path.field(&entry.key);
            let value = &entry.value;
            match entry.key.as_ref() {
                "name" => {
                    is_named = true;
                    task.name = self.standing_name(field, value).unwrap_or_default();
                }
                "blocking" => task.blocking = self.boolean(field, value).unwrap_or_default(),
                "timeout" => {
                    let timeout = self.span(field, value, timeouts());
                    task.timeout = timeout.unwrap_or(task.timeout);
                }
                "selector" => {
                    task.selector = match value.content() {
                        Content::Null => None,
                        Content::Text(text) if text.is_empty() => None,
                        _ => self.target(field, value),
                    };
                }
                "type" => self.standing_type(field, value),
                "backend" => work.backend = Some(value),
                "action" => work.action = Some(value),
                "params" => work.params = Some(value),
                "config" => work.config = Some(value),
                "command" | "working_dir" => (work.short, work.short_at) = (Some(node), entry.at),
                _ => self.unknown_standing(path, entry, FIELDS, OTHER_NAMES),
            }
        }
        if !is_named {
            self.problem(path, node.at, "the field `name` is missing");
        }
        self.standing_work(path, node.at, &mut task, work, is_new)?;
        Some(task)
    }

    fn standing_name(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<String> {
        let name = self.label(path, node)?;
        let characters = name.chars().count();
        if characters > limits::STANDING_NAME_CHARS {
            let most = limits::STANDING_NAME_CHARS;
            let message = format!("the name has {characters} characters; at most {most} are possible");
            return self.refuse(path, node.at, message);
        }
        // Commands accept a name or an id.
        if name.parse::<TaskId>().is_ok() {
            return self.refuse(path, node.at, "looks like the id of a task; choose another name");
        }
        Some(name)
    }

    fn standing_type(&mut self, path: Path<'_>, node: &Node<'_>) {
        if node.as_text() != Some("exec") {
            self.wrong(path, node, "exec; for other work write `backend`, `action` and `params` instead");
        }
    }

    /// Reads what a task does, in one of its forms, and checks it against the catalogue.
    fn standing_work(
        &mut self,
        path: Path<'_>,
        at: At,
        task: &mut TaskFields,
        work: Work<'_, '_>,
        is_new: bool,
    ) -> Option<()> {
        let is_named = work.backend.is_some() || work.action.is_some();
        let is_long = is_named || work.params.is_some();
        if is_long && (work.short.is_some() || work.config.is_some()) {
            let (field, at) = match work.config {
                Some(config) => ("config", config.at),
                None => ("command", work.short_at),
            };
            return self.refuse(path.field(field), at, BOTH);
        }
        let (given, written) = if is_long {
            if is_new && (work.backend.is_none() || work.action.is_none()) {
                return self.refuse(path, at, NEEDS_WORK);
            }
            self.long_form(path, at, task, work)?
        } else if let Some(config) = work.config {
            if work.short.is_some() {
                return self.refuse(path.field("config"), config.at, ONE_FORM);
            }
            self.config_form(path.field("config"), config, task, is_new)?
        } else if let Some(node) = work.short {
            let written = Written { field: None, node: Some(node), at: node.at };
            (self.short_form(path, node, task, is_new)?, written)
        } else if is_new {
            return self.refuse(path, at, NEEDS_WORK);
        } else {
            return Some(());
        };
        let params_path = written.field.map(|field| path.field(field));
        let params_path = params_path.as_ref().copied().unwrap_or(path);
        let params = self.standing_params(params_path, task, &given, written)?;
        task.params = Arc::new(params);
        Some(())
    }

    /// Reads `backend`, `action` and `params`. Params of another action do not stay.
    fn long_form<'n, 't>(
        &mut self,
        path: Path<'_>,
        at: At,
        task: &mut TaskFields,
        work: Work<'n, 't>,
    ) -> Option<(Params, Written<'n, 't>)> {
        let before = (task.backend.clone(), task.action.clone());
        if let Some(node) = work.backend {
            task.backend = self.text(path.field("backend"), node, "the name of a backend")?.to_owned();
        }
        if let Some(node) = work.action {
            task.action = self.text(path.field("action"), node, "the name of an action")?.to_owned();
        }
        let catalogue = self.catalogue;
        if let Err(unknown) = catalogue.backend(&task.backend) {
            let at = work.backend.map_or(at, |node| node.at);
            return self.refuse(path.field("backend"), at, unknown.to_string());
        }
        let schema = match catalogue.action(&task.backend, &task.action) {
            Ok(schema) => schema,
            Err(unknown) => {
                let at = work.action.map_or(at, |node| node.at);
                return self.refuse(path.field("action"), at, unknown.to_string());
            }
        };
        let written =
            Written { field: Some("params"), node: work.params, at: work.params.map_or(at, |node| node.at) };
        let field = path.field("params");
        let given = match work.params.map(|node| (node, node.content())) {
            None if before == (task.backend.clone(), task.action.clone()) => (*task.params).clone(),
            None | Some((_, Content::Null)) => Params::new(),
            Some((_, Content::Map(entries))) => self.given_params(field, entries, &task.backend, schema),
            Some((node, _)) => return self.refuse_kind(field, node, "a map of params"),
        };
        Some((given, written))
    }

    /// Reads `config: {command, timeout_seconds, working_dir}`.
    fn config_form<'n, 't>(
        &mut self,
        path: Path<'_>,
        node: &'n Node<'t>,
        task: &mut TaskFields,
        is_new: bool,
    ) -> Option<(Params, Written<'n, 't>)> {
        let entries = self.map(path, node, "command, timeout_seconds, working_dir")?;
        for entry in entries {
            match entry.key.as_ref() {
                "command" | "working_dir" => {}
                "timeout_seconds" => {
                    let field = path.field("timeout_seconds");
                    let range = limits::STANDING_TIMEOUT_LEAST_S..=limits::TASK_TIMEOUT_MOST_S;
                    let seconds = self.whole_number(field, &entry.value, range);
                    task.timeout = seconds.map_or(task.timeout, Span::from_secs);
                }
                _ => self.unknown_standing(path, entry, CONFIG_FIELDS, &[]),
            }
        }
        let given = self.short_form(path, node, task, is_new)?;
        Some((given, Written { field: Some("config"), node: Some(node), at: node.at }))
    }

    /// Reads `command` and `working_dir` of a map. The other params of a command that is known stay.
    fn short_form(
        &mut self,
        path: Path<'_>,
        node: &Node<'_>,
        task: &mut TaskFields,
        is_new: bool,
    ) -> Option<Params> {
        let mut params = if task.is_shell() && !is_new { (*task.params).clone() } else { Params::new() };
        "exec".clone_into(&mut task.backend);
        "shell".clone_into(&mut task.action);
        if let Some(value) = node.field("command") {
            let command = self.text(path.field("command"), value, "a line or a script for bash -c")?;
            if command.trim().is_empty() {
                return self.refuse(path.field("command"), value.at, "must not be empty");
            }
            params.insert("command".to_owned(), Value::String(command.to_owned()));
        }
        if let Some(value) = node.field("working_dir") {
            match value.content() {
                Content::Null => params.remove("working_dir"),
                Content::Text(text) if text.is_empty() => params.remove("working_dir"),
                _ => {
                    let path = path.field("working_dir");
                    let directory = self.text(path, value, "an absolute path")?;
                    params.insert("working_dir".to_owned(), Value::String(directory.to_owned()))
                }
            };
        }
        if !params.contains_key("command") {
            return self.refuse(path, node.at, "the field `command` is missing");
        }
        Some(params)
    }

    /// Checks the params, and returns them in the form that a backend reads.
    fn standing_params(
        &mut self,
        path: Path<'_>,
        task: &TaskFields,
        given: &Params,
        written: Written<'_, '_>,
    ) -> Option<Params> {
        let schema = match self.catalogue.action(&task.backend, &task.action) {
            Ok(schema) => schema,
            Err(unknown) => return self.refuse(path, written.at, unknown.to_string()),
        };
        let shell = read_by_a_shell(&task.backend, &task.action);
        let holds = |(name, value): &(&String, &Value)| match value {
            Value::String(text) if shell == Some(name.as_str()) => looks_like_expression(text),
            value => has_expression(value),
        };
        let mut problems: Vec<ParamProblem> = given
            .iter()
            .filter(holds)
            .map(|(name, _)| ParamProblem {
                param: name.clone(),
                element: None,
                message: EXPRESSION.to_owned(),
            })
            .collect();
        if task.backend == "exec"
            && let Some(Value::String(directory)) = given.get("working_dir")
            && !directory.starts_with('/')
        {
            let message = format!("must be an absolute path, not `{}`", shown(directory));
            problems.push(ParamProblem { param: "working_dir".to_owned(), element: None, message });
        }
        let checked = match check_params(schema, given) {
            Ok(checked) if problems.is_empty() => checked,
            Ok(_) => Params::new(),
            Err(wrong) => {
                problems.extend(wrong);
                Params::new()
            }
        };
        if problems.is_empty() {
            return Some(checked);
        }
        for problem in problems {
            match written.node {
                Some(node) if node.field(&problem.param).is_some() => self.param_problem(path, node, problem),
                _ => self.problem(path.field(&problem.param), written.at, problem.message),
            }
        }
        None
    }

    fn unknown_standing(&mut self, path: Path<'_>, entry: &Entry<'_>, valid: &[&str], hints: &[Hint]) {
        let key = entry.key.as_ref();
        let hint = hints.iter().find(|(name, _)| *name == key).map(|(_, hint)| (*hint).to_owned());
        let hint = hint.unwrap_or_else(|| advice(key, valid, "fields"));
        self.problem(path.field(key), entry.at, format!("unknown field `{}`; {hint}", shown(key)));
    }
}

fn timeouts() -> RangeInclusive<Span> {
    Span::from_secs(limits::STANDING_TIMEOUT_LEAST_S)..=Span::from_secs(limits::TASK_TIMEOUT_MOST_S)
}
