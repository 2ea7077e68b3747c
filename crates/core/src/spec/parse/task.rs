//! Reads one entry of `tasks`: a leaf, or a branch of leaves.

use super::field::{Checker, Hint, misspelt};
use super::path::Path;
use super::tree::{Content, Entry, Node};
use crate::backend::{
    Element, ParamKind, ParamProblem, ParamSchema, Params, check_params_but, params_bytes, shell_sign,
};
use crate::expr::{Template, has_expression, looks_like_expression, read_by_a_shell};
use crate::limits;
use crate::span::Span;
use crate::spec::At;
use crate::spec::definition::{self, Branch, Condition, Delivery, OnDisconnect, Retry, Task};

const LEAF_FIELDS: &[&str] = &[
    "name",
    "backend",
    "action",
    "params",
    "timeout",
    "max_retries",
    "retry",
    "condition",
    "depends_on",
    "target",
    "placement",
    "delivery",
    "on_disconnect",
    "outputs",
    "for_each",
    "limits",
    "cache",
    "placement_timeout",
];
const BRANCH_FIELDS: &[&str] = &["name", "condition", "depends_on", "for_each", "tasks"];
const ENTRY_FIELDS: &[&str] = &[
    "name",
    "backend",
    "action",
    "params",
    "timeout",
    "max_retries",
    "retry",
    "condition",
    "depends_on",
    "target",
    "placement",
    "delivery",
    "on_disconnect",
    "outputs",
    "for_each",
    "limits",
    "cache",
    "placement_timeout",
    "tasks",
];
/// What other tools call the fields of a task.
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
const RETRY_FIELDS: &[&str] = &["max", "delay", "factor", "max_delay"];

const CONDITIONS: &[(&str, Condition)] = &[
    ("always", Condition::Always),
    ("on_success", Condition::OnSuccess),
    ("on_failure", Condition::OnFailure),
];
const DELIVERIES: &[(&str, Delivery)] =
    &[("at_least_once", Delivery::AtLeastOnce), ("at_most_once", Delivery::AtMostOnce)];
const ON_DISCONNECTS: &[(&str, OnDisconnect)] =
    &[("continue", OnDisconnect::Continue), ("stop", OnDisconnect::Stop)];

const LONGEST_FACTOR: f64 = 100.0;

/// Where a leaf stands decides what it may say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Top,
    InBranch,
}

