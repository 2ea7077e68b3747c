//! The engine: walks a run's plan. It is told what was committed and answers with the changes that follow; it
//! reads no clock and does no IO, and all of it can be rebuilt from the recorded executions.

mod condition;
mod fitting;
mod items;
mod outputs;
mod prepare;
mod progress;
mod restore;
mod room;
mod walk;

pub use progress::{Progress, Stop, Turn};
