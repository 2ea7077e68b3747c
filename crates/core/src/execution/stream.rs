//! Owns the output of an execution: chunks of the two streams that a process writes to.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::ids::ExecutionId;

/// Which of its streams a process wrote to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    Stdout,
    Stderr,
}

/// A piece of an execution's output: valid UTF-8, at most `limits::OUTPUT_CHUNK_BYTES`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputChunk {
    pub execution: ExecutionId,
    /// The offset of its first byte in the execution's whole output. A chunk with an offset below the stored end was
    /// sent before, and is dropped.
    pub offset: u64,
    pub stream: Stream,
    pub text: String,
    pub at: Timestamp,
}
