//! Reads job files: text or JSON into a tree with positions (`yaml`, `tree`), and the tree into a definition (`job`,
//! `rollout`, `schedule`, `life`, `trigger`, `task`, `action`, `graph`, `expression`), collecting all problems. `standing` reads standing tasks.

mod action;
mod expression;
mod fan_out;
mod field;
mod graph;
mod job;
mod life;
mod named;
mod notification;
mod path;
mod place;
mod read;
mod rollout;
mod scalar;
mod schedule;
mod standing;
mod task;
mod tree;
mod trigger;
mod yaml;

pub(crate) use graph::cycles;
pub(super) use job::PRIORITIES;
pub use named::{named_cluster, named_cluster_of_json};
pub use notification::notification_of_json;
pub use read::{from_json, from_json_noting, parse, parse_bytes, parse_bytes_noting, parse_noting};
pub use standing::{
    parse_standing_list, standing_list_of_json, standing_task_of_json, standing_update_of_json,
};
pub(super) use task::APPROVAL;
