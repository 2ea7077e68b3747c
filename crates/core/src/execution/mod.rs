//! An execution: one attempt of one step on one node. Its states, what moves it, and how it is recorded.

mod machine;
mod record;

pub use machine::{Event, Illegal, step};
pub use record::{Execution, Lease, Outcome, State, Status, Verdict};
