//! Processes of the host: started with a name that can be found again, ended as whole trees.

mod cgroup;
mod child;
mod explain;
mod ledger;
mod limits;
mod means;
mod orphans;
mod procfs;
mod run;
mod start;
mod tree;

pub use ledger::{Error as LedgerError, Ledger};
pub use limits::keep_limits_for_children;
pub use means::Means;
pub use orphans::reap_orphans;
pub(crate) use run::{Program, run};
pub(crate) use tree::{Leader, Tree, terminate};
