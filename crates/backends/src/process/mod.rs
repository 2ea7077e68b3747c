//! Processes of the host: started with a name that can be found again, ended as whole trees.

mod cgroup;
mod ledger;
mod procfs;
mod run;
mod tree;

pub use ledger::{Error as LedgerError, Ledger};
pub(crate) use run::{Program, run};
pub(crate) use tree::{Leader, Tree, terminate};
