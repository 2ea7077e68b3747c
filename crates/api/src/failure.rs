//! Owns how the failures of a run are shown: grouped by like errors.

use downbeat_core::execution::Status;
use downbeat_core::ids::ExecutionId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::schema;

/// The instances of a run that failed for good, grouped by step and like error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Failures {
    /// How many failed instances the groups contain.
    pub failed: u64,
    /// Whether the run has more failed executions than were examined.
    pub has_more: bool,
    /// The largest group first.
    pub groups: Vec<FailureGroup>,
}

/// Failed instances of one step with like errors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FailureGroup {
    pub step: u32,
    /// The task's name, or `backend action`.
    pub task: String,
    /// `failed` or `lost`.
    #[schema(schema_with = schema::execution_status)]
    pub status: Status,
    /// What the errors have in common; `…` stands for the parts that differ, such as numbers and ids.
    pub text: String,
    pub count: u64,
    /// The hostnames of the first nodes.
    pub nodes: Vec<String>,
    /// The first of these executions.
    #[schema(value_type = Uuid)]
    pub execution: ExecutionId,
    /// The error of that execution.
    pub error: Option<String>,
    /// Its last line on standard error.
    pub stderr: Option<String>,
}