impl Checker<'_> {
    pub(super) fn entry(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<definition::Entry> {
        let entries = self.map(path, node, "a task's fields")?;
        if entries.iter().any(|entry| entry.key == "tasks") {
            self.branch(path, entries).map(definition::Entry::Branch)
        } else {
            self.leaf(path, node.at, entries, Place::Top).map(definition::Entry::Leaf)
        }
    }

    fn branch(&mut self, path: Path<'_>, entries: &[Entry<'_>]) -> Option<Branch> {
        let mut branch =
            Branch { name: None, condition: None, depends_on: None, for_each: None, tasks: Vec::new() };
        for entry in entries {
            let field = path.field(&entry.key);
            let value = &entry.value;
            match entry.key.as_ref() {
                "name" => branch.name = self.label(field, value),
                "condition" => branch.condition = self.choice(field, value, CONDITIONS),
                "depends_on" => {
                    branch.depends_on = self.texts(field, value, "task names");
                }
                "for_each" => branch.for_each = self.for_each(field, value),
                "tasks" => branch.tasks = self.leaves(field, value),
                key if LEAF_FIELDS.contains(&key) => self.problem(
                    field,
                    entry.at,
                    format!(
                        "an entry with `tasks` is a branch, and a branch has no `{key}`; put it on its leaves"
                    ),
                ),
                _ => self.unknown_field(path, entry, BRANCH_FIELDS, &[], OTHER_NAMES),
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
                self.problem(
                    path.field("tasks"),
                    deeper.at,
                    "a branch holds leaves only: two levels; move these tasks up, or into a branch of their own",
                );
                continue;
            }
            tasks.extend(self.leaf(path, item.at, entries, Place::InBranch));
        }
        tasks
    }

    fn leaf(&mut self, path: Path<'_>, at: At, entries: &[Entry<'_>], place: Place) -> Option<Task> {
        let mut task = Task {
            name: None,
            backend: String::new(),
            action: String::new(),
            params: Params::new(),
            timeout: None,
            retry: None,
            condition: None,
            depends_on: None,
            target: None,
            placement: None,
            delivery: None,
            on_disconnect: None,
            outputs: Vec::new(),
            for_each: None,
            limits: Default::default(),
            cache: None,
            placement_timeout: None,
        };
        let (mut backend, mut action, mut params) = (None, None, None);
        let (mut max_retries_at, mut retry_at, mut placement_at) = (None, None, None);
        let mut misplaced_params = false;
        for entry in entries {
            let field = path.field(&entry.key);
            let value = &entry.value;
            match entry.key.as_ref() {
                "name" => task.name = self.label(field, value),
                "backend" => backend = Some((value, self.text(field, value, "the name of a backend"))),
                "action" => action = Some((value, self.text(field, value, "the name of an action"))),
                "params" => params = Some(value),
                "timeout" => task.timeout = self.span(field, value, timeouts(limits::TASK_TIMEOUT_MOST_S)),
                "max_retries" => {
                    max_retries_at = Some(entry.at);
                    task.retry = self.whole_number(field, value, 0..=limits::RETRIES).map(Retry::times);
                }
                "retry" => {
                    retry_at = Some(entry.at);
                    task.retry = self.retry(field, value);
                }
                "condition" => task.condition = self.choice(field, value, CONDITIONS),
                "delivery" => task.delivery = self.choice(field, value, DELIVERIES),
                "outputs" => task.outputs = self.outputs(field, value).unwrap_or_default(),
                "on_disconnect" => task.on_disconnect = self.choice(field, value, ON_DISCONNECTS),
                key @ ("depends_on" | "target" | "placement" | "for_each") if place == Place::InBranch => {
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
                "max_parallel" => {
                    let message = "how many items of a task are under way at once stands beside them: for_each: {items: \
                                   [...], max_parallel: 2}; for all of a run it stands at the job";
                    self.problem(field, entry.at, message);
                }
                key if self.is_param(entries, key) => {
                    misplaced_params = true;
                    let message = format!("`{key}` is a param of the action; put it under `params:`");
                    self.problem(field, entry.at, message);
                }
                _ => {
                    let valid = if place == Place::Top { ENTRY_FIELDS } else { LEAF_FIELDS };
                    self.unknown_field(path, entry, valid, &[], OTHER_NAMES);
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
        let missing = |field: &str, found: bool| !found && !misspelt(entries, field, ENTRY_FIELDS);
        let no_backend = missing("backend", backend.is_some());
        let no_action = missing("action", action.is_some());
        if no_backend && action.is_none() && no_action {
            self.problem(path, at, "a task needs a `backend` and an `action` (or `tasks`, to be a branch)");
        } else if no_backend {
            self.problem(path, at, "the field `backend` is missing; what carries the action out?");
        } else if no_action {
            self.problem(path, at, "the field `action` is missing; what should the backend do?");
        }
        // Those params are not also missing.
        if misplaced_params {
            return None;
        }
        self.action(path, at, &mut task, backend?, action, params)?;
        Some(task)
    }

    /// Whether a field that no task has is a param of the task's action.
    fn is_param(&self, entries: &[Entry<'_>], name: &str) -> bool {
        let text = |field: &str| {
            let entry = entries.iter().find(|entry| entry.key == field)?;
            match entry.value.content() {
                Content::Text(text) => Some(text.as_ref()),
                _ => None,
            }
        };
        let (Some(backend), Some(action)) = (text("backend"), text("action")) else { return false };
        let schema = self.catalogue.action(backend, action);
        schema.is_ok_and(|schema| schema.params.iter().any(|param| param.name == name))
    }

    fn action<'n>(
        &mut self,
        path: Path<'_>,
        at: At,
        task: &mut Task,
        backend: (&Node<'_>, Option<&'n str>),
        action: Option<(&Node<'_>, Option<&'n str>)>,
        params: Option<&Node<'_>>,
    ) -> Option<()> {
        let (backend_node, backend) = backend;
        let backend = backend?;
        let catalogue = self.catalogue;
        if self.refuse_expression(path.field("backend"), backend_node, "`backend`") {
            return None;
        }
        if let Err(unknown) = catalogue.backend(backend) {
            self.problem(path.field("backend"), backend_node.at, unknown.to_string());
            return None;
        }
        let (action_node, action) = action?;
        let action = action?;
        if self.refuse_expression(path.field("action"), action_node, "`action`") {
            return None;
        }
        let schema = match catalogue.action(backend, action) {
            Ok(schema) => schema,
            Err(unknown) => {
                self.problem(path.field("action"), action_node.at, unknown.to_string());
                return None;
            }
        };
        backend.clone_into(&mut task.backend);
        action.clone_into(&mut task.action);

        let path = path.field("params");
        let entries = match params.map(|node| (node, node.content())) {
            None | Some((_, Content::Null)) => &[][..],
            Some((_, Content::Map(entries))) => entries,
            Some((node, _)) => {
                self.wrong(path, node, "a map of params");
                return None;
            }
        };
        let given: Params = entries
            .iter()
            .map(|entry| {
                let kind = schema.params.iter().find(|param| param.name == entry.key).map(|param| param.kind);
                let value = match kind {
                    Some(ParamKind::Argv | ParamKind::Texts | ParamKind::Map) => {
                        entry.value.to_value_of_texts()
                    }
                    _ => entry.value.to_value(),
                };
                (entry.key.clone().into_owned(), value)
            })
            .collect();
        for entry in entries {
            let is_argv = |param: &&ParamSchema| param.name == entry.key && param.kind == ParamKind::Argv;
            if let (Some(param), Content::Text(line)) =
                (schema.params.iter().find(is_argv), entry.value.content())
                && let Some(sign) = shell_sign(line)
            {
                self.note(path.field(&param.name), entry.value.at, no_shell(sign, backend));
            }
        }
        if let Err(problem) = Template::of(backend, action, &given) {
            self.param_problem(path, params?, problem);
            return None;
        }
        let shell = read_by_a_shell(backend, action);
        if let Some(param) = shell
            && let Some(entry) = entries.iter().find(|entry| entry.key == param)
            && given.get(param).and_then(serde_json::Value::as_str).is_some_and(looks_like_expression)
        {
            self.problem(path.field(param), entry.value.at, NO_EXPRESSION_IN_SHELL);
            return None;
        }
        let pending = |param: &str| shell != Some(param) && given.get(param).is_some_and(has_expression);
        match check_params_but(schema, &given, pending) {
            Ok(checked) => {
                let bytes = params_bytes(&checked);
                self.params_bytes += bytes;
                let (found, most, whose) = if bytes > limits::PARAMS_BYTES {
                    (bytes, limits::PARAMS_BYTES, "the params of one task")
                } else {
                    (self.params_bytes, limits::PARAMS_OF_JOB_BYTES, "the params of all tasks up to here")
                };
                if found > most {
                    let at = params.map_or(at, |node| node.at);
                    let message =
                        format!("{whose} are {found} bytes (aliases expanded); at most {most} are possible");
                    self.problem(path, at, message);
                    return None;
                }
                task.params = checked;
                Some(())
            }
            Err(problems) => {
                for problem in problems {
                    let known = schema.params.iter().any(|known| known.name == problem.param);
                    let entry = entries.iter().find(|entry| entry.key == problem.param.as_str());
                    match (entry, params) {
                        (Some(_), Some(params)) if known => self.param_problem(path, params, problem),
                        (Some(entry), _) => {
                            self.problem(path.field(&problem.param), entry.at, problem.message);
                        }
                        (None, params) => {
                            let at = params.map_or(at, |node| node.at);
                            self.problem(path.field(&problem.param), at, problem.message);
                        }
                    }
                }
                None
            }
        }
    }

    /// Notes a problem where its param, or the part of it, stands.
    pub(super) fn param_problem(&mut self, path: Path<'_>, params: &Node<'_>, problem: ParamProblem) {
        let param = path.field(&problem.param);
        let entry = match params.content() {
            Content::Map(entries) => entries.iter().find(|entry| entry.key == problem.param.as_str()),
            _ => None,
        };
        let Some(entry) = entry else { return self.problem(param, params.at, problem.message) };
        match &problem.element {
            None => self.problem(param, entry.value.at, problem.message),
            Some(element) => {
                let at = element_at(&entry.value, element);
                match element {
                    Element::Index(index) => self.problem(param.index(*index), at, problem.message),
                    Element::Key(key) => self.problem(param.field(key), at, problem.message),
                }
            }
        }
    }

    fn retry(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<Retry> {
        let entries = self.map(path, node, "max, delay, factor, max_delay")?;
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
                _ => self.unknown_field(path, entry, RETRY_FIELDS, &[], &[]),
            }
        }
        let Some(max) = max else {
            if !misspelt(entries, "max", RETRY_FIELDS) {
                self.problem(
                    path,
                    node.at,
                    "the field `max` is missing: how often a failed task is tried again",
                );
            }
            return None;
        };
        let delay = delay.unwrap_or_else(Retry::default_delay);
        // The usual cap must not cut a longer pause that was asked for.
        let max_delay = max_delay.unwrap_or_else(|| Retry::default_max_delay().max(delay));
        if max_delay < delay {
            self.problem(
                path,
                node.at,
                format!("max_delay {max_delay} is shorter than delay {delay}; raise it"),
            );
        }
        Some(Retry { max, delay, factor: factor.unwrap_or_else(Retry::default_factor), max_delay })
    }
}

const NO_EXPRESSION_IN_SHELL: &str = "what a shell reads takes no expressions (`{{`); pass the value by `env`, and use the \
     variable in the command";

pub(super) const BOTH_PLACES: &str =
    "`target` (on each of these nodes) and `placement` (once, on one fitting node) are both given; keep one";

pub(super) fn timeouts(most_s: u64) -> std::ops::RangeInclusive<Span> {
    Span::from_secs(limits::TASK_TIMEOUT_LEAST_S)..=Span::from_secs(most_s)
}

fn pauses() -> std::ops::RangeInclusive<Span> {
    Span::default()..=Span::from_secs(limits::TASK_TIMEOUT_MOST_S)
}

/// A command line is split into words, and nothing else: this sign has no meaning in it.
fn no_shell(sign: &str, backend: &str) -> String {
    let instead = match backend {
        "exec" => "`exec shell` runs a command in a shell",
        _ => "write [sh, -c, COMMAND] to run it in a shell",
    };
    format!("no shell reads `{sign}` here, the program gets it as it is; {instead}")
}

fn misplaced(key: &str) -> String {
    if key == "for_each" {
        "a branch is walked for each item, so a leaf inside it has no `for_each`; put it on the branch"
            .to_owned()
    } else if key == "depends_on" {
        "a leaf inside a branch runs after the leaf before it and has no `depends_on`; put it on the branch"
            .to_owned()
    } else {
        format!(
            "a branch runs on the job's nodes, so a leaf inside it has no `{key}` of its own; take it out of the branch"
        )
    }
}

fn element_at(node: &Node<'_>, element: &Element) -> At {
    let found = match (node.content(), element) {
        (Content::List(items), Element::Index(index)) => items.get(*index).map(|item| item.at),
        (Content::Map(entries), Element::Key(key)) => {
            entries.iter().find(|entry| entry.key == key.as_str()).map(|entry| entry.value.at)
        }
        _ => None,
    };
    found.unwrap_or(node.at)
}
