//! Reads a task's backend, its action and the params of that action.

use serde_json::Value;

use super::field::Checker;
use super::path::Path;
use super::tree::{Content, Entry, Node};
use crate::backend::{
    ActionSchema, Element, ParamKind, ParamProblem, Params, check_params_but, params_bytes, shell_sign,
};
use crate::expr::{Template, has_expression, looks_like_expression, read_by_a_shell};
use crate::limits;
use crate::spec::{At, Task};

const NO_EXPRESSION_IN_SHELL: &str = "a shell command cannot contain expressions (`{{`); pass the value by `env`, and use the \
     variable in the command";

/// The fields of a task that are checked together. A name is `None` when it is not a string.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WorkFields<'n, 't> {
    pub(super) backend: Option<(&'n Node<'t>, Option<&'n str>)>,
    pub(super) action: Option<(&'n Node<'t>, Option<&'n str>)>,
    pub(super) params: Option<&'n Node<'t>>,
}

impl<'c> Checker<'c> {
    /// Returns whether a field that no task has is a param of the task's action.
    pub(super) fn is_param(&self, entries: &[Entry<'_>], name: &str) -> bool {
        let text = |field: &str| entries.iter().find(|entry| entry.key == field)?.value.as_text();
        let (Some(backend), Some(action)) = (text("backend"), text("action")) else { return false };
        let schema = self.catalogue.action(backend, action);
        schema.is_ok_and(|schema| schema.params.iter().any(|param| param.name == name))
    }

    /// Checks backend, action and params, and sets them on the task.
    pub(super) fn action(
        &mut self,
        path: Path<'_>,
        at: At,
        task: &mut Task,
        work: WorkFields<'_, '_>,
    ) -> Option<()> {
        let (backend, action, schema) = self.known_action(path, work)?;
        backend.clone_into(&mut task.backend);
        action.clone_into(&mut task.action);
        let path = path.field("params");
        let entries = match work.params.map(|node| (node, node.content())) {
            None | Some((_, Content::Null)) => &[][..],
            Some((_, Content::Map(entries))) => entries,
            Some((node, _)) => return self.refuse_kind(path, node, "a map of params"),
        };
        let given = self.given_params(path, entries, backend, schema);
        if let Err(problem) = Template::of(backend, action, &given) {
            self.param_problem(path, work.params?, problem);
            return None;
        }
        let shell = read_by_a_shell(backend, action);
        if let Some(param) = shell
            && let Some(entry) = entries.iter().find(|entry| entry.key == param)
            && given.get(param).and_then(Value::as_str).is_some_and(looks_like_expression)
        {
            return self.refuse(path.field(param), entry.value.at, NO_EXPRESSION_IN_SHELL);
        }
        let pending = |param: &str| shell != Some(param) && given.get(param).is_some_and(has_expression);
        let at = work.params.map_or(at, |node| node.at);
        match check_params_but(schema, &given, pending) {
            Ok(checked) => {
                self.count_params(path, at, &checked)?;
                task.params = checked;
                Some(())
            }
            Err(problems) => {
                for problem in problems {
                    let known = schema.params.iter().any(|known| known.name == problem.param);
                    let entry = entries.iter().find(|entry| entry.key == problem.param.as_str());
                    match (entry, work.params) {
                        (Some(_), Some(params)) if known => self.param_problem(path, params, problem),
                        (entry, _) => {
                            let at = entry.map_or(at, |entry| entry.at);
                            self.problem(path.field(&problem.param), at, problem.message);
                        }
                    }
                }
                None
            }
        }
    }

    /// Returns the names of backend and action, and the action's schema.
    fn known_action<'n>(
        &mut self,
        path: Path<'_>,
        work: WorkFields<'n, '_>,
    ) -> Option<(&'n str, &'n str, &'c ActionSchema)> {
        let catalogue = self.catalogue;
        let (node, backend) = work.backend?;
        let backend = backend?;
        if self.refuse_expression(path.field("backend"), node, "`backend`") {
            return None;
        }
        if let Err(unknown) = catalogue.backend(backend) {
            return self.refuse(path.field("backend"), node.at, unknown.to_string());
        }
        let (node, action) = work.action?;
        let action = action?;
        if self.refuse_expression(path.field("action"), node, "`action`") {
            return None;
        }
        match catalogue.action(backend, action) {
            Ok(schema) => Some((backend, action, schema)),
            Err(unknown) => self.refuse(path.field("action"), node.at, unknown.to_string()),
        }
    }

    /// Returns the values of the params, converted to their kinds. Adds a note for command lines that seem to need a
    /// shell.
    pub(super) fn given_params(
        &mut self,
        path: Path<'_>,
        entries: &[Entry<'_>],
        backend: &str,
        schema: &ActionSchema,
    ) -> Params {
        let mut given = Params::new();
        for entry in entries {
            let kind = schema.params.iter().find(|param| param.name == entry.key).map(|param| param.kind);
            let value = match kind {
                Some(ParamKind::Argv | ParamKind::Texts | ParamKind::Map) => entry.value.to_value_of_texts(),
                _ => entry.value.to_value(),
            };
            if let (Some(ParamKind::Argv), Content::Text(line)) = (kind, entry.value.content())
                && let Some(sign) = shell_sign(line)
            {
                self.note(path.field(&entry.key), entry.value.at, no_shell(sign, backend));
            }
            given.insert(entry.key.clone().into_owned(), value);
        }
        given
    }

    /// Adds the size of a task's params to the total, and refuses too much.
    fn count_params(&mut self, path: Path<'_>, at: At, params: &Params) -> Option<()> {
        let bytes = params_bytes(params);
        self.params_bytes += bytes;
        let (found, most, whose) = if bytes > limits::PARAMS_BYTES {
            (bytes, limits::PARAMS_BYTES, "the params of one task")
        } else {
            (self.params_bytes, limits::PARAMS_OF_JOB_BYTES, "the params of all tasks up to here")
        };
        if found > most {
            let message =
                format!("{whose} are {found} bytes (aliases expanded); at most {most} are possible");
            return self.refuse(path, at, message);
        }
        Some(())
    }

    /// Reports a problem at the position of its param, or of the element in it.
    pub(super) fn param_problem(&mut self, path: Path<'_>, params: &Node<'_>, problem: ParamProblem) {
        let param = path.field(&problem.param);
        let value = params.field(&problem.param).unwrap_or(params);
        match &problem.element {
            None => self.problem(param, value.at, problem.message),
            Some(Element::Index(index)) => {
                let item = value.as_list().and_then(|items| items.get(*index));
                self.problem(param.index(*index), item.unwrap_or(value).at, problem.message);
            }
            Some(Element::Key(key)) => {
                let at = value.field(key).unwrap_or(value).at;
                self.problem(param.field(key), at, problem.message);
            }
        }
    }
}

/// Returns the note about a shell sign: a command line is only split into words, so the sign has no effect.
fn no_shell(sign: &str, backend: &str) -> String {
    let instead = match backend {
        "exec" => "`exec shell` runs a command in a shell",
        _ => "write [sh, -c, COMMAND] to run it in a shell",
    };
    format!("no shell reads `{sign}` here, the program gets it as it is; {instead}")
}
