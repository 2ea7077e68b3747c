//! Standing tasks: the ordered list of a cluster, and how each node carries it out.

mod list;
mod walk;
mod walks;

pub use list::{Rerun, RerunScope, StandingList, StandingTask};
pub use walk::{Cell, LastAttempt, Next, Walked, Withdrawal, created_at, takes_work};
pub use walks::{ClusterStatus, StandingResult, Start, Step, WalkState, WalkView, Walks};
