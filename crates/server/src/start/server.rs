//! Owns a running server, and the order in which its parts stop.

use std::net::SocketAddr;
use std::sync::Arc;

use downbeat_proto::Link;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::doors::Threads;
use crate::rpc::Host;
use crate::service::Service;
use crate::vital::VitalTaskEnded;

#[derive(Debug)]
pub struct Server {
    pub(super) service: Service,
    pub(super) http_addr: SocketAddr,
    pub(super) grpc_addr: SocketAddr,
    pub(super) found_nothing: bool,
    /// Ends actors and loops.
    pub(super) stopping: CancellationToken,
    pub(super) listeners: Vec<JoinHandle<()>>,
    /// The threads of the agents' port.
    pub(super) agents: Option<Threads>,
    /// Sends this server's heartbeats.
    pub(super) signing: Option<JoinHandle<()>>,
    pub(super) journal: JoinHandle<()>,
    pub(super) journal_stop: CancellationToken,
}

impl Server {
    pub fn http_addr(&self) -> SocketAddr {
        self.http_addr
    }

    pub fn grpc_addr(&self) -> SocketAddr {
        self.grpc_addr
    }

    /// Returns whether the store was empty when this server started.
    pub fn found_nothing(&self) -> bool {
        self.found_nothing
    }

    /// Returns the calls for agents, independent of the transport.
    pub fn link(&self) -> Arc<dyn Link> {
        Arc::new(Host::new(self.service.parts.clone()))
    }

    pub fn service(&self) -> &Service {
        &self.service
    }

    /// Waits until a vital task ends by itself or panics. The process has to exit then: other servers take over its runs.
    pub async fn failed(&self) -> VitalTaskEnded {
        self.service.parts.vital.failed().await
    }

    /// Stops the server: refuses new requests, finishes those in progress, and writes all submitted changes.
    pub async fn stop(self) {
        info!("stopping");
        let parts = self.service.parts;
        parts.closing.cancel();
        parts.dispatcher.board().drop_polls();
        let grace = parts.settings.shutdown_grace.0;
        for listener in self.listeners {
            let abort = listener.abort_handle();
            if tokio::time::timeout(grace, listener).await.is_err() {
                warn!(
                    "requests were still in progress after {}; they are aborted",
                    parts.settings.shutdown_grace
                );
                abort.abort();
            }
        }
        self.stopping.cancel();
        parts.runs.ended().await;
        self.journal_stop.cancel();
        // Its last batch is written when the task ends.
        let _ = self.journal.await;
        if let Some(signing) = self.signing {
            // A heartbeat in progress must not undo the removal.
            let _ = tokio::time::timeout(grace, signing).await;
        }
        if let Err(error) = parts.store.remove_server(parts.server).await {
            warn!(%error, "cannot remove this server from the store");
        }
        parts.store.close().await;
        // Last: connections to the database that agents' calls opened run there.
        drop(self.agents);
        info!("stopped");
    }
}
