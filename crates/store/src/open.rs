//! Opens a store from its location.

use std::path::Path;
use std::sync::Arc;

use crate::memory::MemoryStore;
use crate::port::{Error, Result, Store};
use crate::postgres::PostgresStore;
use crate::sqlite::SqliteStore;

/// Opens `sqlite:PATH`, `postgres://USER@HOST:PORT/DATABASE` or `memory:`, and brings its schema up to date.
pub async fn open(location: &str) -> Result<Arc<dyn Store>> {
    if location == "memory:" {
        return Ok(Arc::new(MemoryStore::new()));
    }
    if location.starts_with("postgres://") || location.starts_with("postgresql://") {
        return Ok(Arc::new(PostgresStore::open(location).await?));
    }
    match location.strip_prefix("sqlite:") {
        Some(path) if !path.is_empty() => Ok(Arc::new(SqliteStore::open(Path::new(path)).await?)),
        _ => Err(Error::BadLocation(location.to_owned())),
    }
}
