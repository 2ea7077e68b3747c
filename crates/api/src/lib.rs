//! The types of the REST API: plain data that serializes to JSON and back, for the server and its clients; [`request`]
//! has the paths, and [`code`] the codes of problems.
//!
//! Invariant: nothing in here knows HTTP or a store. Each file's `of` functions create a view from records of `core`.

mod backfill;
mod cluster;
pub mod code;
mod debug;
mod delivery;
mod event;
mod event_body;
mod execution;
mod failure;
mod frame;
mod hook;
mod job;
mod limit;
mod list;
mod many;
mod matrix;
mod node;
mod outline;
mod output;
mod plan;
mod problem;
mod progress;
pub mod request;
mod rollout;
mod run;
mod run_metrics;
mod schema;
mod standing;
mod stats;
mod status;
mod work;

pub use backfill::Backfill;
pub use cluster::{Cluster, ClusterStatus, TaskCounts};
pub use debug::{ClusterDebugRequest, DebugCommand, DebugRequest, DebugResult};
pub use delivery::Delivery;
pub use downbeat_core::plan::{EdgeKind, Shape};
pub use event::{Event, Gap};
pub use event_body::{AddedExecution, Ended, EventBody, RefusedTime, Reported, SkippedTimes, UnknownKind};
pub use execution::{Execution, Names, Waiting};
pub use failure::{FailureGroup, Failures};
pub use frame::{Cell, Frame, NodeChange, RunChange, ServerState};
pub use hook::HookReply;
pub use job::{AppliedJob, Difference, Job, JobDiff, JobVersion, NextStart};
pub use limit::{LimitUsage, LimitUser};
pub use list::{EventList, EventPagination, List, Pagination};
pub use many::{Many, Refused};
pub use matrix::Matrix;
pub use node::{Action, Backend, DeletedNode, Node, NodeCount, NodeSummary, OfferedBackend, Param};
pub use outline::Outline;
pub use output::{Chunk, End, Output, RunChunk};
pub use plan::{Edge, NodeName, Plan, Step, Valid, Where};
pub use problem::{FieldError, NAMED, NodeReason, Problem, named_of, with_nodes};
pub use progress::{EndRules, InstanceState, StepProgress};
pub use rollout::{PlannedRollout, PlannedWave, Rollout, Wave, WaveNodes, WaveStatus};
pub use run::{
    Absent, Counts, FewNodes, InstanceResult, Results, RolloutRow, Round, Run, RunRow, RunSummary,
    StepTotals, StepWaiting, Steps, UNBOUND, WholeRun,
};
pub use run_metrics::{Phases, RunMetrics, StateStay};
pub use standing::{ListChange, ListChanges, Rerun, StandingTask, Stuck, TaskConfig, Walk};
pub use stats::{Ends, JobStats, Stats, StepStats};
pub use status::{Growth, Replica, Role, Server, Status, Volume};
pub use work::{HeldWork, NodeWork, Slots};
