//! Owns a running server, and the order in which its parts stop.

use std::net::SocketAddr;
use std::sync::Arc;

use downbeat_proto::Link;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::parts::Parts;
use crate::rpc::Host;
use crate::service::Service;

/// A server that runs.
#[derive(Debug)]
pub struct Server {
    pub(super) service: Service,
    pub(super) parts: Parts,
    pub(super) host: Arc<Host>,
    pub(super) http_addr: SocketAddr,
    pub(super) grpc_addr: SocketAddr,
    pub(super) found_nothing: bool,
    /// Actors and loops end.
    pub(super) stopping: CancellationToken,
    pub(super) listeners: Vec<JoinHandle<()>>,
    /// Gives signs of life.
    pub(super) signing: Option<JoinHandle<()>>,
    pub(super) journal: JoinHandle<()>,
    pub(super) journal_stop: CancellationToken,
}

impl Server {
    /// Where HTTP is served.
    pub fn http_addr(&self) -> SocketAddr {
        self.http_addr
    }

    /// Where agents dial in.
    pub fn grpc_addr(&self) -> SocketAddr {
        self.grpc_addr
    }

    /// Whether nothing was ever written to the store before this server was started.
    pub fn found_nothing(&self) -> bool {
        self.found_nothing
    }

    /// What agents call, whatever carries it.
    pub fn link(&self) -> Arc<dyn Link> {
        Arc::clone(&self.host) as Arc<dyn Link>
    }

    pub fn service(&self) -> &Service {
        &self.service
    }

    /// Stops: no new requests, those under way end, everything that was submitted is written.
    pub async fn stop(self) {
        info!("stopping");
        self.parts.closing.cancel();
        self.parts.dispatcher.board().drop_polls();
        let grace = self.parts.settings.shutdown_grace.0;
        for listener in self.listeners {
            let abort = listener.abort_handle();
            if tokio::time::timeout(grace, listener).await.is_err() {
                warn!("requests were still under way after {}", self.parts.settings.shutdown_grace);
                abort.abort();
            }
        }
        self.stopping.cancel();
        self.parts.runs.ended().await;
        self.journal_stop.cancel();
        // Its last batch is written when the task ends.
        let _ = self.journal.await;
        if let Some(signing) = self.signing {
            // A sign that is under way must not undo the sign-off.
            let _ = tokio::time::timeout(grace, signing).await;
        }
        if let Err(error) = self.parts.store.remove_server(self.parts.server).await {
            warn!(%error, "cannot sign off");
        }
        self.parts.store.close().await;
        info!("stopped");
    }
}
