//! Processes of the host: started with a name that can be found again, ended as whole trees.

mod cgroup;
mod child;
mod explain;
mod ledger;
mod means;
mod open_files;
mod orphans;
mod parent;
mod procfs;
mod run;
mod start;
mod tree;

pub use ledger::{Error as LedgerError, Ledger};
pub use means::Means;
pub use open_files::{OpenFiles, open_files_of_children, raise_open_files, slots_within};
pub use orphans::reap_orphans;
pub use parent::stop_with_parent;
pub use procfs::boot_id;
pub(crate) use run::{Program, run};
pub(crate) use tree::{Leader, Tree, terminate};
