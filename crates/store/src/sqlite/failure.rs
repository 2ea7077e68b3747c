//! Maps failures of SQLite to errors of the store.

use std::path::Path;

use rusqlite::ErrorCode;

use crate::port::Error;

/// Why a unit of work on a connection failed. Its transaction is rolled back.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Sql(#[from] rusqlite::Error),
    #[error(transparent)]
    Store(#[from] Error),
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    pub(crate) fn is_violated_key(&self) -> bool {
        matches!(self, Failure::Sql(error) if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation))
    }

    pub(crate) fn at(self, path: &Path) -> Error {
        let error = match self {
            Failure::Store(error) => return error,
            Failure::Sql(error) => error,
        };
        let path = path.display();
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => {
                Error::Unavailable(format!("no space left for `{path}`; free space on its disk"))
            }
            Some(ErrorCode::SystemIoFailure) => {
                Error::Unavailable(format!("`{path}` cannot be read or written ({error}): check its disk"))
            }
            Some(
                ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::CannotOpen
                | ErrorCode::ReadOnly
                | ErrorCode::PermissionDenied
                | ErrorCode::FileLockingProtocolFailed
                | ErrorCode::OutOfMemory
                | ErrorCode::OperationInterrupted,
            ) => Error::Unavailable(format!("`{path}`: {error}")),
            Some(ErrorCode::DatabaseCorrupt) => Error::Damaged(format!("`{path}` is damaged ({error})")),
            Some(ErrorCode::NotADatabase) => Error::Misused(format!(
                "`{path}` is not a SQLite database; use another --store, or restore a backup"
            )),
            _ => Error::Corrupt(format!("`{path}`: {error}")),
        }
    }
}
