//! Owns the two streams that a process writes to.

use serde::{Deserialize, Serialize};

/// Which of its streams a process wrote to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    Stdout,
    Stderr,
}
