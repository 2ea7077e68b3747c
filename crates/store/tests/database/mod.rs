//! Owns a database of its own for each test, on the PostgreSQL that the environment names.

#[allow(dead_code, reason = "not every test file needs one")]
pub(crate) mod proxy;

use std::time::{Duration, Instant};

use tokio_postgres::{Client, Config, NoTls};
use uuid::Uuid;

pub(crate) struct Database {
    pub(crate) url: String,
    name: String,
    admin: Config,
}

async fn connect(config: &Config) -> Client {
    let (client, connection) = config.connect(NoTls).await.expect("PostgreSQL answers");
    tokio::spawn(connection);
    client
}

impl Database {
    pub(crate) async fn create() -> Self {
        let Ok(server) = std::env::var("DOWNBEAT_TEST_POSTGRES") else {
            panic!("needs PostgreSQL: run `make test`, or `make postgres` and set DOWNBEAT_TEST_POSTGRES");
        };
        let admin: Config = server.parse().expect("DOWNBEAT_TEST_POSTGRES is a URL");
        let name = format!("test_{}", Uuid::new_v4().simple());
        // From template0: the other template cannot be copied while anybody is connected to it.
        let create = format!("CREATE DATABASE {name} TEMPLATE template0");
        connect(&admin).await.batch_execute(&create).await.expect("a database is created");
        let (base, _) = server.rsplit_once('/').expect("the URL names a database");
        Self { url: format!("{base}/{name}"), name, admin }
    }

    pub(crate) async fn drop(self) {
        let drop = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        connect(&self.admin).await.batch_execute(&drop).await.expect("the database is dropped");
    }

    /// The same database behind another port.
    #[allow(dead_code, reason = "not every test file needs it")]
    pub(crate) fn url_at(&self, port: u16) -> String {
        self.url.replace(&format!(":{}/", self.port()), &format!(":{port}/"))
    }

    #[allow(dead_code, reason = "not every test file needs it")]
    pub(crate) fn port(&self) -> u16 {
        self.admin.get_ports()[0]
    }

    /// A connection past the store.
    #[allow(dead_code, reason = "not every test file needs one")]
    pub(crate) async fn client(&self) -> Client {
        connect(&self.url.parse().expect("the database's URL is one")).await
    }

    #[allow(dead_code, reason = "not every test file needs it")]
    pub(crate) async fn run(&self, sql: &str) {
        self.client().await.batch_execute(sql).await.expect("a statement runs");
    }

    /// Waits until a query answers true.
    #[allow(dead_code, reason = "not every test file needs it")]
    pub(crate) async fn wait_until(&self, sql: &str) {
        let client = self.client().await;
        let deadline = Instant::now() + Duration::from_secs(20);
        while !client.query_one(sql, &[]).await.expect("a query runs").get::<_, bool>(0) {
            assert!(Instant::now() < deadline, "waited in vain for: {sql}");
            tokio::task::yield_now().await;
        }
    }
}
