//! A test's own database in the PostgreSQL that `DOWNBEAT_TEST_POSTGRES` names.

use std::time::Instant;

use tokio_postgres::{Client, Config, NoTls};
use uuid::Uuid;

use crate::wait::DEADLINE;

/// A database that exists until [`Database::drop`].
#[derive(Debug)]
pub struct Database {
    pub url: String,
    name: String,
    admin: Config,
}

/// Returns the URL of the PostgreSQL that tests share.
pub fn postgres_url() -> String {
    std::env::var("DOWNBEAT_TEST_POSTGRES").unwrap_or_else(|_| {
        panic!("needs PostgreSQL: run `make test`, or `make postgres` and set DOWNBEAT_TEST_POSTGRES")
    })
}

async fn connect(config: &Config) -> Client {
    let (client, connection) = config.connect(NoTls).await.expect("PostgreSQL answers");
    tokio::spawn(connection);
    client
}

impl Database {
    pub async fn create() -> Self {
        let server = postgres_url();
        let admin: Config = server.parse().expect("DOWNBEAT_TEST_POSTGRES is a URL");
        let name = format!("test_{}", Uuid::new_v4().simple());
        // From template0: the other template cannot be copied while somebody is connected to it.
        let create = format!("CREATE DATABASE {name} TEMPLATE template0");
        connect(&admin).await.batch_execute(&create).await.expect("a database is created");
        let (base, _) = server.rsplit_once('/').expect("the URL names a database");
        Self { url: format!("{base}/{name}"), name, admin }
    }

    pub async fn drop(self) {
        let drop = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        connect(&self.admin).await.batch_execute(&drop).await.expect("the database is dropped");
    }

    /// Returns the URL of the same database behind another port.
    pub fn url_at(&self, port: u16) -> String {
        self.url.replace(&format!(":{}/", self.port()), &format!(":{port}/"))
    }

    pub fn port(&self) -> u16 {
        self.admin.get_ports()[0]
    }

    /// Connects to it, independently of the store.
    pub async fn client(&self) -> Client {
        connect(&self.url.parse().expect("the database's URL is valid")).await
    }

    pub async fn run(&self, sql: &str) {
        self.client().await.batch_execute(sql).await.expect("a statement runs");
    }

    /// Waits until a query returns true.
    pub async fn wait_until(&self, sql: &str) {
        let client = self.client().await;
        let deadline = Instant::now() + DEADLINE;
        while !client.query_one(sql, &[]).await.expect("a query runs").get::<_, bool>(0) {
            assert!(Instant::now() < deadline, "timed out waiting for: {sql}");
            tokio::task::yield_now().await;
        }
    }
}
