//! Maps failures of PostgreSQL to errors of the store.

use std::error::Error as _;
use std::time::Duration;

use deadpool_postgres::PoolError;
use tokio_postgres::error::SqlState;

use crate::port::Error;

/// Why a unit of work on a connection failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Sql(#[from] tokio_postgres::Error),
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error(transparent)]
    Store(#[from] Error),
    /// No response within the timeout.
    #[error("PostgreSQL has not responded for {} s", .0.as_secs())]
    Silent(Duration),
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    fn state(&self) -> Option<&SqlState> {
        match self {
            Failure::Sql(error) | Failure::Pool(PoolError::Backend(error)) => error.code(),
            Failure::Pool(_) | Failure::Store(_) | Failure::Silent(_) => None,
        }
    }

    pub(crate) fn is_violated_key(&self) -> bool {
        self.state() == Some(&SqlState::UNIQUE_VIOLATION)
    }

    /// Returns true if another server caused a conflict and a retry may succeed. A foreign key is violated if that server
    /// has just removed a content that nobody referred to.
    pub(crate) fn is_collision(&self) -> bool {
        matches!(self.state(), Some(state) if *state == SqlState::T_R_DEADLOCK_DETECTED
            || *state == SqlState::T_R_SERIALIZATION_FAILURE || *state == SqlState::FOREIGN_KEY_VIOLATION)
    }

    /// Returns true if a lock did not become free in time.
    pub(crate) fn is_lock_timeout(&self) -> bool {
        self.state() == Some(&SqlState::LOCK_NOT_AVAILABLE)
    }

    /// Returns true if the connection broke: the effect of the last statement is unknown.
    pub(crate) fn is_disconnected(&self) -> bool {
        match self {
            Failure::Sql(error) => error.code().is_none_or(|state| state.code().starts_with("57P")),
            Failure::Silent(_) => true,
            Failure::Pool(_) | Failure::Store(_) => false,
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        // Classes: connection, transaction, resources (full disk), intervention (shutdown), system.
        const PASSING: [&str; 7] = ["08", "25", "40", "53", "55", "57", "58"];
        let passing = match failure.state() {
            Some(state) => PASSING.iter().any(|class| state.code().starts_with(class)),
            None => true,
        };
        let text = match &failure {
            Failure::Store(_) => String::new(),
            Failure::Silent(_) => failure.to_string(),
            Failure::Sql(error) | Failure::Pool(PoolError::Backend(error)) => explain(error),
            Failure::Pool(PoolError::Timeout(_)) => {
                "PostgreSQL: no connection became free in time".to_owned()
            }
            Failure::Pool(PoolError::Closed) => "the connections to PostgreSQL are closed".to_owned(),
            Failure::Pool(error) => format!("PostgreSQL: {error}"),
        };
        match failure {
            Failure::Store(error) => error,
            _ if passing => Error::Unavailable(text),
            _ => Error::Corrupt(text),
        }
    }
}

fn explain(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(db) if *db.code() == SqlState::QUERY_CANCELED => {
            "PostgreSQL: a query took too long and was ended".to_owned()
        }
        Some(db) => format!("PostgreSQL: {} ({})", db.message(), db.code().code()),
        None => match error.source() {
            Some(source) if source.to_string().contains("certificate") => format!(
                "PostgreSQL: {error}: {source}; name the file of the authority that signed it with sslrootcert=FILE"
            ),
            Some(source) => format!("PostgreSQL: {error}: {source}"),
            None => format!("PostgreSQL: {error}"),
        },
    }
}
