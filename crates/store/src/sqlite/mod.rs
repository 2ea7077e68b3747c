//! The embedded store: one SQLite file in WAL mode with `synchronous=FULL`, one thread that writes, one that moves the
//! log into the file, a few connections that read. A lock file next to the database ensures that only one server uses it.
//!
//! Why one thread: SQLite has one writer anyway, and a transaction that never waits for a lock never fails because of
//! one.

mod checkpoint;
mod commit;
mod connect;
mod counts;
mod excess;
mod failure;
mod file;
mod output;
mod prune;
mod readers;
mod remove;
mod replicate;
mod snapshot;
mod store;
mod write;
mod writer;

pub use store::SqliteStore;
