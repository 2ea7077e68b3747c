//! Checks how tasks refer to each other: names are unique, `depends_on` names existing entries, and there are no
//! cycles. It reads the tree, so that a task with another problem is still found by its name.

use std::collections::{HashMap, HashSet};

use super::field::Checker;
use super::path::Path;
use super::tree::Node;
use crate::nearest::nearest;
use crate::shown::shown;
use crate::spec::At;

/// The number of entries of a cycle that are printed; the rest is cut.
const CYCLE_SHOWN: usize = 20;

/// A name and its position, of an entry or of a leaf in it.
struct Named<'n> {
    entry: usize,
    leaf: Option<usize>,
    at: At,
    name: &'n str,
}

impl Checker<'_> {
    pub(super) fn names(&mut self, path: Path<'_>, items: &[Node<'_>]) {
        let mut first: HashMap<&str, Named<'_>> = HashMap::new();
        for named in all_names(items) {
            if let Some(known) = first.get(named.name) {
                let entry = path.index(named.entry);
                let tasks = entry.field("tasks");
                let holder = named.leaf.map_or(entry, |leaf| tasks.index(leaf));
                let place = match known.leaf {
                    None => format!("tasks[{}]", known.entry),
                    Some(leaf) => format!("tasks[{}].tasks[{leaf}]", known.entry),
                };
                let message =
                    format!("the name `{}` is already that of {place}; names are unique", shown(named.name));
                self.problem(holder.field("name"), named.at, message);
            } else {
                first.insert(named.name, named);
            }
        }
    }

    pub(super) fn graph(&mut self, path: Path<'_>, items: &[Node<'_>]) {
        if items.iter().all(|item| item.field("depends_on").is_none()) {
            return;
        }
        let mut entries: HashMap<&str, usize> = HashMap::new();
        let mut leaves: HashMap<&str, usize> = HashMap::new();
        for named in all_names(items) {
            let known = if named.leaf.is_none() { &mut entries } else { &mut leaves };
            known.entry(named.name).or_insert(named.entry);
        }
        // For each entry, the entries that it waits for, with the position of each reference.
        let mut waits: Vec<Vec<(usize, At)>> = vec![Vec::new(); items.len()];
        let mut names: Vec<&str> = entries.keys().copied().collect();
        names.sort_unstable();
        let mut seen = HashSet::new();
        for (index, item) in items.iter().enumerate() {
            let Some(wanted) = item.field("depends_on").and_then(Node::as_list) else { continue };
            let holder = path.index(index);
            let holder = holder.field("depends_on");
            seen.clear();
            for (position, node) in wanted.iter().enumerate() {
                let Some(name) = node.as_text() else { continue };
                if self.is_full() {
                    return;
                }
                let message = match entries.get(name) {
                    _ if !seen.insert(name) => format!("`{}` is already in the list; remove it", shown(name)),
                    Some(&on) if on == index => format!("`{}` depends on itself; remove it", shown(name)),
                    Some(&on) => {
                        waits[index].push((on, node.at));
                        continue;
                    }
                    None => unknown(name, &names, leaves.get(name).map(|branch| &items[*branch])),
                };
                self.problem(holder.index(position), node.at, message);
            }
        }
        for cycle in cycles(&waits) {
            let name = |entry: usize| shown(name_of(&items[entry]).unwrap_or("?"));
            let mut walk: Vec<String> =
                cycle.iter().take(CYCLE_SHOWN).map(|(entry, _)| name(*entry)).collect();
            if cycle.len() > CYCLE_SHOWN {
                walk.push(format!("({} more)", cycle.len() - CYCLE_SHOWN));
            }
            walk.push(name(cycle[0].0));
            let (entry, at) = cycle[0];
            let message =
                format!("the tasks wait for each other: {}; remove one of these edges", walk.join(" → "));
            self.problem(path.index(entry).field("depends_on"), at, message);
        }
    }
}

fn unknown(name: &str, names: &[&str], branch: Option<&Node<'_>>) -> String {
    if let Some(branch) = branch {
        let of = match name_of(branch) {
            Some(name) => format!("depend on the branch: `{}`", shown(name)),
            None => "give the branch a name and depend on that".to_owned(),
        };
        return format!("`{}` is a leaf inside a branch; {of}", shown(name));
    }
    if names.is_empty() {
        return format!("no task is named `{}`; give the task that must come first a `name`", shown(name));
    }
    match nearest(name, names.iter().copied()) {
        Some(meant) => format!("no task is named `{}`; did you mean `{}`?", shown(name), shown(meant)),
        None => {
            let few: Vec<String> = names.iter().take(10).map(|name| shown(name)).collect();
            let more = if names.len() > few.len() { ", …" } else { "" };
            format!("no task is named `{}`; tasks: {}{more}", shown(name), few.join(", "))
        }
    }
}

