//! The engine runs a plan: it observes committed changes and returns the changes that follow. It reads no clock and does
//! no IO, and all of its state can be rebuilt from the recorded executions.

mod agenda;
mod attempts;
mod condition;
mod ends;
mod failures;
mod fitting;
mod history;
mod items;
mod outbox;
mod outputs;
mod passes;
mod prepare;
mod progress;
mod restore;
mod room;
mod rounds;
mod walk;
mod waves;

pub use outbox::COMMIT;
pub use progress::{Progress, Stop, Turn};
