//! Owns the catalogue: the backends that are built in, as data, and those that nodes declare.

use super::schema::{ActionSchema, BackendSchema, ParamKind, ParamSchema};
use crate::nearest::advice;
use crate::shown::shown;

/// The backends that a job may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catalogue {
    backends: Vec<BackendSchema>,
}

/// Why a task's backend or action is not in the catalogue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    #[error("there is no backend `{}`; {advice}", shown(.name))]
    Backend { name: String, advice: String },
    #[error("backend `{backend}` has no action `{}`; {advice}", shown(.name))]
    Action { backend: String, name: String, advice: String },
}

impl Catalogue {
    /// What every downbeat knows. Whether a node offers it, its agent decides.
    pub fn builtin() -> Self {
        Self { backends: BUILTIN.iter().map(BuiltinBackend::schema).collect() }
    }

    /// This catalogue and what nodes declare. What is declared twice stays as it was first.
    pub fn with<'a>(mut self, extra: impl IntoIterator<Item = &'a BackendSchema>) -> Self {
        for declared in extra {
            match self.backends.iter_mut().find(|known| known.name == declared.name) {
                None => self.backends.push(declared.clone()),
                Some(known) => {
                    for action in &declared.actions {
                        if known.action(&action.name).is_none() {
                            known.actions.push(action.clone());
                        }
                    }
                }
            }
        }
        self
    }

    pub fn backends(&self) -> &[BackendSchema] {
        &self.backends
    }

    pub fn backend(&self, name: &str) -> Result<&BackendSchema, Unknown> {
        self.backends.iter().find(|backend| backend.name == name).ok_or_else(|| Unknown::Backend {
            name: name.to_owned(),
            advice: advice(name, &names(self.backends.iter().map(|backend| &backend.name)), "backends"),
        })
    }

    pub fn action(&self, backend: &str, action: &str) -> Result<&ActionSchema, Unknown> {
        let known = self.backend(backend)?;
        known.action(action).ok_or_else(|| Unknown::Action {
            backend: backend.to_owned(),
            name: action.to_owned(),
            advice: advice(action, &names(known.actions.iter().map(|action| &action.name)), "actions"),
        })
    }
}

fn names<'a>(found: impl Iterator<Item = &'a String>) -> Vec<&'a str> {
    let mut names: Vec<&str> = found.map(String::as_str).collect();
    names.sort_unstable();
    names
}

struct BuiltinBackend {
    name: &'static str,
    actions: &'static [BuiltinAction],
}

struct BuiltinAction {
    name: &'static str,
    idempotent: bool,
    params: &'static [BuiltinParam],
}

struct BuiltinParam {
    name: &'static str,
    kind: ParamKind,
    need: Need,
    help: &'static str,
}

#[derive(PartialEq, Eq)]
enum Need {
    Required,
    Optional,
}

const fn required(name: &'static str, kind: ParamKind, help: &'static str) -> BuiltinParam {
    BuiltinParam { name, kind, need: Need::Required, help }
}

const fn optional(name: &'static str, kind: ParamKind, help: &'static str) -> BuiltinParam {
    BuiltinParam { name, kind, need: Need::Optional, help }
}

const BUILTIN: &[BuiltinBackend] = &[
    BuiltinBackend {
        name: "test",
        actions: &[
            BuiltinAction { name: "noop", idempotent: true, params: &[] },
            BuiltinAction {
                name: "echo",
                idempotent: true,
                params: &[required("message", ParamKind::Text, "what to print")],
            },
            BuiltinAction {
                name: "sleep",
                idempotent: true,
                params: &[required("duration", ParamKind::Duration, "how long to sleep")],
            },
            BuiltinAction {
                name: "fail",
                idempotent: false,
                params: &[
                    optional("message", ParamKind::Text, "what to print before failing"),
                    optional("exit_code", ParamKind::Integer, "the exit code to fail with"),
                ],
            },
            BuiltinAction {
                name: "flaky",
                idempotent: false,
                params: &[required(
                    "succeed_on",
                    ParamKind::Integer,
                    "the first attempt that succeeds, from 1",
                )],
            },
        ],
    },
    BuiltinBackend {
        name: "ping",
        actions: &[BuiltinAction { name: "ping", idempotent: true, params: &[] }],
    },
    BuiltinBackend {
        name: "exec",
        actions: &[
            BuiltinAction {
                name: "run",
                idempotent: false,
                params: &[
                    required(
                        "command",
                        ParamKind::Argv,
                        "the program and its arguments; no shell reads them",
                    ),
                    optional("args", ParamKind::Texts, "more arguments, taken as they are"),
                    optional("env", ParamKind::Map, "environment variables"),
                    optional("working_dir", ParamKind::Text, "the directory to run in"),
                    optional("stdin", ParamKind::Text, "what the program reads"),
                ],
            },
            BuiltinAction {
                name: "shell",
                idempotent: false,
                params: &[
                    required("command", ParamKind::Text, "a line or a script for bash -c"),
                    optional("env", ParamKind::Map, "environment variables"),
                    optional("working_dir", ParamKind::Text, "the directory to run in"),
                    optional("stdin", ParamKind::Text, "what the script reads"),
                ],
            },
        ],
    },
];

impl BuiltinBackend {
    fn schema(&self) -> BackendSchema {
        BackendSchema {
            name: self.name.to_owned(),
            actions: self.actions.iter().map(BuiltinAction::schema).collect(),
        }
    }
}

impl BuiltinAction {
    fn schema(&self) -> ActionSchema {
        let params = self.params.iter().map(|param| ParamSchema {
            name: param.name.to_owned(),
            kind: param.kind,
            required: param.need == Need::Required,
            help: param.help.to_owned(),
        });
        ActionSchema { name: self.name.to_owned(), idempotent: self.idempotent, params: params.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_backend_names_the_nearest_and_what_exists() {
        let catalogue = Catalogue::builtin();
        assert_eq!(
            catalogue.action("exce", "run").unwrap_err().to_string(),
            "there is no backend `exce`; did you mean `exec`? (backends: exec, ping, test)"
        );
        assert_eq!(
            catalogue.action("exec", "shel").unwrap_err().to_string(),
            "backend `exec` has no action `shel`; did you mean `shell`? (actions: run, shell)"
        );
    }

    #[test]
    fn what_nodes_declare_is_added_and_replaces_nothing() {
        let param =
            ParamSchema { name: "x".to_owned(), kind: ParamKind::Any, required: true, help: String::new() };
        let action = |name: &str| ActionSchema {
            name: name.to_owned(),
            idempotent: true,
            params: vec![param.clone()],
        };
        let declared = [
            BackendSchema { name: "ping".to_owned(), actions: vec![action("ping"), action("flood")] },
            BackendSchema { name: "backup".to_owned(), actions: vec![action("now")] },
        ];
        let catalogue = Catalogue::builtin().with(&declared);
        assert!(catalogue.action("ping", "ping").unwrap().params.is_empty());
        assert!(catalogue.action("ping", "flood").is_ok());
        assert!(catalogue.action("backup", "now").is_ok());
    }

    #[test]
    fn only_what_may_be_done_twice_is_idempotent() {
        let catalogue = Catalogue::builtin();
        let idempotent: Vec<String> = catalogue
            .backends()
            .iter()
            .flat_map(|backend| backend.actions.iter().map(move |action| (backend, action)))
            .filter(|(_, action)| action.idempotent)
            .map(|(backend, action)| format!("{} {}", backend.name, action.name))
            .collect();
        assert_eq!(idempotent, ["test noop", "test echo", "test sleep", "ping ping"]);
    }
}
