//! Owns the origin of an execution: the thing that the execution is an attempt of. Every other kind of work gets a
//! variant here, and the compiler then shows each place that must decide about it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::RunId;

/// What an execution is an attempt of. It is stored, and it is part of events, as plain fields of the execution.
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

/// What an [`Origin`] belongs to. Changes of an execution carry it, so that they reach the one who waits for them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(untagged, from = "RunId")]
pub enum Parent {
    Run(RunId),
}

impl Origin {
    /// The run that it belongs to.
    pub fn run(&self) -> &RunId {
        match self {
            Origin::Step { run, .. } => run,
        }
    }

    /// The number of the step in the plan of its run.
    pub fn step(&self) -> u32 {
        match self {
            Origin::Step { step, .. } => *step,
        }
    }

    /// The index of the item in the task's `for_each`, from 0.
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
    /// The id of what it names.
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

/// The fields of an origin as they are read. A struct, because serde buffers what it reads for an untagged enum.
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
