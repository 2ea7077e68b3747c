//! Owns opening the file: its directory, the lock against a second server, the settings of every connection, and
//! running the migrations.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, TransactionBehavior, params};

use super::counts;
use super::failure::Result;
use super::file::{self, cannot};
use crate::migrate::{self, Ran};
use crate::port::Error;

/// How long a statement waits for a lock. Within one server only a checkpoint holds one, for a short time.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// The writer's page cache: the recently used pages of all tables and indexes.
const WRITER_CACHE_KIB: i64 = 64 * 1024;
const READER_CACHE_KIB: i64 = 8 * 1024;
/// The log file is truncated to this size after it has grown larger.
const LOG_SIZE_BYTES: i64 = 64 * 1024 * 1024;
/// Prepared statements per connection: more than there are, so that none is prepared twice.
const STATEMENTS: usize = 256;

/// Receives every statement of every connection: tests record them.
#[cfg(feature = "conformance")]
pub(crate) static LISTENER: std::sync::OnceLock<fn(&str)> = std::sync::OnceLock::new();

/// "down" in ASCII, in the header of every database of this program.
const APPLICATION_ID: i64 = 0x646f_776e;

/// The mode of `auto_vacuum` in which the file shrinks on request, in small steps.
pub(crate) const INCREMENTAL: i64 = 2;

/// Creates the directory, and returns the path that all spellings of the file share.
pub(crate) fn resolve_path(path: &Path) -> Result<PathBuf, Error> {
    let failed = |error: std::io::Error| cannot("create the directory of", path, error);
    if let Ok(settled) = path.canonicalize() {
        return Ok(settled);
    }
    let name = path.file_name().ok_or_else(|| Error::BadLocation(format!("sqlite:{}", path.display())))?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    file::make_directory(parent).map_err(failed)?;
    Ok(parent.canonicalize().map_err(failed)?.join(name))
}

/// Locks the file until the returned handle is dropped.
pub(crate) fn lock(path: &Path) -> Result<File, Error> {
    let lock_path = file::sibling(path, ".lock");
    let file = file::make_file(&lock_path).map_err(|error| cannot("create", &lock_path, error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::InUse(path.display().to_string())),
        Err(TryLockError::Error(error)) => Err(cannot("lock", &lock_path, error)),
    }
}

pub(crate) fn writer(path: &Path) -> Result<Connection> {
    file::make_file(path).map_err(|error| cannot("create", path, error))?;
    let mut connection = Connection::open(path)?;
    // Has an effect only on a new file.
    connection.pragma_update(None, "auto_vacuum", INCREMENTAL)?;
    recognise(&connection, path)?;
    file::make_private(path).map_err(|error| cannot("set the mode of", path, error))?;
    settings(&mut connection, WRITER_CACHE_KIB)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "journal_size_limit", LOG_SIZE_BYTES)?;
    migrate(&mut connection)?;
    counts::check(&connection)?;
    Ok(connection)
}

/// Refuses a database of another program. Databases of earlier releases have no mark, but a table of migrations.
fn recognise(connection: &Connection, path: &Path) -> Result<()> {
    let id: i64 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    let is_ours =
        id == APPLICATION_ID || id == 0 && (tables == 0 || connection.table_exists(None, "migrations")?);
    if !is_ours {
        let text = format!("`{}` is a database of another program; use another --store", path.display());
        return Err(Error::Misused(text).into());
    }
    if id != APPLICATION_ID {
        connection.pragma_update(None, "application_id", APPLICATION_ID)?;
    }
    Ok(())
}

pub(crate) fn reader(path: &Path) -> Result<Connection> {
    let connection = beside_writer(path)?;
    connection.pragma_update(None, "query_only", true)?;
    Ok(connection)
}

/// Opens another connection to a file that the writer has made.
pub(crate) fn beside_writer(path: &Path) -> Result<Connection> {
    let mut connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    settings(&mut connection, READER_CACHE_KIB)?;
    Ok(connection)
}

fn settings(connection: &mut Connection, cache_kib: i64) -> Result<()> {
    #[cfg(feature = "conformance")]
    trace(connection)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "cache_size", -cache_kib)?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(())
}

#[cfg(feature = "conformance")]
fn trace(connection: &mut Connection) -> Result<()> {
    use rusqlite::trace::{TraceEvent, TraceEventCodes};
    if let Some(listener) = LISTENER.get() {
        let log = |event: TraceEvent<'_>| {
            if let TraceEvent::Stmt(statement, _) = event {
                listener(&statement.sql());
            }
        };
        connection.trace_v2(TraceEventCodes::SQLITE_TRACE_STMT, Some(log))?;
    }
    Ok(())
}

fn migrate(connection: &mut Connection) -> Result<()> {
    connection.execute_batch(
        "CREATE TABLE IF NOT EXISTS migrations (number INTEGER PRIMARY KEY, checksum TEXT NOT NULL, \
         works_since INTEGER, program TEXT) STRICT",
    )?;
    // Programs without the rule for schema changes created the table without these columns. SQLite has no ADD COLUMN IF
    // NOT EXISTS.
    if !connection.column_exists(None, "migrations", "works_since")? {
        connection.execute_batch(
            "BEGIN IMMEDIATE; ALTER TABLE migrations ADD COLUMN works_since INTEGER; \
             ALTER TABLE migrations ADD COLUMN program TEXT; COMMIT",
        )?;
    }
    let ran: Vec<Ran> = connection
        .prepare("SELECT number, checksum, works_since, program FROM migrations")?
        .query_map([], |row| {
            Ok(Ran {
                number: row.get(0)?,
                checksum: row.get(1)?,
                works_since: row.get(2)?,
                program: row.get(3)?,
            })
        })?
        .collect::<Result<_, _>>()?;
    for migration in migrate::missing(migrate::SQLITE, &ran)? {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute_batch(migration.sql)?;
        transaction.execute(
            "INSERT INTO migrations (number, checksum, works_since, program) VALUES (?1, ?2, ?3, ?4)",
            params![migration.number, migration.checksum(), migration.works_since, migrate::PROGRAM],
        )?;
        transaction.commit()?;
    }
    // No other server uses the file: equal contents are stored once from the start.
    let share = "UPDATE migrations SET works_since = number WHERE number = ?1 AND works_since < number";
    connection.execute(share, [migrate::CONTENTS])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_keeps_all_statements_prepared() {
        let newest = migrate::SQLITE.last().unwrap().number;
        let record = format!("{}/tests/golden/statements/sqlite/{newest:04}.sql", env!("CARGO_MANIFEST_DIR"));
        let count = std::fs::read_to_string(record).unwrap().lines().count();
        assert!((50..STATEMENTS).contains(&count), "{count} statements are on record");
    }
}
