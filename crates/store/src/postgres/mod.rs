//! The store for many servers: one PostgreSQL database, one connection that commits, a few that read.
//!
//! How a batch is committed: the rows that it looks at are locked and loaded in one flight of statements, `tables`
//! decides, and what differs is written in a second flight, set-wise, with the commit itself. Two round trips, however
//! many changes.
//!
//! How events are numbered: the one row of `feed` is locked as the last thing before the events are written, and the
//! numbers go on behind the last event. The lock is held until the transaction has committed, so the next committer, of
//! whatever server, gets its numbers only when these are visible: numbers are without gaps, in the order of commits,
//! and a reader that remembers the highest number that it saw misses nothing. A sequence would give lower numbers to
//! transactions that commit later. The lock is taken and let go inside the second flight, so nobody waits for the
//! network while holding it.
//!
//! How servers hear of each other: a batch ends with one NOTIFY; see `news`.
//!
//! How it stays fast while somebody holds a transaction open, and PostgreSQL can remove no dead row: no commit rewrites
//! a row that all commits rewrite, and none looks for work in the tables. A batch finds its rows by their ids.
//!
//! How locks are taken: nodes, runs, executions, each in the order of their ids, new rows after them, `feed` last;
//! two servers never wait for each other in a circle.

mod commit;
mod connect;
mod failure;
mod news;
mod output;
mod prune;
mod save;
mod snapshot;
mod store;
mod tls;
mod write;

pub use connect::postgres_client;
pub use store::PostgresStore;
