//! Owns the catalogue: the built-in backends and those that nodes declare, found by name.

use std::sync::Arc;

use super::builtin;
use super::schema::{ActionSchema, BackendSchema};
use crate::nearest::advice;
use crate::shown::shown;

/// The backends that a job may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catalogue {
    backends: Vec<Arc<BackendSchema>>,
}

/// The reason why a task's backend or action is not in the catalogue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    #[error("there is no backend `{}`; {advice}", shown(.name))]
    Backend { name: String, advice: String },
    #[error("backend `{backend}` has no action `{}`; {advice}", shown(.name))]
    Action { backend: String, name: String, advice: String },
}

impl Catalogue {
    /// Returns the built-in backends. Each agent decides whether its node offers them.
    pub fn builtin() -> Self {
        Self { backends: builtin::schemas().map(Arc::new).collect() }
    }

    /// Adds the backends that nodes declare. If one is declared twice, the first declaration is kept.
    pub fn with<'a>(mut self, extra: impl IntoIterator<Item = &'a Arc<BackendSchema>>) -> Self {
        for declared in extra {
            match self.backends.iter_mut().find(|known| known.name == declared.name) {
                None => self.backends.push(Arc::clone(declared)),
                Some(known) => {
                    for action in &declared.actions {
                        if known.action(&action.name).is_none() {
                            Arc::make_mut(known).actions.push(action.clone());
                        }
                    }
                }
            }
        }
        self
    }

    pub fn backends(&self) -> &[Arc<BackendSchema>] {
        &self.backends
    }

    /// Returns the names of all backends, sorted.
    pub fn names(&self) -> Vec<&str> {
        names(self.backends.iter().map(|backend| &backend.name))
    }

    pub fn backend(&self, name: &str) -> Result<&BackendSchema, Unknown> {
        self.backends.iter().map(Arc::as_ref).find(|backend| backend.name == name).ok_or_else(|| {
            Unknown::Backend { name: name.to_owned(), advice: advice(name, &self.names(), "backends") }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{ParamKind, ParamSchema};

    #[test]
    fn an_unknown_backend_names_the_nearest_and_what_exists() {
        let catalogue = Catalogue::builtin();
        assert_eq!(
            catalogue.action("exce", "run").unwrap_err().to_string(),
            "there is no backend `exce`; did you mean `exec`?"
        );
        assert_eq!(
            catalogue.action("exec", "shel").unwrap_err().to_string(),
            "backend `exec` has no action `shel`; did you mean `shell`? (actions: run, shell)"
        );
    }

    #[test]
    fn what_nodes_declare_is_added_and_replaces_nothing() {
        let param = ParamSchema { required: true, ..ParamSchema::new("x", ParamKind::Any) };
        let action = |name: &str| ActionSchema {
            name: name.to_owned(),
            idempotent: true,
            params: vec![param.clone()],
        };
        let backend = |name: &str, actions| {
            Arc::new(BackendSchema { name: name.to_owned(), help: String::new(), actions })
        };
        let declared =
            [backend("ping", vec![action("ping"), action("flood")]), backend("backup", vec![action("now")])];
        let catalogue = Catalogue::builtin().with(&declared);
        assert!(catalogue.action("ping", "ping").unwrap().params.is_empty());
        assert!(catalogue.action("ping", "flood").is_ok());
        assert!(catalogue.action("backup", "now").is_ok());
    }
}
