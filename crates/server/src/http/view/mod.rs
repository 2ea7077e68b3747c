//! What the REST API shows: plain data that serialises to JSON and reads back, for the server and its clients alike.
//!
//! Invariant: nothing in here knows HTTP. Making a view from stored state is each file's `of` functions.

mod event;
mod execution;
mod list;
mod node;
mod output;
mod plan;
mod problem;
mod rollout;
mod run;
mod schema;
mod standing;
mod status;
mod work;

pub use event::Event;
pub use execution::{Execution, Names, Waiting};
pub use list::{EventList, EventPagination, List, Pagination};
pub use node::{Action, Backend, Cluster, DeletedNode, Node, NodeSummary, Param};
pub use output::{Chunk, End, Output, RunChunk};
pub use plan::{Edge, EdgeKind, NodeName, Plan, Shape, Step, Valid, Where};
pub use problem::{FieldError, NodeReason, Problem};
pub(super) use problem::{NAMED, named_of, with_nodes};
pub use rollout::{PlannedRollout, PlannedWave, Rollout, Wave, WaveStatus};
pub use run::{Counts, InstanceResult, Run, RunSummary, StepWaiting, Steps};
pub use standing::{Rules, RunStanding, StepStanding};
pub use status::{Replica, Role, Server, Status};
pub use work::{HeldWork, NodeWork, Slots};
