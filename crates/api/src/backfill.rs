//! Owns how backfills are shown.

use downbeat_core::ids::{BackfillId, ClusterId};
use downbeat_core::job::{BackfillRecord, NotStarted};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A stored job that runs for all times of its schedules in a range of the past.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Backfill {
    #[schema(value_type = Uuid)]
    pub id: BackfillId,
    pub job: String,
    #[schema(value_type = Uuid)]
    pub cluster: ClusterId,
    pub cluster_name: String,
    /// The version of the job that it runs.
    pub job_version: u64,
    /// `running`, `cancelling`, `cancelled`, `completed`, or `failed` if not every time has a run that succeeded or existed
    /// before.
    pub status: String,
    pub from: Timestamp,
    /// The range ends before this time.
    pub to: Timestamp,
    /// How many of its runs are open at once.
    pub parallel: u32,
    /// Whether times that had a run before run again.
    pub again: bool,
    pub by: String,
    pub created_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    pub cancelled_by: Option<String>,
    /// How many times are in the range. It is the sum of the following numbers.
    pub times: u32,
    pub succeeded: u32,
    pub failed: u32,
    pub cancelled: u32,
    /// Times that had a run before.
    pub existing: u32,
    /// Times whose run was refused, because the job cannot run.
    pub refused: u32,
    /// Times whose run has not ended.
    pub running: u32,
    /// Times that were not reached yet, or not before it was cancelled.
    pub left: u32,
    /// The ids of the runs that have not ended, the oldest time first.
    pub open: Vec<String>,
    /// Why the last refused run was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_refusal: Option<String>,
    /// Its times; only for a dry run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub planned: Vec<Timestamp>,
}

impl Backfill {
    pub fn of(backfill: &BackfillRecord, cluster_name: String) -> Self {
        let BackfillRecord { made, live } = backfill;
        let counts = live.counts;
        let status = match (live.ended_at, &live.cancelled) {
            (None, None) => "running",
            (None, Some(_)) => "cancelling",
            (Some(_), Some(_)) => "cancelled",
            (Some(_), None) if counts.succeeded + counts.existing == made.times => "completed",
            (Some(_), None) => "failed",
        };
        let refusal = |NotStarted { at, error }: &NotStarted| format!("{at}: {error}");
        Self {
            id: made.id,
            job: made.job.name.to_string(),
            cluster: made.job.cluster,
            cluster_name,
            job_version: made.version,
            status: status.to_owned(),
            from: made.from,
            to: made.to,
            parallel: made.parallel,
            again: made.again,
            by: made.by.clone(),
            created_at: made.created_at,
            ended_at: live.ended_at,
            cancelled_by: live.cancelled.as_ref().map(|cancel| cancel.by.clone()),
            times: made.times,
            succeeded: counts.succeeded,
            failed: counts.failed,
            cancelled: counts.cancelled,
            existing: counts.existing,
            refused: counts.refused,
            running: u32::try_from(live.open.len()).unwrap_or(u32::MAX),
            left: backfill.left(),
            open: live.open.values().map(|run| run.as_str().to_owned()).collect(),
            last_refusal: live.refused.as_ref().map(refusal),
            planned: Vec::new(),
        }
    }
}
