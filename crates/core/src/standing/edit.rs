//! The edits of a cluster as pure functions: each returns the next version of the record, with what it did, or why it is
//! not possible.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;

use super::apply::{ChangeKind, ListChange, compare};
use super::{Rerun, RerunScope, StandingList, StandingTask, TaskFields};
use crate::cluster::{BadName, ClusterEdit, ClusterRecord, OnRegister, check_name};
use crate::ids::{ClusterId, NodeId, TaskId};
use crate::limits;
use crate::portion::json_bytes;
use crate::shown::shown;

/// The next version of a cluster, and what the edit did.
#[derive(Clone, Debug, PartialEq)]
pub struct Edited {
    pub cluster: ClusterRecord,
    pub edit: ClusterEdit,
}

impl Edited {
    /// Returns whether the cluster differs from the version before, apart from the number and the time of the version.
    pub fn is_change(&self, before: &ClusterRecord) -> bool {
        let ClusterRecord { version, updated_at, .. } = *before;
        ClusterRecord { version, updated_at, ..self.cluster.clone() } != *before
    }
}

/// Why a cluster or its list cannot be edited in this way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    #[error("cluster `{}` has no task {task}", shown(.cluster))]
    NoTask { task: TaskId, cluster: String },
    #[error("the name `{}` is in use: task {task} of the cluster has it", shown(.name))]
    NameInUse { name: String, task: TaskId },
    #[error("position {given} does not exist; a new task can get a position from 1 to {most}")]
    Position { given: usize, most: usize },
    #[error(transparent)]
    Order(#[from] BadOrder),
    #[error("the list would have {0} tasks; at most {most} are possible", most = limits::STANDING_TASKS)]
    TooMany(usize),
    #[error("the list would have {0} bytes as JSON; at most {most} are possible", most = limits::STANDING_LIST_BYTES)]
    TooLarge(usize),
    #[error(transparent)]
    Name(#[from] BadName),
    #[error("the description has {0} bytes; at most {most} are possible", most = limits::CLUSTER_DESCRIPTION_BYTES)]
    Description(usize),
    #[error("the cluster `default` keeps its name: agents and commands that name no cluster use it")]
    DefaultName,
}

/// What is wrong with a new order: it must name each task once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BadOrder {
    /// The tasks that the order lacks, with their names.
    pub missing: Vec<(TaskId, String)>,
    pub unknown: Vec<TaskId>,
    pub twice: Vec<TaskId>,
}

impl std::error::Error for BadOrder {}

impl std::fmt::Display for BadOrder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const NAMED: usize = 5;
        let list = |ids: Vec<String>| {
            let more = ids.len().saturating_sub(NAMED);
            let named = ids.into_iter().take(NAMED).collect::<Vec<_>>().join(", ");
            if more == 0 { named } else { format!("{named} and {more} more") }
        };
        f.write_str("the order must name every task of the list once")?;
        if !self.missing.is_empty() {
            let missing = self.missing.iter().map(|(id, name)| format!("{id} (`{}`)", shown(name)));
            write!(f, "; missing: {}", list(missing.collect()))?;
        }
        if !self.unknown.is_empty() {
            write!(f, "; not in the list: {}", list(self.unknown.iter().map(TaskId::to_string).collect()))?;
        }
        if !self.twice.is_empty() {
            write!(f, "; twice: {}", list(self.twice.iter().map(TaskId::to_string).collect()))?;
        }
        Ok(())
    }
}

type Result<T> = std::result::Result<T, EditError>;

/// The settings of a cluster that an edit replaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    pub name: Option<String>,
    pub description: Option<String>,
    pub on_register: Option<OnRegister>,
}

/// Returns a new cluster.
pub fn create(id: ClusterId, settings: Settings, at: Timestamp) -> Result<ClusterRecord> {
    let Settings { name, description, on_register } = settings;
    let (name, description) = (name.unwrap_or_default(), description.unwrap_or_default());
    check_name(&name)?;
    check_description(&description)?;
    let on_register = on_register.unwrap_or(OnRegister::Reset);
    Ok(ClusterRecord { on_register, ..ClusterRecord::new(id, name, description, at) })
}

/// Changes the name, the description or `on_register`.
pub fn settings(cluster: &ClusterRecord, settings: Settings, at: Timestamp) -> Result<Edited> {
    let Settings { name, description, on_register } = settings;
    if let Some(name) = name.as_ref().filter(|name| **name != cluster.name) {
        check_name(name)?;
        if cluster.id == ClusterId::DEFAULT {
            return Err(EditError::DefaultName);
        }
    }
    if let Some(description) = &description {
        check_description(description)?;
    }
    let next = cluster.edited(at, |cluster| {
        cluster.name = name.unwrap_or_else(|| cluster.name.clone());
        cluster.description = description.unwrap_or_else(|| cluster.description.clone());
        cluster.on_register = on_register.unwrap_or(cluster.on_register);
    });
    Ok(Edited { cluster: next, edit: ClusterEdit::Settings })
}

