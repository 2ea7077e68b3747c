//! Checks that the names in a job's expressions exist. Runs only if all tasks could be read.

use super::field::Checker;
use super::path::Path;
use super::tree::Node;
use crate::expr::Template;
use crate::spec::{Definition, Entry, ExprSite, Known, Use};

impl Checker<'_> {
    pub(super) fn expressions(&mut self, path: Path<'_>, items: &[Node<'_>], definition: &Definition) {
        let mut known = None;
        for (entry, (item, read)) in items.iter().zip(&definition.tasks).enumerate() {
            if self.is_full() {
                return;
            }
            let entry_path = path.index(entry);
            let inside = entry_path.field("tasks");
            let leaves = item.field("tasks").and_then(Node::as_list);
            let nodes = leaves.unwrap_or(std::slice::from_ref(item));
            if let Some(each) = read.for_each()
                && let Ok(Some(template)) = Template::of_items(&each.items)
            {
                let known = known.get_or_insert_with(|| Known::of(definition));
                let at = item.field("for_each").map_or(item.at, |node| node.at);
                for problem in known.check(ExprSite { entry, leaf: 0 }, &template, Use::Items) {
                    self.problem(entry_path.field("for_each"), at, problem.message);
                }
            }
            for (leaf, (node, task)) in nodes.iter().zip(read.leaves()).enumerate() {
                let is_branch = matches!(read, Entry::Branch(_));
                let holder = if is_branch { inside.index(leaf) } else { entry_path };
                let keys = definition.limits_of(task).map(|(key, _)| key.as_str());
                if let Ok(Some(template)) = Template::of_keys(keys) {
                    let known = known.get_or_insert_with(|| Known::of(definition));
                    let at = node.field("limits").map_or(node.at, |node| node.at);
                    for problem in known.check(ExprSite { entry, leaf }, &template, Use::Params) {
                        self.problem(holder.field("limits"), at, problem.message);
                    }
                }
                // An invalid expression was reported when the task was read.
                let Ok(Some(template)) = Template::of(&task.backend, &task.action, &task.params) else {
                    continue;
                };
                let Some(params) = node.field("params") else { continue };
                let known = known.get_or_insert_with(|| Known::of(definition));
                for problem in known.check(ExprSite { entry, leaf }, &template, Use::Params) {
                    self.param_problem(holder.field("params"), params, problem);
                }
            }
        }
    }
}
