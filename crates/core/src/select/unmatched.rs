//! Explains why a selector matches no node: the part that no node has, and what was probably meant.

use std::collections::BTreeSet;

use super::rule::{Rule, Test};
use crate::nearest::advice;
use crate::node::NodeRecord;
use crate::shown::shown;

/// Returns why none of the nodes matches the rule, which was written as `text`.
pub(super) fn reason(rule: &Rule, text: &str, nodes: &[&NodeRecord]) -> String {
    if nodes.is_empty() {
        return "the cluster has no nodes yet; start an agent with `downbeat agent`".to_owned();
    }
    match (rule, culprit(rule, nodes)) {
        (Rule::And(_) | Rule::Or(_), Some(why)) => {
            format!("the target `{}` matches no node: {why}", shown(text))
        }
        (_, Some(why)) => why,
        (Rule::And(_), None) => {
            format!("the target `{}` matches no node: no node fulfils all its conditions", shown(text))
        }
        (_, None) => format!("the target `{}` matches no node", shown(text)),
    }
}

/// Returns the first part of the rule that no node satisfies, with the existing alternatives.
fn culprit(rule: &Rule, nodes: &[&NodeRecord]) -> Option<String> {
    match rule {
        Rule::All | Rule::Not(_) => None,
        Rule::Group(glob) => {
            let groups = names(nodes, |node| node.description.groups.iter().map(String::as_str).collect());
            let what = format!("no node is in group `{}`", shown(glob.as_str()));
            Some(advised(&what, glob.as_str(), &groups, "groups"))
        }
        Rule::Node { hostname, .. } => Some(no_node(hostname.as_str(), nodes)),
        Rule::Name(Test::Equal(literal)) => Some(no_node(&literal.text, nodes)),
        Rule::Name(Test::Like(glob)) => Some(no_node(glob.as_str(), nodes)),
        Rule::Name(Test::Unequal(_) | Test::Number(..)) => None,
        Rule::Backend(name) => {
            let backends = names(nodes, |node| {
                node.description.backends.iter().map(|backend| backend.name.as_str()).collect()
            });
            let what = format!("no node offers the backend `{}`", shown(name));
            Some(advised(&what, name, &backends, "backends"))
        }
        Rule::Label { key, test } => {
            let keys = names(nodes, |node| node.description.labels.keys().map(String::as_str).collect());
            let values = names(nodes, |node| {
                node.description.labels.get(key).map(String::as_str).into_iter().collect()
            });
            valued("label", key, test.as_ref(), &keys, &values)
        }
        Rule::Capability { key, test } => {
            let keys =
                names(nodes, |node| node.description.capabilities.keys().map(String::as_str).collect());
            let values: BTreeSet<String> = nodes
                .iter()
                .filter_map(|node| node.description.capabilities.get(key))
                .map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
                .collect();
            valued("capability", key, test.as_ref(), &keys, &values.iter().map(String::as_str).collect())
        }
        Rule::And(rules) | Rule::Or(rules) => rules
            .iter()
            .filter(|rule| !nodes.iter().any(|node| rule.matches(node)))
            .find_map(|rule| culprit(rule, nodes)),
    }
}

fn no_node(name: &str, nodes: &[&NodeRecord]) -> String {
    let hostnames = names(nodes, |node| vec![node.description.hostname.as_str()]);
    advised(&format!("no node is called `{}`", shown(name)), name, &hostnames, "nodes")
}

/// Explains a label or a capability: no node has it, or no node has that value.
fn valued(
    what: &str,
    key: &str,
    test: Option<&Test>,
    keys: &BTreeSet<&str>,
    values: &BTreeSet<&str>,
) -> Option<String> {
    if !keys.contains(key) {
        let none = format!("no node has the {what} `{}`", shown(key));
        let plural = if what == "label" { "labels" } else { "capabilities" };
        return Some(advised(&none, key, keys, plural));
    }
    let Test::Equal(literal) = test? else { return None };
    let none = format!("no node has {what} `{}` = `{}`", shown(key), shown(&literal.text));
    Some(advised(&none, &literal.text, values, "values"))
}

fn names<'n>(nodes: &[&'n NodeRecord], of: impl Fn(&'n NodeRecord) -> Vec<&'n str>) -> BTreeSet<&'n str> {
    nodes.iter().flat_map(|node| of(node)).collect()
}

fn advised(what: &str, word: &str, known: &BTreeSet<&str>, plural: &str) -> String {
    if known.is_empty() {
        return format!("{what}, and no node has any {plural}");
    }
    // Nodes choose these names, so they are escaped: none may break the line.
    let known: Vec<String> = known.iter().map(|name| shown(name)).collect();
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    format!("{what}; {}", advice(word, &known, plural))
}