fn check_description(description: &str) -> Result<()> {
    match description.len() {
        bytes if bytes > limits::CLUSTER_DESCRIPTION_BYTES => Err(EditError::Description(bytes)),
        _ => Ok(()),
    }
}

/// Adds a task at a position from 1, or at the end.
pub fn add(
    cluster: &ClusterRecord,
    id: TaskId,
    task: TaskFields,
    position: Option<usize>,
    at: Timestamp,
) -> Result<Edited> {
    let mut list = (*cluster.list).clone();
    is_name_free(&list, &task.name, None)?;
    let most = list.tasks.len() + 1;
    let position = position.unwrap_or(most);
    if position == 0 || position > most {
        return Err(EditError::Position { given: position, most });
    }
    let task = task.into_task(id, list.next_number, at);
    list.next_number += 1;
    list.tasks.insert(position - 1, task);
    edited(cluster, list, ClusterEdit::TaskAdded { task: id }, at)
}

/// Replaces the fields of a task. Executions that exist are not affected.
pub fn update(cluster: &ClusterRecord, id: TaskId, task: TaskFields, at: Timestamp) -> Result<Edited> {
    let mut list = (*cluster.list).clone();
    let place = place_of(cluster, id)?;
    is_name_free(&list, &task.name, Some(id))?;
    if TaskFields::of(&list.tasks[place]) != task {
        list.tasks[place] = task.set_on(&list.tasks[place], at);
    }
    edited(cluster, list, ClusterEdit::TaskUpdated { task: id }, at)
}

/// Deletes a task; those after it move up.
pub fn delete(cluster: &ClusterRecord, id: TaskId, at: Timestamp) -> Result<Edited> {
    let mut list = (*cluster.list).clone();
    let place = place_of(cluster, id)?;
    let task = list.tasks.remove(place);
    keep_deleted(&mut list, task, at);
    edited(cluster, list, ClusterEdit::TaskDeleted { task: id }, at)
}

/// Puts the tasks in another order, which must name each of them once.
pub fn reorder(cluster: &ClusterRecord, order: &[TaskId], at: Timestamp) -> Result<Edited> {
    let mut list = (*cluster.list).clone();
    let mut wrong = BadOrder::default();
    let mut named = BTreeSet::new();
    let mut tasks = Vec::with_capacity(order.len());
    for id in order {
        match list.by_id(*id) {
            None => wrong.unknown.push(*id),
            Some(_) if !named.insert(*id) => wrong.twice.push(*id),
            Some((_, task)) => tasks.push(task.clone()),
        }
    }
    let missing = list.tasks.iter().filter(|task| !named.contains(&task.id));
    wrong.missing = missing.map(|task| (task.id, task.name.clone())).collect();
    if wrong != BadOrder::default() {
        return Err(wrong.into());
    }
    list.tasks = tasks;
    edited(cluster, list, ClusterEdit::TasksReordered, at)
}

/// Replaces the list by that of a file. Tasks with equal names are the same, and keep what they are besides their fields.
/// Returns no next version if nothing would change.
pub fn apply(
    cluster: &ClusterRecord,
    wanted: Vec<TaskFields>,
    mut new_id: impl FnMut() -> TaskId,
    at: Timestamp,
) -> Result<(Option<Edited>, Vec<ListChange>)> {
    let changes = compare(&cluster.list.tasks, &wanted);
    if changes.iter().all(|change| change.kind == ChangeKind::Keep) {
        return Ok((None, changes));
    }
    let mut list = (*cluster.list).clone();
    let mut former = std::mem::take(&mut list.tasks);
    for task in wanted {
        if let Some((_, twice)) = list.by_name(&task.name) {
            return Err(EditError::NameInUse { name: task.name, task: twice.id });
        }
        let next = match former.iter().position(|known| known.name == task.name) {
            None => {
                list.next_number += 1;
                task.into_task(new_id(), list.next_number - 1, at)
            }
            Some(place) => {
                let known = former.remove(place);
                if TaskFields::of(&known) == task { known } else { task.set_on(&known, at) }
            }
        };
        list.tasks.push(next);
    }
    for task in former {
        keep_deleted(&mut list, task, at);
    }
    let edited = edited(cluster, list, ClusterEdit::TasksApplied, at)?;
    Ok((Some(edited), changes))
}

/// Asks for a task to be done again. `is_covered` returns whether results of a node from before a time do not count for
/// another reason: the node has registered since, or does not exist any more.
pub fn rerun(
    cluster: &ClusterRecord,
    id: TaskId,
    scope: RerunScope,
    is_covered: impl Fn(NodeId, Timestamp) -> bool,
    at: Timestamp,
) -> Result<Edited> {
    let mut list = (*cluster.list).clone();
    let place = place_of(cluster, id)?;
    drop_covered(&mut list, is_covered);
    let reruns = &mut list.tasks[place].reruns;
    reruns.retain(|older| !covers(scope, older.scope));
    reruns.push(Rerun { at, scope });
    edited(cluster, list, ClusterEdit::TaskRerun { task: id, scope }, at)
}

