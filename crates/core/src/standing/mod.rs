//! Standing tasks: the ordered list of a cluster, and how each node carries it out.

mod list;

pub use list::{Rerun, RerunScope, StandingList, StandingTask};
