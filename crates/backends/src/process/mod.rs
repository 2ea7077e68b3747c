//! Processes of the host: started with a name that can be found again, ended as whole trees.

mod cgroup;
mod ledger;
mod open_files;
mod procfs;
mod run;
mod tree;

pub use ledger::{Error as LedgerError, Ledger};
pub use open_files::{OpenFiles, open_files_of_children, raise_open_files, slots_within};
pub(crate) use run::{Program, run};
pub(crate) use tree::{Leader, Tree, terminate};