/// Returns the cluster without the requests to do a task again on one node that have been met: without them, the list would
/// grow with each. `is_met` returns whether the last attempt at a task (its number) on a node was created since a time.
#[must_use]
pub fn without_met(
    cluster: &ClusterRecord,
    is_met: impl Fn(NodeId, u32, Timestamp) -> bool,
) -> ClusterRecord {
    let mut list = (*cluster.list).clone();
    for task in &mut list.tasks {
        let number = task.number;
        task.reruns.retain(|rerun| match rerun.scope {
            RerunScope::All | RerunScope::Failed => true,
            RerunScope::Node { node } => !is_met(node, number, rerun.at),
        });
    }
    ClusterRecord { list: Arc::new(list), ..cluster.clone() }
}

/// Returns the cluster without the resets of nodes that have been met. `is_met` returns whether no attempt of a node at a
/// task of the list is from before a time.
#[must_use]
pub fn without_met_resets(
    cluster: &ClusterRecord,
    is_met: impl Fn(NodeId, Timestamp) -> bool,
) -> ClusterRecord {
    let mut list = (*cluster.list).clone();
    list.resets.retain(|node, at| !is_met(*node, *at));
    ClusterRecord { list: Arc::new(list), ..cluster.clone() }
}

/// Returns the cluster without these deleted tasks, by number: none of their executions is left.
#[must_use]
pub fn without_deleted(cluster: &ClusterRecord, numbers: &[u32]) -> ClusterRecord {
    let mut list = (*cluster.list).clone();
    list.deleted.retain(|task| !numbers.contains(&task.number));
    ClusterRecord { list: Arc::new(list), ..cluster.clone() }
}

/// Makes a node do all tasks again. For `is_covered` see [`rerun`].
pub fn reset_node(
    cluster: &ClusterRecord,
    node: NodeId,
    is_covered: impl Fn(NodeId, Timestamp) -> bool,
    at: Timestamp,
) -> Result<Edited> {
    let mut list = (*cluster.list).clone();
    list.resets.insert(node, at);
    drop_covered(&mut list, is_covered);
    // The reset of this moment counts even if the node registers in the same moment.
    list.resets.insert(node, at);
    edited(cluster, list, ClusterEdit::NodeReset { node }, at)
}

/// Returns whether every result that the older request voids is voided by a newer one of this scope.
fn covers(newer: RerunScope, older: RerunScope) -> bool {
    newer == RerunScope::All || newer == older
}

/// Drops requests that have no effect any more, so that they stay few.
fn drop_covered(list: &mut StandingList, is_covered: impl Fn(NodeId, Timestamp) -> bool) {
    list.resets.retain(|node, at| !is_covered(*node, *at));
    let StandingList { tasks, resets, .. } = list;
    for task in tasks {
        task.reruns.retain(|rerun| match rerun.scope {
            RerunScope::All | RerunScope::Failed => true,
            RerunScope::Node { node } => {
                let is_reset = resets.get(&node).is_some_and(|reset| *reset >= rerun.at);
                !is_reset && !is_covered(node, rerun.at)
            }
        });
    }
}

fn place_of(cluster: &ClusterRecord, id: TaskId) -> Result<usize> {
    let found = cluster.list.by_id(id).map(|(place, _)| place);
    found.ok_or_else(|| EditError::NoTask { task: id, cluster: cluster.name.clone() })
}

fn is_name_free(list: &StandingList, name: &str, except: Option<TaskId>) -> Result<()> {
    match list.by_name(name) {
        Some((_, other)) if Some(other.id) != except => {
            Err(EditError::NameInUse { name: name.to_owned(), task: other.id })
        }
        _ => Ok(()),
    }
}

fn keep_deleted(list: &mut StandingList, task: StandingTask, at: Timestamp) {
    let deleted = StandingTask { deleted_at: Some(at), reruns: Vec::new(), ..task };
    list.deleted.insert(0, deleted);
    list.deleted.truncate(limits::STANDING_TASKS);
}

/// Checks the bounds of a list, and returns the next version of its cluster. The oldest deleted tasks make room.
fn edited(
    cluster: &ClusterRecord,
    mut list: StandingList,
    edit: ClusterEdit,
    at: Timestamp,
) -> Result<Edited> {
    if list.tasks.len() > limits::STANDING_TASKS {
        return Err(EditError::TooMany(list.tasks.len()));
    }
    let mut bytes = json_bytes(&list);
    while bytes > limits::STANDING_LIST_BYTES {
        let Some(oldest) = list.deleted.pop() else { return Err(EditError::TooLarge(bytes)) };
        bytes = bytes.saturating_sub(json_bytes(&oldest));
    }
    let cluster = cluster.edited(at, |cluster| cluster.list = Arc::new(list));
    Ok(Edited { cluster, edit })
}

#[cfg(test)]
mod tests;
