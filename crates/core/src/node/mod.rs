//! Nodes: their description, their record, which agent may register as a node, and their health.

mod check;
mod health;
mod record;
mod registration;
mod wait;

pub use check::{BadDescription, bounded_problems, check_json_bytes, check_name};
pub use health::{Health, NodeStatus, Reach};
pub use record::{Description, Former, Installation, NodeRecord, Registration, Tombstone};
pub use registration::{Decision, Newcomer, Rule};
pub use wait::{NodeWait, WaitFacts};
