//! A node: what it says of itself, what the servers know of it, who may be it, and how its health moves.

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
