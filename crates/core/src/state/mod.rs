//! The stored state as plain data, and the effect of each change on it.
//!
//! Every store runs these guards: the memory store keeps all rows here; a SQL store loads the rows that a batch needs,
//! applies the batch here, and writes back the rows that differ. Values that no guard checks (definitions, descriptions,
//! output) are not part of it.

mod clusters;
mod deliveries;
mod executions;
mod jobs;
mod limits;
mod nodes;
mod runs;
mod tables;

pub use clusters::ClusterLive;
pub use executions::current_lease;
pub use limits::{Counted, LimitUse, LimitUses, Question};
pub use nodes::NodeLive;
pub use runs::{Elsewhere, Home};
pub use tables::{Tables, Verdicts};
