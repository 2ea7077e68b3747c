//! Compares a list of standing tasks with the one of a file: what would be added, changed, deleted or moved.

use std::collections::BTreeMap;

use super::{StandingTask, TaskFields};
use crate::words::words;

words! {
    /// What applying a file does to one task.
    pub enum ChangeKind {
        Add = "add",
        /// It gets other fields, and perhaps another place.
        Update = "update",
        Delete = "delete",
        /// It only gets another place relative to the others.
        Move = "move",
        Keep = "keep",
    }
}

/// What applying a file does to one task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListChange {
    pub kind: ChangeKind,
    pub name: String,
    /// The place before, from 1.
    pub from: Option<usize>,
    /// The place afterwards, from 1.
    pub to: Option<usize>,
    /// The fields that change.
    pub fields: Vec<String>,
}

/// Compares the lists. Tasks are the same if their names are equal. Returns the tasks of the file in their order, then the
/// deleted ones.
pub(super) fn compare(tasks: &[StandingTask], wanted: &[TaskFields]) -> Vec<ListChange> {
    let places: BTreeMap<&str, usize> =
        tasks.iter().enumerate().map(|(place, task)| (task.name.as_str(), place)).collect();
    let kept: Vec<usize> = wanted.iter().filter_map(|task| places.get(task.name.as_str()).copied()).collect();
    let staying = longest_rising(&kept);
    let mut changes = Vec::new();
    for (index, task) in wanted.iter().enumerate() {
        let from = places.get(task.name.as_str()).copied();
        let fields = from.map(|from| TaskFields::of(&tasks[from]).differing(task)).unwrap_or_default();
        let kind = match from {
            None => ChangeKind::Add,
            Some(_) if !fields.is_empty() => ChangeKind::Update,
            Some(from) if !staying.contains(&from) => ChangeKind::Move,
            Some(_) => ChangeKind::Keep,
        };
        let (name, from, to) = (task.name.clone(), from.map(|from| from + 1), Some(index + 1));
        changes.push(ListChange { kind, name, from, to, fields });
    }
    for (place, task) in tasks.iter().enumerate().filter(|(place, _)| !kept.contains(place)) {
        let (name, from) = (task.name.clone(), Some(place + 1));
        changes.push(ListChange { kind: ChangeKind::Delete, name, from, to: None, fields: Vec::new() });
    }
    changes
}

/// Returns the members of a longest rising subsequence: the tasks that need not move.
fn longest_rising(places: &[usize]) -> Vec<usize> {
    // For each place, the length of the longest subsequence that ends there, and the index before it.
    let mut best: Vec<(usize, Option<usize>)> = Vec::with_capacity(places.len());
    for (index, place) in places.iter().enumerate() {
        let before =
            (0..index).filter(|&before| places[before] < *place).max_by_key(|&before| best[before].0);
        best.push((before.map_or(0, |before| best[before].0) + 1, before));
    }
    let mut members = Vec::new();
    let mut at = (0..places.len()).max_by_key(|&index| best[index].0);
    while let Some(index) = at {
        members.push(places[index]);
        at = best[index].1;
    }
    members
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Timestamp;
    use crate::ids::TaskId;

    fn list(names: &str) -> Vec<StandingTask> {
        let task = |(place, name): (usize, char)| {
            let id = TaskId(uuid::Uuid::from_u128(place as u128));
            TaskFields::shell(name, "true").into_task(id, place as u32, Timestamp::UNIX_EPOCH)
        };
        names.chars().enumerate().map(task).collect()
    }

    /// An upper case letter is the task of the lower case letter with another command.
    fn file(names: &str) -> Vec<TaskFields> {
        let task = |name: char| {
            let command = if name.is_uppercase() { "false" } else { "true" };
            TaskFields::shell(name.to_ascii_lowercase(), command)
        };
        names.chars().map(task).collect()
    }

    #[test]
    fn the_fewest_tasks_move_and_each_difference_is_named() {
        let cases = [
            ("", "", ""),
            ("", "a", "add a"),
            ("a", "", "delete a"),
            ("abc", "abc", "keep a, keep b, keep c"),
            ("abc", "bc", "keep b, keep c, delete a"),
            ("abc", "axbc", "keep a, add x, keep b, keep c"),
            ("abcd", "dabc", "move d, keep a, keep b, keep c"),
            ("abcd", "bcda", "keep b, keep c, keep d, move a"),
            ("abc", "aBc", "keep a, update b: command, keep c"),
            ("abc", "xA", "add x, update a: command, delete b, delete c"),
        ];
        for (before, wanted, expected) in cases {
            let changes = compare(&list(before), &file(wanted));
            let lines: Vec<String> = changes
                .iter()
                .map(|change| {
                    let fields = change.fields.join(" ");
                    let fields = if fields.is_empty() { fields } else { format!(": {fields}") };
                    format!("{} {}{fields}", change.kind, change.name)
                })
                .collect();
            assert_eq!(lines.join(", "), expected, "{before:?} to {wanted:?}");
        }
    }

    #[test]
    fn places_count_from_one() {
        let changes = compare(&list("ab"), &file("bx"));
        let places: Vec<_> = changes.iter().map(|change| (change.from, change.to)).collect();
        assert_eq!(places, [(Some(2), Some(1)), (None, Some(2)), (Some(1), None)]);
    }
}
