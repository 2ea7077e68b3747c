//! Selectors: which nodes are meant.

use serde::{Deserialize, Serialize};

/// Placeholder shape; the real one keeps its text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Selector(String);
