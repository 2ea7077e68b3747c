//! Owns one server and the wires to and from it.

use std::net::SocketAddr;
use std::ops::Deref;
use std::path::Path;
use std::time::Duration;

use downbeat_testbed::{Postgres, within};
use nix::sys::signal::Signal;

use crate::proxy::Proxy;

/// How long a server may take to stop.
const STOP: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(crate) struct Server {
    server: downbeat_testbed::Server,
    /// To its REST port, from clients.
    pub(crate) rest: Proxy,
    /// To its agents' port.
    pub(crate) agents: Proxy,
    /// To PostgreSQL, from it.
    pub(crate) database: Proxy,
    /// Held by a fault for as long as it lasts: one at a time.
    pub(crate) hurt: tokio::sync::Mutex<()>,
}

impl Deref for Server {
    type Target = downbeat_testbed::Server;

    fn deref(&self) -> &downbeat_testbed::Server {
        &self.server
    }
}

impl Server {
    pub(crate) async fn new(number: usize, directory: &Path, postgres: &Postgres, lease_ttl: &str) -> Self {
        let database = Proxy::to(SocketAddr::from(([127, 0, 0, 1], postgres.port))).await;
        let store = format!("postgres://postgres@127.0.0.1:{}/postgres", database.port);
        let server = downbeat_testbed::Server::new(directory, &format!("server-{number}"), &store)
            .with(&["--heartbeat-interval", "500ms", "--lease-ttl", lease_ttl])
            // Otherwise most runs would end because a node was offline, and little could be checked.
            .with(&["--node-offline-after", "30s", "--shutdown-grace", "5s", "--log-level", "info"]);
        Self {
            rest: Proxy::to(server.http().parse().unwrap()).await,
            agents: Proxy::to(server.grpc().parse().unwrap()).await,
            database,
            server,
            hurt: tokio::sync::Mutex::default(),
        }
    }

    /// Whether it has served since its last start. A start without a store fails with an error.
    pub(crate) fn served(&self) -> bool {
        self.log().contains(" listening ")
    }

    /// Sends a stop signal and waits for its end. Returns false if it had to be killed.
    pub(crate) async fn stop(&self) -> bool {
        self.signal(Signal::SIGTERM);
        let ended = within(STOP, || async { self.reap().then_some(()) }).await.is_some();
        self.kill();
        ended
    }
}
