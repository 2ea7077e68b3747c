//! Owns how a job's limits are shown: who uses them, and who waits.

use downbeat_core::Span;
use downbeat_core::ids::{ExecutionId, RunId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A limit that open executions share by its key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LimitUsage {
    pub key: String,
    /// The maximum at once, or within `per`. If executions declare different numbers, the smallest.
    pub most: u32,
    /// The time of a rate; absent for a number at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "1m")]
    pub per: Option<Span>,
    /// How many executions count now.
    pub in_use: u64,
    /// Some of them; for a rate, those that have not ended.
    pub holders: Vec<LimitUser>,
    /// How many pending executions declare it.
    pub waiting: u64,
    /// Some of them, the oldest of each job first.
    pub waiters: Vec<LimitUser>,
}

/// An open execution that uses a limit, or waits for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LimitUser {
    #[schema(value_type = Uuid)]
    pub execution: ExecutionId,
    #[schema(value_type = String)]
    pub run: RunId,
    pub step: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<u32>,
    /// The hostname of its node; null while no node is bound to it.
    pub node: Option<String>,
}
