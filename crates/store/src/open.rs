//! Opens a store, or the store of a replica, from its location.

use std::path::Path;
use std::sync::Arc;

use crate::copy::Replica;
use crate::memory::MemoryStore;
use crate::port::{Error, Result, Store};
use crate::postgres::PostgresStore;
use crate::sqlite::SqliteStore;

enum Location<'a> {
    Memory,
    Postgres,
    Sqlite(&'a Path),
}

fn parse(location: &str) -> Result<Location<'_>> {
    if location == "memory:" {
        return Ok(Location::Memory);
    }
    if location.starts_with("postgres://") || location.starts_with("postgresql://") {
        return Ok(Location::Postgres);
    }
    let path = location.strip_prefix("sqlite:").filter(|path| !path.is_empty());
    path.map(|path| Location::Sqlite(Path::new(path))).ok_or_else(|| Error::BadLocation(location.to_owned()))
}

/// Opens `sqlite:PATH`, `postgres://USER@HOST:PORT/DATABASE` or `memory:`, and brings its schema up to date.
pub async fn open(location: &str) -> Result<Arc<dyn Store>> {
    Ok(match parse(location)? {
        Location::Memory => Arc::new(MemoryStore::new()),
        Location::Postgres => Arc::new(PostgresStore::open(location).await?),
        Location::Sqlite(path) => Arc::new(SqliteStore::open(path).await?),
    })
}

/// Opens a store for a copy: `sqlite:PATH`, new or already a replica's, or `memory:`.
pub async fn open_replica(location: &str) -> Result<Arc<dyn Replica>> {
    match parse(location)? {
        Location::Memory => Ok(Arc::new(MemoryStore::new())),
        Location::Postgres => {
            let why = "a replica cannot use PostgreSQL; use --store sqlite:PATH or memory:";
            Err(Error::Misused(why.to_owned()))
        }
        Location::Sqlite(path) => Ok(Arc::new(SqliteStore::open_replica(path).await?)),
    }
}
