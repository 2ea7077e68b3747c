//! A node: what it says of itself, what the servers know of it, and how its health moves.

mod health;
mod record;
mod wait;

pub use health::{Health, NodeStatus};
pub use record::{Description, NodeRecord, Registration};
pub use wait::{NodeWait, WaitFacts};
