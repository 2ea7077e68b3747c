//! Owns the errors of a store.

/// Why the store could not answer. A refused change is not an error: see [`Committed::outcomes`](super::Committed).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database is away, busy or full for now. Nothing of the call was kept; try again later.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// Another server has opened the store.
    #[error("`{0}` is in use by another server; one SQLite file serves one server, several need PostgreSQL")]
    InUse(String),
    /// The schema is newer than this program.
    #[error(
        "the store's schema has version {found}, which does not work with this downbeat ({version}, version {known}): \
         start downbeat {program}",
        version = crate::migrate::PROGRAM
    )]
    NewerSchema {
        found: u32,
        known: u32,
        /// The program that works with it.
        program: String,
    },
    /// A migration that ran before is not the one that this program has.
    #[error(
        "migration {number} of the store is not the one that this downbeat has; was it built from another tree?"
    )]
    AlteredMigration { number: u32 },
    /// Not a valid store location.
    #[error("`{0}` is not a store; write sqlite:PATH, postgres://USER@HOST:PORT/DATABASE or memory:")]
    BadLocation(String),
    /// The location names a store, and an option of it is wrong or missing.
    #[error("{0}")]
    BadOption(String),
    /// The store is there, and not for this use.
    #[error("{0}")]
    Misused(String),
    /// The database itself cannot be read.
    #[error("the database {0}: stop the server and restore a copy")]
    Damaged(String),
    /// Stored data cannot be read, or a statement is wrong.
    #[error("the store holds or was given something unreadable: {0}")]
    Corrupt(String),
}
