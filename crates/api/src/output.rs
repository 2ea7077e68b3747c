//! Owns how output is shown, of one execution and of a whole run.

use downbeat_core::execution::Stream;
use downbeat_core::ids::{ExecutionId, RunId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Output of one execution, from an offset on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Output {
    #[schema(value_type = Uuid)]
    pub execution: ExecutionId,
    /// Where `text` starts in the whole output of the execution, in bytes.
    pub offset: u64,
    /// The offset of the next request.
    pub next: u64,
    /// A part between the requested offset and `offset` is no longer kept.
    pub truncated: bool,
    /// The execution has ended, and this is the end of its output.
    pub complete: bool,
    pub text: String,
    pub chunks: Vec<Chunk>,
    /// How many lines contain the text of `grep`, also those that `tail` leaves out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matches: Option<u64>,
}

/// A chunk of output. In a stream, the event `output`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Chunk {
    /// Where it starts in the whole output of the execution, in bytes.
    pub offset: u64,
    /// `stdout` or `stderr`.
    #[schema(value_type = String, example = "stdout")]
    pub stream: Stream,
    pub text: String,
    pub at: Timestamp,
}

/// A chunk of a run's output, with its execution and node. In a stream, the event `output`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunChunk {
    #[schema(value_type = Uuid)]
    pub execution: ExecutionId,
    pub step: u32,
    /// The step's name, or `backend action`.
    pub task: String,
    /// Its index among the items of its task's `for_each`, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<u32>,
    /// The node's hostname.
    pub node: String,
    pub attempt: u32,
    #[serde(flatten)]
    pub chunk: Chunk,
}

/// The last event of a stream, `end`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct End {
    #[schema(value_type = String)]
    pub run: RunId,
    /// Absent at the end of a run's stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Uuid>)]
    pub execution: Option<ExecutionId>,
    /// The status of the execution, or of the run.
    pub status: String,
    /// How many lines of the run contain the text of `grep`, also those that `tail` leaves out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matches: Option<u64>,
}
