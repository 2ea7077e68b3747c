//! Owns [`Service`]: the handle on one server's parts. Each operation is one of its methods.

use std::sync::Arc;

use downbeat_core::Timestamp;
use downbeat_core::ids::{ExecutionId, ServerId};
use downbeat_store::Store;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use tracing::Span;

use crate::journal::Feed;
use crate::metrics::{self, Metrics};
use crate::parts::Parts;
use crate::replica::Following;
use crate::settings::Settings;

/// One server, as users and programs see it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Service {
    pub(super) parts: Parts,
}

impl Service {
    pub(crate) fn new(parts: Parts) -> Self {
        Self { parts }
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.parts.store
    }

    pub fn feed(&self) -> &Feed {
        &self.parts.feed
    }

    pub fn metrics(&self) -> &Metrics {
        &self.parts.metrics
    }

    pub(crate) async fn figures(&self) -> String {
        metrics::update(&self.parts).await;
        self.parts.metrics.encode()
    }

    pub fn settings(&self) -> &Settings {
        &self.parts.settings
    }

    pub fn server_id(&self) -> ServerId {
        self.parts.server
    }

    pub fn server_name(&self) -> &str {
        &self.parts.name
    }

    /// Returns the time that all servers agree on.
    pub fn now(&self) -> Timestamp {
        self.parts.clock.now()
    }

    pub fn started_at(&self) -> Timestamp {
        self.parts.started_at
    }

    pub(crate) fn span(&self) -> &Span {
        &self.parts.span
    }

    /// Cancelled when open streams have to end: the server stops, or a replica replaces the copy that they read.
    pub fn streams(&self) -> CancellationToken {
        self.replica().map_or_else(|| self.parts.closing.clone(), Following::streams)
    }

    pub(crate) fn parts(&self) -> &Parts {
        &self.parts
    }

    /// Returns what a replica knows of its primary; `None` on a primary.
    pub(crate) fn replica(&self) -> Option<&Following> {
        self.parts.replica.as_ref()
    }

    /// Returns a receiver of executions whose output has grown.
    pub fn output_grown(&self) -> broadcast::Receiver<ExecutionId> {
        self.parts.outputs.grown()
    }
}
