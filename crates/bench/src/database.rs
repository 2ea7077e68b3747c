//! Owns a temporary database in the given PostgreSQL: created before the load and dropped after it, so that loads do not
//! influence each other.

use reqwest::Url;
use tokio_postgres::Client;
use uuid::Uuid;

use super::server::cannot;
use crate::failure::{Failure, Result};

/// A temporary database, which exists until [`Database::remove`].
#[derive(Debug)]
pub(super) struct Database {
    /// Another database of the same server: a database cannot be dropped from within.
    outside: String,
    location: String,
    name: String,
}

impl Database {
    /// Creates a database. `outside` is a location as for `server --store`.
    pub(super) async fn create(outside: &str) -> Result<Self> {
        let (location, name) = beside(outside, &format!("bench_{}", Uuid::new_v4().simple()))?;
        let client = connect(outside).await?;
        let made = client.batch_execute(&format!("CREATE DATABASE {name}")).await;
        made.map_err(|error| cannot("make a database for the bench", &error))?;
        Ok(Self { outside: outside.to_owned(), location, name })
    }

    pub(super) fn location(&self) -> &str {
        &self.location
    }

    pub(super) async fn connect(&self) -> Result<Client> {
        connect(&self.location).await
    }

    /// Drops the database and closes all connections to it.
    pub(super) async fn remove(&self) -> Result<()> {
        let client = connect(&self.outside).await?;
        let dropped = client.batch_execute(&format!("DROP DATABASE {} WITH (FORCE)", self.name)).await;
        dropped.map_err(|error| cannot(&format!("drop the database {}", self.name), &error))
    }
}

/// Returns the location of another database on the same server.
fn beside(location: &str, name: &str) -> Result<(String, String)> {
    let mut url = Url::parse(location)
        .map_err(|error| Failure::bad_input(format!("`{location}` is not a PostgreSQL location: {error}")))?;
    url.set_path(name);
    Ok((url.to_string(), name.to_owned()))
}

async fn connect(location: &str) -> Result<Client> {
    downbeat_store::postgres_client(location).await.map_err(|error| cannot("reach PostgreSQL", &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_database_of_the_same_server_keeps_everything_but_the_name() {
        for (location, expected) in [
            ("postgres://u:p@h:5433/postgres", "postgres://u:p@h:5433/bench_1"),
            ("postgres://u@h", "postgres://u@h/bench_1"),
            ("postgresql://h:1/a?connect_timeout=3", "postgresql://h:1/bench_1?connect_timeout=3"),
        ] {
            assert_eq!(beside(location, "bench_1").unwrap().0, expected);
        }
        assert!(beside("no location", "x").is_err());
    }
}
