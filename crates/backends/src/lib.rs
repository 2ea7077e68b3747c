//! Backends run actions on a host: one trait, their processes and their output.
//!
//! Invariant: nothing here knows leases, servers or the protocol. A backend is called, writes output, ends.

mod backend;
mod blocking;
mod builtin;
mod declared;
mod environment;
mod guard;
mod output;
pub mod private;
mod process;
mod utf8;

pub use backend::{Backend, Call, Finish, Identity};
pub use blocking::BlockingCalls;
pub use builtin::{
    Apt, BackendSettings, Docker, Engine, Exec, File, Http, Ping, Rke2, Systemd, Test, Tools, builtin,
};
pub use declared::{Declared, DeclaredBackend, Refused};
pub use environment::{Environment, JOB_VARIABLES};
pub use guard::{Deadlines, Guard, boot_time, watch_over};
pub use output::{OutputSink, Piece, Receive, Stream, Wall};
pub use process::{
    Ledger, LedgerError, Means, OpenFiles, boot_id, open_files_of_children, raise_open_files, reap_orphans,
    slots_within, stop_with_parent,
};
