//! Owns the shape of an error answer (RFC 9457). Which error becomes which problem is `http::problem`'s.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Why a request was not carried out (`application/problem+json`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// `about:blank`: the code says which problem it is.
    #[serde(rename = "type")]
    pub kind: String,
    pub title: String,
    pub status: u16,
    /// One line for people: what could not be done, and why.
    pub detail: String,
    /// For programs: `invalid_definition`, `refused`, `not_found`, `conflict`, `unavailable`, …
    pub code: String,
    /// What is wrong with the definition that was sent, one by one.
    #[serde(default)]
    pub errors: Vec<FieldError>,
    /// The nodes that stand in the way of a refused run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeReason>,
    /// Of a refusal by a read replica: the server that would carry it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary: Option<String>,
}

/// One mistake in a definition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FieldError {
    /// The field: `tasks[0].params.command`.
    pub path: String,
    /// From 1; absent where the place in the text is not known.
    pub line: Option<u32>,
    pub column: Option<u32>,
    pub message: String,
}

/// A node, and what is the matter with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeReason {
    pub node: String,
    pub reason: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}
