//! Reads a file of standing tasks as a JSON value, and keeps the position of each value: the server checks the value, and
//! its problems are shown where they are in the file.

use std::collections::HashMap;

use serde_json::Value;

use super::path::Path;
use super::read::with_tree;
use super::tree::{Content, Entry, Node};
use crate::backend::{Catalogue, ParamKind};
use crate::spec::{At, Problem};

/// A value with the positions of its parts in the text.
#[derive(Clone, Debug)]
pub struct Located {
    pub value: Value,
    positions: HashMap<String, At>,
}

impl Located {
    /// Returns the position of a part, such as `tasks[1].params.command`. A part that is missing has the position of
    /// the part around it.
    pub fn position(&self, path: &str) -> Option<At> {
        let mut path = path;
        loop {
            if let Some(at) = self.positions.get(path) {
                return (*at != At::default()).then_some(*at);
            }
            path = &path[..path.rfind(['.', '['])?];
        }
    }

    /// Returns a problem of a part, with its position.
    pub fn problem(&self, path: &str, message: impl Into<String>) -> Problem {
        let at = self.position(path).or_else(|| self.position(""));
        Problem { path: path.to_owned(), at, message: message.into() }
    }
}

/// Reads a file with tasks, YAML or JSON. An `origin` that ends in `.json` must be JSON. Params keep their source text
/// where their action, if the catalogue has it, wants texts: `[chmod, 0755]`.
pub fn locate(text: &str, origin: &str, catalogue: &Catalogue) -> Result<Located, Vec<Problem>> {
    let empty = "the file is empty; it needs a list of `tasks`";
    with_tree(text, origin, empty, |tree| {
        let mut reader = Reader { catalogue, positions: HashMap::new() };
        let value = reader.value(Path::Top, tree);
        Ok(Located { value, positions: reader.positions })
    })
}

struct Reader<'c> {
    catalogue: &'c Catalogue,
    positions: HashMap<String, At>,
}

impl Reader<'_> {
    fn value(&mut self, path: Path<'_>, node: &Node<'_>) -> Value {
        self.positions.insert(path.to_string(), node.at);
        match node.content() {
            Content::List(items) => {
                let items = items.iter().enumerate();
                Value::Array(items.map(|(index, item)| self.value(path.index(index), item)).collect())
            }
            Content::Map(entries) => {
                let mut map = serde_json::Map::new();
                for entry in entries {
                    let mut value = self.value(path.field(&entry.key), &entry.value);
                    if entry.key == "params" {
                        self.restore_texts(entries, entry, &mut value);
                    }
                    map.insert(entry.key.clone().into_owned(), value);
                }
                Value::Object(map)
            }
            _ => node.to_value(),
        }
    }

    /// Replaces lists and maps of texts by what was written.
    fn restore_texts(&self, task: &[Entry<'_>], params: &Entry<'_>, value: &mut Value) {
        let text = |field: &str| task.iter().find(|entry| entry.key == field)?.value.as_text();
        let (Some(backend), Some(action)) = (text("backend"), text("action")) else { return };
        let Ok(schema) = self.catalogue.action(backend, action) else { return };
        for param in &schema.params {
            if matches!(param.kind, ParamKind::Argv | ParamKind::Texts | ParamKind::Map)
                && let Some(node) = params.value.field(&param.name)
            {
                value[param.name.as_str()] = node.to_value_of_texts();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const FILE: &str = "tasks:\n  - name: a\n    backend: exec\n    action: run\n    params: {command: [chmod, 0755, x]}\n  - name: b\n    \
                        timeout: 1\n";

    #[test]
    fn a_part_is_found_where_it_was_written_and_a_missing_one_where_it_belongs() {
        let located = locate(FILE, "tasks.yaml", &Catalogue::builtin()).unwrap();
        let at = |path: &str| located.position(path).map(|at| (at.line, at.column));
        assert_eq!(at("tasks[1].timeout"), Some((7, 14)));
        assert_eq!(at("tasks[0].params.command[1]"), Some((5, 31)));
        assert_eq!(at("tasks[1].backend"), at("tasks[1]"));
        assert_eq!(at("tasks[9].name"), at("tasks"));
        let problem = located.problem("tasks[1].timeout", "too short");
        assert_eq!(problem.render("t.yaml"), "t.yaml:7:14: tasks[1].timeout: too short");
    }

    #[test]
    fn arguments_keep_the_text_that_was_written() {
        let located = locate(FILE, "tasks.yaml", &Catalogue::builtin()).unwrap();
        assert_eq!(located.value["tasks"][0]["params"]["command"], json!(["chmod", "0755", "x"]));
        assert_eq!(located.value["tasks"][1], json!({"name": "b", "timeout": 1}));
    }

    #[test]
    fn a_text_that_is_not_a_tree_is_refused_where_it_breaks() {
        let problems = locate("tasks:\n\t- a\n", "t.yaml", &Catalogue::builtin()).unwrap_err();
        assert_eq!(problems[0].at.map(|at| at.line), Some(2));
        let problems = locate("", "t.yaml", &Catalogue::builtin()).unwrap_err();
        assert_eq!(problems[0].message, "the file is empty; it needs a list of `tasks`");
    }
}
