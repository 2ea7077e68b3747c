//! Owns what people write about a standing task: its fields without what the list adds (id, number, times).

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::StandingTask;
use crate::backend::Params;
use crate::ids::TaskId;
use crate::limits;
use crate::select::Selector;
use crate::span::Span;

/// The checked fields of a standing task.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskFields {
    pub name: String,
    pub blocking: bool,
    pub backend: String,
    pub action: String,
    pub params: Arc<Params>,
    pub timeout: Span,
    pub selector: Option<Selector>,
}

impl TaskFields {
    pub const DEFAULT_TIMEOUT: Span = Span::from_secs(limits::TASK_TIMEOUT_DEFAULT_S);

    /// Returns a task that runs a command in a shell, with the defaults.
    pub fn shell(name: impl Into<String>, command: impl Into<String>) -> Self {
        let params = Params::from([("command".to_owned(), Value::String(command.into()))]);
        Self {
            name: name.into(),
            blocking: false,
            backend: "exec".to_owned(),
            action: "shell".to_owned(),
            params: Arc::new(params),
            timeout: Self::DEFAULT_TIMEOUT,
            selector: None,
        }
    }

    /// Returns whether the task is a command in a shell: such a task can be written as `command` or as `config`.
    pub fn is_shell(&self) -> bool {
        (self.backend.as_str(), self.action.as_str()) == ("exec", "shell")
    }

    pub fn of(task: &StandingTask) -> Self {
        Self {
            name: task.name.clone(),
            blocking: task.blocking,
            backend: task.backend.clone(),
            action: task.action.clone(),
            params: Arc::clone(&task.params),
            timeout: task.timeout,
            selector: task.selector.clone(),
        }
    }

    /// Returns the names of the fields in which these differ from others: `command`, `params.env`, `timeout`.
    pub fn differing(&self, other: &Self) -> Vec<String> {
        let mut names = Vec::new();
        let mut add = |name: &str, differs: bool| {
            if differs {
                names.push(name.to_owned());
            }
        };
        add("name", self.name != other.name);
        add("blocking", self.blocking != other.blocking);
        add("backend", self.backend != other.backend);
        add("action", self.action != other.action);
        let keys: BTreeSet<&String> = self.params.keys().chain(other.params.keys()).collect();
        for key in keys {
            let is_short = self.is_shell() && matches!(key.as_str(), "command" | "working_dir");
            let name = if is_short { key.clone() } else { format!("params.{key}") };
            add(&name, self.params.get(key) != other.params.get(key));
        }
        add("timeout", self.timeout != other.timeout);
        add("selector", self.selector != other.selector);
        names
    }

    pub(super) fn into_task(self, id: TaskId, number: u32, at: Timestamp) -> StandingTask {
        let Self { name, blocking, backend, action, params, timeout, selector } = self;
        StandingTask {
            id,
            number,
            name,
            blocking,
            backend,
            action,
            params,
            timeout,
            selector,
            created_at: at,
            updated_at: at,
            deleted_at: None,
            reruns: Vec::new(),
        }
    }

    /// Returns the task with these fields. It keeps its id, its number and the requests to do it again.
    pub(super) fn set_on(self, task: &StandingTask, at: Timestamp) -> StandingTask {
        let next = self.into_task(task.id, task.number, at);
        StandingTask { created_at: task.created_at, reruns: task.reruns.clone(), ..next }
    }
}
