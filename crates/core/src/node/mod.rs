//! Nodes: their description, their record, which agent may register as a node, and their health.

mod check;
mod health;
mod problems;
mod reach;
mod record;
mod registration;
mod wait;

pub use check::{BadDescription, check_json_bytes, check_name};
pub use health::{Health, NodeStatus};
pub use problems::bounded_problems;
pub use reach::Reach;
pub use record::{Description, Former, Installation, NodeRecord, Registration, Tombstone};
pub use registration::{Decision, Newcomer, Rule};
pub use wait::{NodeWait, WaitFacts};
