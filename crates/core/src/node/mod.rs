//! A node: what it says of itself, what the servers know of it, and how its health moves.

mod check;
mod health;
mod record;

pub use check::{BadDescription, check_json_bytes, check_name};
pub use health::{Health, NodeStatus};
pub use record::{Description, NodeRecord, Registration};
