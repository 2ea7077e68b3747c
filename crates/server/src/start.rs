//! Starts a server: opens its store and its ports.

mod assemble;
mod counts;
mod prune;
mod server;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;

use downbeat_core::outbound::BadEntry;
use downbeat_store as store;
use tokio::net::TcpListener;
use tracing::{Instrument, info_span};

use self::assemble::{Doors, Order, primary, replica};
pub use self::server::Server;
use crate::replica::{Http, Upstream};
use crate::settings::Settings;
use crate::surroundings::Surroundings;

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error("hooks_allow: {0}")]
    Hooks(#[from] BadEntry),
    #[error("cannot listen on {address} ({key}): {error}")]
    Listen { key: &'static str, address: SocketAddr, error: std::io::Error },
}

/// Opens the store, continues what was in progress, then listens.
pub async fn start(settings: Settings) -> Result<Server, StartError> {
    let state = if settings.replica_of.is_empty() {
        State::Own(store::open(&settings.store).await?)
    } else {
        State::Copy(store::open_replica(&settings.store).await?)
    };
    let http = listen("http", settings.http).await?;
    let grpc = listen("grpc", settings.grpc).await?;
    let name = if settings.name.is_empty() {
        let port = grpc.local_addr().map_or(settings.grpc.port(), |address| address.port());
        format!("{}:{port}", hostname())
    } else {
        settings.name.clone()
    };
    let span = info_span!("server", server = name);
    let doors = Some(Doors { http, grpc });
    let order = Order { settings, name, surroundings: Surroundings::default(), doors };
    match state {
        State::Own(store) => primary(order, store).instrument(span).await,
        State::Copy(copy) => replica(order, copy, Arc::new(Http)).instrument(span).await,
    }
}

enum State {
    Own(Arc<dyn store::Store>),
    Copy(Arc<dyn store::Replica>),
}

/// Starts a server without sockets on an open store. The caller reaches it through [`Server::service`] and
/// [`Server::link`].
pub async fn start_within(
    settings: Settings,
    store: Arc<dyn store::Store>,
    surroundings: Surroundings,
) -> Result<Server, StartError> {
    let name = settings.name.clone();
    let span = info_span!("server", server = name);
    primary(Order { settings, name, surroundings, doors: None }, store).instrument(span).await
}

/// Starts a read replica without sockets on an open store. It reaches the servers of `replica_of` by `upstream`.
pub async fn start_replica_within(
    settings: Settings,
    copy: Arc<dyn store::Replica>,
    surroundings: Surroundings,
    upstream: Arc<dyn Upstream>,
) -> Result<Server, StartError> {
    let name = settings.name.clone();
    let span = info_span!("server", server = name);
    replica(Order { settings, name, surroundings, doors: None }, copy, upstream).instrument(span).await
}

async fn listen(key: &'static str, address: SocketAddr) -> Result<TcpListener, StartError> {
    TcpListener::bind(address).await.map_err(|error| StartError::Listen { key, address, error })
}

fn hostname() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| "server".to_owned(), |name| name.trim().to_owned())
}
