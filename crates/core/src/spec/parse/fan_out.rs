//! Reads the fields that multiply, limit and spread work: `for_each`, `max_parallel`, `limits`, `cache`, `prefer`,
//! `spread`.

use super::field::{Checker, NOT_CLEAN};
use super::path::Path;
use super::place::WANTED_LABEL;
use super::task::timeouts;
use super::tree::{Content, Node};
use crate::expr::{Template, has_expression};
use crate::limits;
use crate::shown::shown;
use crate::spec::definition::{Cache, Definition, Entry, ForEach, Limit, Limits, Preference, Spread};
use crate::spec::{On, limit};

const ITEMS: &str =
    "a list of items, or one expression that evaluates to a list: \"{{ steps.NAME.outputs.NAME }}\"";

impl Checker<'_> {
    /// Reads how many executions may be open at the same time.
    pub(super) fn parallel(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<u32> {
        let most = u32::try_from(limits::INSTANCES_PER_RUN).unwrap_or(u32::MAX);
        self.whole_number(path, node, 1..=most)
    }

    pub(super) fn for_each(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<ForEach> {
        let Content::Map(entries) = node.content() else {
            return Some(ForEach { items: self.items(path, node)?, max_parallel: None });
        };
        let (mut items, mut max_parallel) = (None, None);
        for entry in entries {
            let field = path.field(&entry.key);
            match entry.key.as_ref() {
                "items" => items = Some(self.items(field, &entry.value)),
                "max_parallel" => max_parallel = self.parallel(field, &entry.value),
                _ => self.unknown_field(path, entry, &[On::ForEach], &[]),
            }
        }
        let Some(items) = items else {
            return self.refuse(path, node.at, format!("the field `items` is missing: {ITEMS}"));
        };
        Some(ForEach { items: items?, max_parallel })
    }

    fn items(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<serde_json::Value> {
        let items = node.to_value();
        match &items {
            serde_json::Value::Array(list) if list.len() > limits::ITEMS => {
                let (count, most) = (list.len(), limits::ITEMS);
                let message = format!("there are {count} items; at most {most} are possible");
                return self.refuse(path, node.at, message);
            }
            serde_json::Value::Array(_) => {}
            serde_json::Value::String(text) if has_expression(&items) => {
                let text = text.trim();
                if !text.starts_with("{{") || !text.ends_with("}}") {
                    let message = "has text around an expression, so it evaluates to a string; write the expression alone, or a \
                                   list of strings with expressions in them";
                    return self.refuse(path, node.at, message);
                }
            }
            _ => return self.refuse_kind(path, node, ITEMS),
        }
        match Template::of_items(&items) {
            Ok(_) => Some(items),
            Err(problem) => self.refuse(path, node.at, problem.message),
        }
    }

    pub(super) fn limits(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<Limits> {
        let entries = self.map(path, node, "limits, each `key: 4` or `key: 100/1m`")?;
        let mut found = Limits::new();
        let (count, most) = (entries.len(), limits::LIMITS_PER_TASK);
        if count > most {
            self.problem(path, node.at, format!("there are {count} limits; at most {most} are possible"));
        }
        for entry in entries {
            let path = path.field(&entry.key);
            let key = entry.key.as_ref();
            if key.trim().is_empty() || key.len() > limits::NAME_BYTES || key.contains(char::is_control) {
                let message =
                    format!("a limit's key has 1 to {} bytes and no control characters", limits::NAME_BYTES);
                self.problem(path, entry.at, message);
                continue;
            }
            if let Err(problem) = Template::of_keys(std::iter::once(key)) {
                self.problem(path, entry.at, problem.message);
                continue;
            }
            let limit = match entry.value.content() {
                Content::Number { value, .. } => value.to_string().parse::<Limit>(),
                Content::Text(text) => text.parse(),
                _ => Err(limit::WANTED.to_owned()),
            };
            match limit {
                Ok(limit) => {
                    found.insert(key.to_owned(), limit);
                }
                Err(wanted) => self.wrong(path, &entry.value, &wanted),
            }
        }
        Some(found)
    }

    /// Reads `true`, `false`, or the maximum age of a result.
    pub(super) fn cache(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<Cache> {
        let entries = match node.content() {
            Content::Map(entries) => entries,
            Content::Boolean { value, .. } => return value.then(Cache::default),
            _ => {
                return self.refuse_kind(path, node, "true, false, or a maximum age such as {max_age: 24h}");
            }
        };
        let mut cache = Cache::default();
        for entry in entries {
            let field = path.field(&entry.key);
            match entry.key.as_ref() {
                "max_age" => {
                    cache.max_age = self.span(field, &entry.value, timeouts(limits::RUN_TIMEOUT_MOST_S));
                }
                _ => self.unknown_field(path, entry, &[On::Cache], &[]),
            }
        }
        Some(cache)
    }

    pub(super) fn preferences(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<Vec<Preference>> {
        let items = self.list(path, node, "preferences")?;
        let (count, most) = (items.len(), limits::PREFERENCES);
        if count > most {
            let message = format!("there are {count} preferences; at most {most} are possible");
            return self.refuse(path, node.at, message);
        }
        items.iter().enumerate().map(|(index, item)| self.preference(path.index(index), item)).collect()
    }

    fn preference(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<Preference> {
        let entries = self.fields_of(path, node, On::Preference)?;
        let mut preference = Preference::default();
        for entry in entries {
            let field = path.field(&entry.key);
            let value = &entry.value;
            match entry.key.as_ref() {
                "requires" => preference.requires = self.requires(field, value).unwrap_or_default(),
                "labels" => preference.labels = self.labels(field, value),
                "nodes" => preference.nodes = self.texts(field, value, "nodes").unwrap_or_default(),
                "weight" => {
                    let weight = self.whole_number(field, value, 1..=limits::WEIGHT_MOST);
                    preference.weight = weight.unwrap_or(preference.weight);
                }
                _ => self.unknown_field(path, entry, &[On::Preference], &[]),
            }
        }
        // Misspelt or invalid fields were reported before.
        let has_no_preference = entries.iter().all(|entry| entry.key == "weight" || is_empty(&entry.value));
        if has_no_preference {
            self.problem(path, node.at, "set at least one of `labels`, `requires` or `nodes`");
        }
        Some(preference)
    }

    pub(super) fn spread(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<Spread> {
        match node.content() {
            Content::Text(text) if text.as_ref() == "node" => Some(Spread::Node),
            Content::Text(text) if !text.is_empty() && text.len() <= 60 => {
                let text = shown(text);
                let message = format!("must be {SPREAD}, not the string \"{text}\"; write {{label: {text}}}");
                self.refuse(path, node.at, message)
            }
            Content::Map(entries) => match entries.as_slice() {
                [entry] if entry.key == "label" => {
                    let path = path.field("label");
                    let label = self.text(path, &entry.value, WANTED_LABEL)?;
                    if label.is_empty() || label.contains(char::is_control) {
                        return self.refuse(path, entry.value.at, NOT_CLEAN);
                    }
                    Some(Spread::Label(label.to_owned()))
                }
                _ => self.refuse_kind(path, node, SPREAD),
            },
            _ => self.refuse_kind(path, node, SPREAD),
        }
    }

    /// Checks that a task with `for_each` has no `target`, since each item runs on a node that fits, and that no task
    /// has too many limits together with the job's.
    pub(super) fn fan_out_rules(&mut self, path: Path<'_>, items: &[Node<'_>], definition: &Definition) {
        for (index, (item, entry)) in items.iter().zip(&definition.tasks).enumerate() {
            if entry.for_each().is_some() && !definition.is_placed(entry) {
                let is_own = matches!(entry, Entry::Leaf(task) if task.target.is_some());
                let whose = if is_own { "its" } else { "the job's" };
                let message = format!(
                    "each item of `for_each` runs once, on a node that fits; remove {whose} `target` and \
                     give the task a `placement`"
                );
                self.problem(path.index(index).field("for_each"), item.at, message);
            }
            for (leaf, task) in entry.leaves().iter().enumerate() {
                let most = definition.limits_of(task).count();
                // A task with too many limits of its own was reported before.
                if most > limits::LIMITS_PER_TASK && task.limits.len() <= limits::LIMITS_PER_TASK {
                    let path = path.index(index);
                    let message = format!(
                        "`{}` has {most} limits with those of the job; at most {} are possible",
                        shown(&task.label()),
                        limits::LIMITS_PER_TASK
                    );
                    match entry {
                        Entry::Leaf(_) => self.problem(path.field("limits"), item.at, message),
                        Entry::Branch(_) => self.problem(path.field("tasks").index(leaf), item.at, message),
                    }
                }
            }
        }
    }
}

const SPREAD: &str = "`node` (over nodes) or {label: NAME} (over the values that nodes have for that label)";

fn is_empty(node: &Node<'_>) -> bool {
    match node.content() {
        Content::List(items) => items.is_empty(),
        Content::Map(entries) => entries.is_empty(),
        _ => false,
    }
}
