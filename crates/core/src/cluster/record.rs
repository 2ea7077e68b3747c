//! Owns the record of a cluster, and what an edit of it did.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::ids::{ClusterId, NodeId, TaskId};
use crate::standing::{RerunScope, StandingList};
use crate::words::words;

words! {
    /// What a node does with the standing tasks when it registers again.
    pub enum OnRegister {
        /// It starts over.
        Reset = "reset",
        /// It keeps what succeeded, and does the rest.
        Resume = "resume",
    }
}

/// A stored cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterRecord {
    pub id: ClusterId,
    /// Unique. See [`check_name`](super::check_name).
    pub name: String,
    #[serde(default)]
    pub description: String,
    pub on_register: OnRegister,
    /// From 1; rises with each change of the cluster or of its list.
    pub version: u64,
    /// The standing tasks.
    #[serde(default)]
    pub list: Arc<StandingList>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl ClusterRecord {
    /// Returns a new cluster without standing tasks.
    pub fn new(id: ClusterId, name: String, description: String, at: Timestamp) -> Self {
        Self {
            id,
            name,
            description,
            on_register: OnRegister::Reset,
            version: 1,
            list: Arc::default(),
            created_at: at,
            updated_at: at,
        }
    }

    /// Returns the cluster that exists from the start.
    pub fn default_cluster() -> Self {
        Self::new(ClusterId::DEFAULT, "default".to_owned(), String::new(), Timestamp::UNIX_EPOCH)
    }

    /// Returns the next version of the cluster.
    #[must_use]
    pub fn edited(&self, at: Timestamp, edit: impl FnOnce(&mut Self)) -> Self {
        let mut next = self.clone();
        edit(&mut next);
        next.version = self.version + 1;
        next.updated_at = at;
        next
    }
}

/// What an edit of a cluster did: for people, and for those who check why a task ran again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "edit", rename_all = "snake_case")]
pub enum ClusterEdit {
    /// The name, the description or `on_register`.
    Settings,
    TaskAdded {
        task: TaskId,
    },
    TaskUpdated {
        task: TaskId,
    },
    TaskDeleted {
        task: TaskId,
    },
    TasksReordered,
    /// The whole list was replaced by that of a file.
    TasksApplied,
    TaskRerun {
        task: TaskId,
        scope: RerunScope,
    },
    /// A node does all tasks again.
    NodeReset {
        node: NodeId,
    },
}
