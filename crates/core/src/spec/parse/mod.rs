//! Reads job files: text or JSON into a tree with positions (`yaml`, `tree`), and the tree into a definition (`job`,
//! `rollout`, `task`, `action`, `graph`, `expression`), collecting all problems.

mod action;
mod expression;
mod fan_out;
mod field;
mod graph;
mod job;
mod path;
mod place;
mod read;
mod rollout;
mod scalar;
mod task;
mod tree;
mod yaml;

pub(crate) use graph::cycles;
pub(super) use job::PRIORITIES;
pub use read::{from_json, from_json_noting, parse, parse_bytes, parse_bytes_noting, parse_noting};
