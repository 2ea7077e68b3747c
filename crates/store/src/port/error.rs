//! Owns the errors of a store.

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call of the store failed. A refused change is not an error: see [`Committed::outcomes`](super::Committed).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database is unreachable, busy or full. The call had no effect; retry it later.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// Another server has opened the store.
    #[error("`{0}` is in use by another server; one SQLite file serves one server, several need PostgreSQL")]
    InUse(String),
    /// The schema is newer than this program supports.
    #[error(
        "the store's schema has version {found}, which does not work with this downbeat ({version}, version {known}): \
         start downbeat {program}",
        version = crate::migrate::PROGRAM
    )]
    NewerSchema {
        found: u32,
        known: u32,
        /// The version of the program that supports it.
        program: String,
    },
    /// A migration in the store differs from this program's.
    #[error(
        "migration {number} of the store differs from this program's; use the downbeat build that created the store"
    )]
    AlteredMigration { number: u32 },
    /// Not a valid store location.
    #[error("`{0}` is not a store; write sqlite:PATH, postgres://USER@HOST:PORT/DATABASE or memory:")]
    BadLocation(String),
    /// An option of the store location is wrong or missing.
    #[error("{0}")]
    BadOption(String),
    /// The store exists but must not be used for this.
    #[error("{0}")]
    Misused(String),
    /// The database file is damaged.
    #[error("the database {0}: stop the server and restore a backup")]
    Damaged(String),
    /// Stored data cannot be decoded, or a statement is wrong.
    #[error("invalid data in the store, or an invalid query: {0}")]
    Corrupt(String),
}
