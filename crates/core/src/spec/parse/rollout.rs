//! Reads the job's fields about the whole fleet: `rollout`, `exclusive`, `priority`, `params`; and checks which fields
//! may be combined.

use super::field::{Checker, misspelt};
use super::path::Path;
use super::tree::{Content, Node};
use crate::backend::{Params, params_bytes};
use crate::limits;
use crate::shown::shown;
use crate::span::Span;
use crate::spec::params::is_storable;
use crate::spec::{Amount, At, Batch, Condition, Definition, Entry, On, Rollout};

const AMOUNT: &str = "a number of nodes such as 10, or a part of them such as 25%";

/// The positions of the fields that the rules refer to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FleetFields {
    pub(super) rollout: Option<At>,
    pub(super) strategy: Option<At>,
    pub(super) exclusive: Option<At>,
    /// Whether there is a `target`, valid or not.
    pub(super) targeted: bool,
}

impl Checker<'_> {
    pub(super) fn rollout(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<Rollout> {
        let entries = self.fields_of(path, node, On::Rollout)?;
        let (mut batch, mut batch_given) = (None, false);
        let (mut pause, mut max_failures) = (Span::default(), Amount::default());
        for entry in entries {
            let field = path.field(&entry.key);
            let value = &entry.value;
            match entry.key.as_ref() {
                "batch" => {
                    batch_given = true;
                    batch = self.batch(field, value);
                }
                "pause" => {
                    let range = Span::default()..=Span::from_secs(limits::RUN_TIMEOUT_MOST_S);
                    pause = self.span(field, value, range).unwrap_or_default();
                }
                "max_failures" => max_failures = self.amount(field, value).unwrap_or_default(),
                _ => self.unknown_field(path, entry, &[On::Rollout], &[]),
            }
        }
        if !batch_given && !misspelt(entries, "batch", &[On::Rollout]) {
            let message =
                "the field `batch` is missing: how many nodes a wave has, such as 10, 25% or [1, 10%, 50%]";
            self.problem(path, node.at, message);
        }
        Some(Rollout { batch: batch?, pause, max_failures })
    }

    fn batch(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<Batch> {
        let Content::List(items) = node.content() else {
            return self.wave(path, node).map(Batch::Alike);
        };
        if !(1..=limits::BATCH_AMOUNTS).contains(&items.len()) {
            let message = format!(
                "the list has {} entries, but needs 1 to {}; the last one repeats until no node is left",
                items.len(),
                limits::BATCH_AMOUNTS
            );
            return self.refuse(path, node.at, message);
        }
        let amounts: Vec<Option<Amount>> =
            items.iter().enumerate().map(|(index, item)| self.wave(path.index(index), item)).collect();
        amounts.into_iter().collect::<Option<_>>().map(Batch::Each)
    }

    fn wave(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<Amount> {
        let amount = self.amount(path, node)?;
        if amount.is_zero() {
            let message = "a wave has at least one node; write 1 or more, or 1% or more";
            return self.refuse(path, node.at, message);
        }
        Some(amount)
    }

    fn amount(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<Amount> {
        let amount = match node.content() {
            Content::Number { value, .. } => {
                value.as_u64().and_then(|count| u32::try_from(count).ok()).map(Amount::Count)
            }
            Content::Text(text) if text.len() <= 60 => text.parse().ok(),
            _ => None,
        };
        amount.or_else(|| self.refuse_kind(path, node, AMOUNT))
    }

    pub(super) fn job_params(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<Params> {
        if matches!(node.content(), Content::Null) {
            return Some(Params::new());
        }
        let entries = self.map(path, node, "names with their default values")?;
        let mut params = Params::new();
        for entry in entries {
            let field = path.field(&entry.key);
            if !is_word(&entry.key) {
                self.not_a_word(field, entry.at, &entry.key);
            }
            let value = entry.value.to_value();
            // The depth of a job file is bounded.
            if !is_storable(&value, limits::NESTING_DEPTH) {
                self.problem(field, entry.value.at, "contains a NUL character; remove it");
            }
            params.insert(entry.key.clone().into_owned(), value);
        }
        let bytes = params_bytes(&params);
        self.params_bytes += bytes;
        let most = limits::PARAMS_BYTES;
        if bytes > most {
            let message = format!(
                "the params of the job are {bytes} bytes (aliases expanded); at most {most} are possible"
            );
            self.problem(path, node.at, message);
        }
        Some(params)
    }

    pub(super) fn outputs(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<Vec<String>> {
        let outputs = self.texts(path, node, "names")?;
        let (count, most) = (outputs.len(), limits::OUTPUTS_PER_TASK);
        if count > most {
            let message = format!("there are {count} outputs; a task may have at most {most}");
            return self.refuse(path, node.at, message);
        }
        let items = node.as_list()?;
        for (index, item) in items.iter().enumerate() {
            let Some(name) = item.as_text() else { continue };
            if items[..index].iter().any(|other| other.as_text() == Some(name)) {
                let message = format!("`{}` is already in the list; remove it", shown(name));
                self.problem(path.index(index), item.at, message);
            } else if !name.is_empty() && !name.contains(char::is_control) && !is_word(name) {
                self.not_a_word(path.index(index), item.at, name);
            }
        }
        Some(outputs)
    }

    fn not_a_word(&mut self, path: Path<'_>, at: At, name: &str) {
        let message = format!(
            "`{}` is not a name that expressions can use; use at most {} letters, digits and `_`, and do not begin with a digit",
            shown(name),
            limits::NAME_BYTES
        );
        self.problem(path, at, message);
    }

    /// Checks which fields may be combined, for a job whose tasks could be read.
    pub(super) fn fleet_rules(&mut self, definition: &Definition, fields: FleetFields) {
        let top = Path::Top;
        if let Some(at) = fields.rollout {
            self.rollout_rules(definition, at, fields);
        }
        let placed = definition.tasks.iter().position(|entry| match entry {
            Entry::Leaf(task) if task.target.is_some() => false,
            Entry::Leaf(task) if task.approve.is_some() => false,
            Entry::Leaf(task) => task.placement.is_some() || !fields.targeted,
            Entry::Branch(_) => !fields.targeted,
        });
        if let (Some(at), Some(placed)) = (fields.exclusive, placed)
            && definition.exclusive
        {
            let message = format!(
                "an exclusive job holds the nodes of its targets, and tasks[{placed}] is placed on a node that is not \
                 known yet; give it a `target`, or remove `exclusive`"
            );
            self.problem(top.field("exclusive"), at, message);
        }
    }

    fn rollout_rules(&mut self, definition: &Definition, at: At, fields: FleetFields) {
        let top = Path::Top;
        let path = top.field("rollout");
        if !fields.targeted {
            let message =
                "a roll-out divides the nodes of the job's `target` into waves; give the job a target";
            self.problem(path, at, message);
        }
        if let Some(at) = fields.strategy {
            let message =
                "a roll-out has no `strategy`: `max_failures` decides when it ends; remove one of them";
            self.problem(top.field("strategy"), at, message);
        }
        let entries = || definition.tasks.iter().enumerate();
        if let Some((index, _)) = entries().find(|(_, entry)| entry.explicit_depends_on().is_some()) {
            let message = format!(
                "a roll-out needs a list of tasks that each wave runs in order; remove `depends_on` \
                 of tasks[{index}], or `rollout`"
            );
            self.problem(path, at, message);
        }
        let own = entries().find_map(|(index, entry)| match entry {
            Entry::Leaf(task) if task.target.is_some() => Some((index, "target")),
            Entry::Leaf(task) if task.placement.is_some() => Some((index, "placement")),
            Entry::Leaf(task) if task.approve.is_some() => Some((index, "approve")),
            Entry::Leaf(_) | Entry::Branch(_) => None,
        });
        if let Some((index, field)) = own {
            let message = format!(
                "a roll-out has one target for all of its tasks; remove `{field}` of tasks[{index}], or `rollout`"
            );
            self.problem(path, at, message);
        }
        if entries().all(|(_, entry)| entry.condition() == Some(Condition::OnFailure)) {
            let message = "all tasks are `on_failure`, so the waves have nothing to do; add a task without that condition";
            self.problem(path, at, message);
        }
    }
}

/// Returns whether a name needs no quotes in an expression.
fn is_word(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && name.len() <= limits::NAME_BYTES
}
