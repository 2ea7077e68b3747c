//! Owns the shape of an error response (RFC 9457). `http::problem` maps errors to problems.

use std::fmt;

use downbeat_core::spec;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Why a request failed (`application/problem+json`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// Always `about:blank`; `code` identifies the problem.
    #[serde(rename = "type")]
    pub kind: String,
    pub title: String,
    pub status: u16,
    /// One line for people: what failed, and why.
    pub detail: String,
    /// For programs: `invalid_definition`, `refused`, `not_found`, `conflict`, `unavailable`, …
    pub code: String,
    /// All mistakes in the definition that was sent.
    #[serde(default)]
    pub errors: Vec<FieldError>,
    /// The nodes that prevent a refused run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeReason>,
    /// Set by a read replica: the server that accepts the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary: Option<String>,
    /// Set if requested events are no longer kept: the number of the first event that is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<u64>,
}

/// One mistake in a definition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FieldError {
    /// The field: `tasks[0].params.command`.
    pub path: String,
    /// From 1; absent if the position in the text is not known.
    pub line: Option<u32>,
    pub column: Option<u32>,
    pub message: String,
}

impl From<spec::Problem> for FieldError {
    fn from(problem: spec::Problem) -> Self {
        let (line, column) = problem.at.map(|at| (at.line, at.column)).unzip();
        Self { path: problem.path, line, column, message: problem.message }
    }
}

/// A node, and a reason that concerns it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeReason {
    pub node: String,
    pub reason: String,
}

impl From<(String, &str)> for NodeReason {
    fn from((node, reason): (String, &str)) -> Self {
        Self { node, reason: reason.to_owned() }
    }
}

/// How many mistakes or nodes a detail names; the lists contain all of them.
pub const NAMED: usize = 3;

impl Problem {
    /// Returns the detail without the nodes at its end, for callers that also show the list of nodes.
    pub fn message(&self) -> &str {
        let detail = self.detail.as_str();
        // An older server appends all nodes, even those that the message already names.
        let all = listed(self.nodes.iter());
        let without = |(at, _): (usize, &str)| {
            let message = &detail[..at];
            (with_nodes(message, &self.nodes) == detail || format!("{message}{all}") == detail)
                .then_some(message)
        };
        detail.match_indices(" (").find_map(without).unwrap_or(detail)
    }

    /// Returns the nodes whose reason the message does not contain.
    pub fn unmentioned_nodes(&self) -> impl Iterator<Item = &NodeReason> {
        unmentioned(self.message(), &self.nodes)
    }
}

/// Appends the first nodes to a message, unless it already contains their reasons.
pub fn with_nodes(message: &str, nodes: &[NodeReason]) -> String {
    format!("{message}{}", listed(unmentioned(message, nodes)))
}

fn unmentioned<'n>(message: &str, nodes: &'n [NodeReason]) -> impl Iterator<Item = &'n NodeReason> {
    nodes.iter().filter(move |node| !node.reason.split("; ").all(|part| message.contains(part)))
}

fn listed<'n>(nodes: impl Iterator<Item = &'n NodeReason>) -> String {
    let nodes: Vec<&NodeReason> = nodes.collect();
    let named = nodes.iter().take(NAMED).map(|NodeReason { node, reason }| format!("{node} {reason}"));
    if nodes.is_empty() { String::new() } else { format!(" ({})", named_of(named, nodes.len())) }
}

/// Joins the first few and the number of the others.
pub fn named_of(named: impl Iterator<Item = String>, count: usize) -> String {
    let text = named.collect::<Vec<_>>().join("; ");
    if count > NAMED { format!("{text}; and {} more", count - NAMED) } else { text }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(message: &str, nodes: &[(&str, &str)]) -> Problem {
        let nodes: Vec<NodeReason> =
            nodes.iter().map(|(node, reason)| NodeReason::from(((*node).to_owned(), *reason))).collect();
        Problem {
            kind: String::new(),
            title: String::new(),
            status: 409,
            detail: with_nodes(message, &nodes),
            code: String::new(),
            errors: Vec::new(),
            nodes,
            primary: None,
            first: None,
        }
    }

    #[test]
    fn what_the_message_says_of_a_node_is_not_repeated() {
        let mentioned = problem(
            "step 0 (x) is refused on t1: env.B: must be a string; y: z; nothing was started",
            &[("t1", "env.B: must be a string; y: z")],
        );
        assert_eq!(mentioned.detail, mentioned.message());
        assert_eq!(mentioned.unmentioned_nodes().count(), 0);
    }

    #[test]
    fn nodes_that_the_message_only_counts_are_named_once() {
        let lacks = "lacks backend `exec`";
        let many =
            problem("4 of (all) the nodes cannot", &[("a", lacks), ("b", lacks), ("c", lacks), ("d", lacks)]);
        assert!(many.detail.ends_with(
            "cannot (a lacks backend `exec`; b lacks backend `exec`; c lacks backend `exec`; and 1 more)"
        ));
        assert_eq!(many.message(), "4 of (all) the nodes cannot");
        assert_eq!(many.unmentioned_nodes().count(), 4);
    }

    #[test]
    fn a_server_from_before_repeats_its_nodes_and_the_message_is_found_all_the_same() {
        let mut old = problem("refused: X; nothing was started", &[("t1", "X")]);
        old.detail = "refused: X; nothing was started (t1 X)".to_owned();
        assert_eq!(old.message(), "refused: X; nothing was started");
        assert_eq!(old.unmentioned_nodes().count(), 0);
    }
}