/// Returns cycles that share no entry. `waits` are the entries that each entry waits for, with the position of each
/// reference. A cycle is the list of its entries in waiting order, with these positions.
pub(crate) fn cycles<T: Copy>(waits: &[Vec<(usize, T)>]) -> Vec<Vec<(usize, T)>> {
    let mut waiters: Vec<Vec<usize>> = vec![Vec::new(); waits.len()];
    let mut open: Vec<usize> = waits.iter().map(Vec::len).collect();
    for (entry, on) in waits.iter().enumerate() {
        for (on, _) in on {
            waiters[*on].push(entry);
        }
    }
    let mut removed = vec![false; waits.len()];
    let mut free: Vec<usize> = (0..waits.len()).filter(|entry| open[*entry] == 0).collect();
    let mut found = Vec::new();
    let mut from = 0;
    loop {
        while let Some(entry) = free.pop() {
            if std::mem::replace(&mut removed[entry], true) {
                continue;
            }
            for waiter in &waiters[entry] {
                open[*waiter] -= 1;
                if open[*waiter] == 0 {
                    free.push(*waiter);
                }
            }
        }
        // Every remaining entry waits for a remaining entry, so following them always ends in a cycle.
        let Some(start) = (from..waits.len()).find(|entry| !removed[*entry]) else { return found };
        from = start;
        let mut walked: Vec<(usize, T)> = Vec::new();
        let mut seen: HashMap<usize, usize> = HashMap::new();
        let mut entry = start;
        let mut cycle = loop {
            if let Some(begin) = seen.get(&entry) {
                break walked.split_off(*begin);
            }
            seen.insert(entry, walked.len());
            let Some((on, at)) = waits[entry].iter().find(|(on, _)| !removed[*on]) else { return found };
            walked.push((entry, *at));
            entry = *on;
        };
        free.extend(cycle.iter().map(|(entry, _)| *entry));
        let least =
            cycle.iter().enumerate().min_by_key(|(_, (entry, _))| *entry).map_or(0, |(index, _)| index);
        cycle.rotate_left(least);
        found.push(cycle);
    }
}

fn all_names<'n>(items: &'n [Node<'_>]) -> impl Iterator<Item = Named<'n>> {
    items.iter().enumerate().flat_map(|(entry, item)| {
        let leaves = item.field("tasks").and_then(Node::as_list).unwrap_or_default();
        let leaves = leaves.iter().zip(0..).filter_map(move |(node, leaf)| named(node, entry, Some(leaf)));
        named(item, entry, None).into_iter().chain(leaves)
    })
}

fn named<'n>(node: &'n Node<'_>, entry: usize, leaf: Option<usize>) -> Option<Named<'n>> {
    let name = node.field("name")?;
    Some(Named { entry, leaf, at: name.at, name: name.as_text()? })
}

fn name_of<'n>(node: &'n Node<'_>) -> Option<&'n str> {
    node.field("name")?.as_text()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycles_of(edges: &[&[usize]]) -> Vec<Vec<usize>> {
        let waits: Vec<Vec<(usize, At)>> =
            edges.iter().map(|on| on.iter().map(|on| (*on, At::default())).collect()).collect();
        cycles(&waits).into_iter().map(|cycle| cycle.into_iter().map(|(entry, _)| entry).collect()).collect()
    }

    #[test]
    fn cycles_are_found_and_what_only_hangs_on_them_is_not_named() {
        assert!(cycles_of(&[&[], &[0], &[0, 1]]).is_empty());
        assert_eq!(cycles_of(&[&[1], &[0]]), [vec![0, 1]]);
        assert_eq!(cycles_of(&[&[1], &[2], &[3], &[1]]), [vec![1, 2, 3]]);
        assert_eq!(cycles_of(&[&[1], &[0], &[3], &[2], &[0]]), [vec![0, 1], vec![2, 3]]);
    }

    #[test]
    fn a_name_that_is_said_twice_is_found_in_short_and_in_long_lists() {
        for length in [2, 8, 9, 50] {
            let mut tasks: Vec<serde_json::Value> = (1..length)
                .map(|task| serde_json::json!({"name": format!("t{task}"), "backend": "test", "action": "noop"}))
                .collect();
            let mut names: Vec<String> = (1..length).map(|task| format!("t{task}")).collect();
            names.push("t1".to_owned());
            tasks.push(serde_json::json!({"backend": "test", "action": "noop", "depends_on": names}));
            let job = serde_json::json!({"tasks": tasks});
            let problems = crate::spec::from_json(&job, &crate::backend::Catalogue::builtin()).unwrap_err();
            let found: Vec<(&str, &str)> =
                problems.iter().map(|problem| (problem.path.as_str(), problem.message.as_str())).collect();
            let place = format!("tasks[{}].depends_on[{}]", length - 1, length - 1);
            assert_eq!(found, [(place.as_str(), "`t1` is already in the list; remove it")], "{length}");
        }
    }

    #[test]
    fn a_long_chain_is_walked_without_recursion() {
        let waits: Vec<Vec<(usize, At)>> = (0..100_000_usize)
            .map(|entry| entry.checked_sub(1).map(|on| (on, At::default())).into_iter().collect())
            .collect();
        assert!(cycles(&waits).is_empty());
    }
}
