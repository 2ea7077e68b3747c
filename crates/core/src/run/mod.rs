//! A run: its strict state machine, its record, and the engine that walks its plan.

pub mod again;
pub mod engine;
mod instance;
mod machine;
mod record;
pub mod retry;

pub use instance::Instance;
pub use machine::{Illegal, RunState, RunStatus, check_path, successors};
pub use record::{NodeRef, Resolved, RunEnd, RunRecord};
