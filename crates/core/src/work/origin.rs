//! Owns the origin of an execution, for example a step of a run. Every other kind of work gets a variant here, and the
//! compiler then shows each place that must decide about it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::RunId;

/// The origin of an execution. In the store and in events its fields are plain fields of the execution.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, from = "Fields")]
pub enum Origin {
    /// A step of a run.
    Step {
        run: RunId,
        step: u32,
        /// The index of the item in the task's `for_each`, from 0.
        #[serde(skip_serializing_if = "Option::is_none")]
        item: Option<u32>,
    },
}

/// The parent of an [`Origin`]. Changes of an execution contain it, so that they reach the actor that waits for them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(untagged, from = "RunId")]
pub enum Parent {
    Run(RunId),
}

impl Origin {
    pub fn run(&self) -> &RunId {
        match self {
            Origin::Step { run, .. } => run,
        }
    }

    /// Returns the number of the step in the plan of its run.
    pub fn step(&self) -> u32 {
        match self {
            Origin::Step { step, .. } => *step,
        }
    }

    /// Returns the index of the item in the task's `for_each`, from 0.
    pub fn item(&self) -> Option<u32> {
        match self {
            Origin::Step { item, .. } => *item,
        }
    }

    pub fn parent(&self) -> Parent {
        match self {
            Origin::Step { run, .. } => Parent::Run(run.clone()),
        }
    }
}

impl Parent {
    pub fn as_str(&self) -> &str {
        match self {
            Parent::Run(run) => run.as_str(),
        }
    }
}

impl From<RunId> for Parent {
    fn from(run: RunId) -> Self {
        Parent::Run(run)
    }
}

impl fmt::Display for Parent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The fields of an origin for deserialising. A struct, because serde buffers its input for an untagged enum.
#[derive(Deserialize)]
struct Fields {
    run: RunId,
    step: u32,
    #[serde(default)]
    item: Option<u32>,
}

impl From<Fields> for Origin {
    fn from(Fields { run, step, item }: Fields) -> Self {
        Origin::Step { run, step, item }
    }
}
