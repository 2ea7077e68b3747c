//! An execution is one attempt of one step on one node: its states, its events, and its record.

mod alike;
mod machine;
mod outputs;
mod record;
mod times;

pub use alike::common_part;
pub use machine::{Decision, Event, Illegal, step};
pub use outputs::{cut_reason, declared_outputs, outputs_too_large};
pub use record::{Execution, Lease, Outcome, OutputChunk, State, Status, Stream, Verdict};
pub use times::fit_into_lease;
