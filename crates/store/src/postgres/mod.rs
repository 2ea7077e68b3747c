//! The store for many servers: one PostgreSQL database, one connection for commits, and separate ones for heartbeats, for
//! the feed, for the server's own reads and for those of users.
//!
//! How a batch is committed: its rows are locked and loaded in one flight of statements, `tables` decides, and the
//! changed rows are written in a second flight, set-wise, with the commit itself. Two round trips for any number of
//! changes.
//!
//! How events are numbered: the one row of `feed` is locked last before the events are written, and the numbers
//! continue after the last event. The lock is held until the transaction has committed, so the next committer on any
//! server gets its numbers only when these are visible: numbers have no gaps, follow the order of commits, and a reader
//! that remembers the highest number it saw misses nothing. A sequence would assign lower numbers to transactions that
//! commit later. The lock is acquired and released inside the second flight, so nobody waits for the network while
//! holding it.
//!
//! How servers notify each other: a batch ends with one NOTIFY; see `hints`.
//!
//! How it stays fast while a long transaction prevents PostgreSQL from removing dead rows: there is no row that every
//! commit rewrites, and no commit searches the tables for work. A batch finds its rows by their ids.
//!
//! How locks are ordered: clusters, nodes, runs, executions, each by id, then new rows, `feed` last; so two servers never
//! deadlock.

mod commit;
mod connect;
mod counts;
mod documents;
mod excess;
mod failure;
mod hints;
mod indexes;
mod output;
mod prune;
mod remove;
mod save;
mod snapshot;
mod store;
mod tls;
mod write;

pub use connect::postgres_client;
pub use store::PostgresStore;
