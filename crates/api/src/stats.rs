//! Owns how the ends of runs over time and usual durations are shown.

use downbeat_core::Span;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How runs of a cluster ended, and how long they usually take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Stats {
    /// Ends of runs that were created before this time may be missing; null if none are.
    pub since: Option<Timestamp>,
    /// The length of a period in `ends`.
    #[schema(value_type = String, example = "1h")]
    pub per: Span,
    /// How many runs ended in each period, the earliest first.
    pub ends: Vec<Ends>,
    /// The jobs whose runs ended last, by name.
    pub jobs: Vec<JobStats>,
}

/// How many runs ended within a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Ends {
    /// The start of the period.
    pub at: Timestamp,
    pub completed: u64,
    pub failed: u64,
    pub cancelled: u64,
}

/// How long the runs of a job take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobStats {
    pub job: String,
    /// The median duration of the last completed runs.
    #[schema(value_type = Option<String>, example = "4m12s")]
    pub median: Option<Span>,
    /// How many runs that is.
    pub runs: u32,
    /// Its steps, if one job is requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepStats>,
}

/// How long a step of a job takes on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StepStats {
    pub step: u32,
    /// The median duration of the last successful executions.
    #[schema(value_type = String, example = "2.3s")]
    pub median: Span,
    /// How many executions that is.
    pub executions: u32,
}
