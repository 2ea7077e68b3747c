//! The types of the REST API: plain data that serialises to JSON and reads back, for the server and its clients alike;
//! [`request`] has the paths, and [`code`] the codes of problems.
//!
//! Invariant: nothing in here knows HTTP or a store. Each file's `of` functions make a view from records of `core`.

pub mod code;
mod event;
mod execution;
mod happened;
mod list;
mod node;
mod outline;
mod output;
mod plan;
mod problem;
pub mod request;
mod rollout;
mod run;
mod schema;
mod standing;
mod status;
mod work;

pub use downbeat_core::plan::{EdgeKind, Shape};
pub use event::Event;
pub use execution::{Execution, Names, Waiting};
pub use happened::{AddedExecution, Ended, Happened, Reported, UnknownKind};
pub use list::{EventList, EventPagination, List, Pagination};
pub use node::{Action, Backend, Cluster, DeletedNode, Node, NodeSummary, Param};
pub use outline::Outline;
pub use output::{Chunk, End, Output, RunChunk};
pub use plan::{Edge, NodeName, Plan, Step, Valid, Where};
pub use problem::{FieldError, NAMED, NodeReason, Problem, named_of, with_nodes};
pub use rollout::{PlannedRollout, PlannedWave, Rollout, Wave, WaveStatus};
pub use run::{Counts, InstanceResult, Run, RunSummary, StepWaiting, Steps};
pub use standing::{Rules, RunStanding, StepStanding};
pub use status::{Replica, Role, Server, Status};
pub use work::{HeldWork, NodeWork, Slots};
