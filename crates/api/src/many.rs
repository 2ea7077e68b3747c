//! Owns the outcome of a request that changes many runs or nodes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How many runs or nodes a request matched, and what became of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Many {
    /// Nothing was changed: the request only counts.
    pub dry_run: bool,
    /// Runs or nodes that the request matches and that are not yet as requested.
    pub matched: u64,
    /// Those that were changed; 0 in a dry run.
    pub changed: u64,
    /// The first of those that were matched: ids of runs, hostnames of nodes.
    pub names: Vec<String>,
    /// The first of those that could not be changed, with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<Refused>,
}

/// A run or a node that could not be changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Refused {
    /// The id of the run, or the hostname of the node.
    pub name: String,
    pub reason: String,
}
