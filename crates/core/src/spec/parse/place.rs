//! Reads where a task runs: `target` and `placement`.

use std::collections::BTreeMap;

use super::field::{Checker, NOT_CLEAN};
use super::path::Path;
use super::tree::{Content, Node};
use crate::limits;
use crate::select::{Scope, Selector};
use crate::shown::shown;
use crate::spec::{On, Placement};

pub(super) const WANTED_LABEL: &str = "the name of a label";
const CAPABILITY: &str = "a string (the node has exactly that) or a number (the node has at least that)";
const TARGET: &str = "a selector such as all, group:web or 'label.disk = ssd', or {scope: group, value: web}";

impl Checker<'_> {
    pub(super) fn target(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<Selector> {
        if self.refuse_expression(path, node, "a target") {
            return None;
        }
        let selector = match node.content() {
            Content::Text(text) => Selector::parse(text),
            Content::Map(entries) => {
                let mut scope = None;
                let mut value = None;
                for entry in entries {
                    let field = path.field(&entry.key);
                    match entry.key.as_ref() {
                        "scope" => scope = Some(self.choice(field, &entry.value, &Scope::ALL)?),
                        "value" if self.refuse_expression(field, &entry.value, "a target") => return None,
                        "value" => value = Some(self.text(field, &entry.value, "a name")?),
                        _ => self.unknown_field(path, entry, &[On::Target], &[]),
                    }
                }
                let Some(scope) = scope else {
                    return self.refuse(path, node.at, "the field `scope` is missing: all, group or node");
                };
                let misused = match (scope, value) {
                    (Scope::All, Some(_)) => {
                        Some("the scope `all` takes no value; remove it, or write scope: group")
                    }
                    (Scope::Group | Scope::Node, None) => {
                        Some("the field `value` is missing: the name of the group or node")
                    }
                    _ => None,
                };
                if let Some(message) = misused {
                    return self.refuse(path, node.at, message);
                }
                Selector::of_scope(scope, value)
            }
            _ => return self.refuse_kind(path, node, TARGET),
        };
        selector.map_err(|error| self.problem(path, node.at, error.to_string())).ok()
    }

    pub(super) fn placement(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<Placement> {
        let entries = self.fields_of(path, node, On::Placement)?;
        let mut placement = Placement::default();
        for entry in entries {
            let field = path.field(&entry.key);
            let value = &entry.value;
            match entry.key.as_ref() {
                "requires" => placement.requires = self.requires(field, value).unwrap_or_default(),
                "labels" => placement.labels = self.labels(field, value),
                "backends" => placement.backends = self.texts(field, value, "backends").unwrap_or_default(),
                "prefer" => placement.prefer = self.preferences(field, value).unwrap_or_default(),
                "spread" => placement.spread = self.spread(field, value),
                "allow" => placement.allow = self.texts(field, value, "nodes").unwrap_or_default(),
                "forbid" => placement.forbid = self.texts(field, value, "nodes").unwrap_or_default(),
                "max_per_node" => {
                    let most = u32::try_from(limits::STEPS_PER_RUN).unwrap_or(u32::MAX);
                    placement.max_per_node = self.whole_number(field, value, 1..=most);
                }
                _ => self.unknown_field(path, entry, &[On::Placement], &[]),
            }
        }
        if let Some(both) = placement.allow.iter().find(|node| placement.forbid.contains(node)) {
            let message = format!("node `{}` is both in `allow` and in `forbid`; remove one", shown(both));
            self.problem(path, node.at, message);
        }
        Some(placement)
    }

    pub(super) fn labels(&mut self, path: Path<'_>, node: &Node<'_>) -> Vec<String> {
        let labels = self.texts(path, node, "labels, each `name` or `name=value`").unwrap_or_default();
        for (index, label) in labels.iter().enumerate() {
            if label.starts_with('=') {
                let message = format!("`{}` names no label; write name=value", shown(label));
                self.problem(path.index(index), node.at, message);
            }
        }
        labels
    }

    pub(super) fn requires(
        &mut self,
        path: Path<'_>,
        node: &Node<'_>,
    ) -> Option<BTreeMap<String, serde_json::Value>> {
        let entries = self.map(path, node, "capabilities, each a string or a number")?;
        let mut requires = BTreeMap::new();
        for entry in entries {
            let path = path.field(&entry.key);
            let clean = |text: &str| !text.is_empty() && !text.contains(char::is_control);
            match entry.value.content() {
                Content::Text(text) if !clean(text) || !clean(&entry.key) => {
                    self.problem(path, entry.at, NOT_CLEAN);
                }
                Content::Text(_) | Content::Number { .. } | Content::Boolean { .. } => {
                    requires.insert(entry.key.clone().into_owned(), entry.value.to_value());
                }
                _ => self.wrong(path, &entry.value, CAPABILITY),
            }
        }
        Some(requires)
    }
}
