//! Owns [`Service`]: the handle on one server's parts, and whether it is ready. Each operation is one of its methods.

use std::sync::Arc;

use bytes::Bytes;
use downbeat_core::Timestamp;
use downbeat_core::ids::ServerId;
use downbeat_store::Store;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::metrics;
use crate::parts::Parts;
use crate::replica::{Following, Since, Until, stream};

/// One server, as users and programs see it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Service {
    pub(crate) parts: Parts,
}

impl Service {
    pub(crate) fn new(parts: Parts) -> Self {
        Self { parts }
    }

    /// Returns the store for the reads of users.
    pub fn views(&self) -> &Arc<dyn Store> {
        &self.parts.views
    }

    pub(crate) async fn figures(&self) -> String {
        metrics::update(&self.parts).await;
        self.parts.metrics.encode()
    }

    /// Streams all data to a read replica, as lines.
    pub fn replicate(&self, since: Since) -> mpsc::Receiver<Bytes> {
        stream(&self.parts, since, Until::Stopped)
    }

    pub fn server_id(&self) -> ServerId {
        self.parts.server
    }

    /// Returns the time that all servers agree on.
    pub fn now(&self) -> Timestamp {
        self.parts.clock.now()
    }

    pub fn started_at(&self) -> Timestamp {
        self.parts.itself.started_at
    }

    /// Cancelled when open streams have to end: the server stops, or a replica replaces the copy that they read.
    pub(crate) fn streams(&self) -> CancellationToken {
        self.replica().map_or_else(|| self.parts.closing.clone(), Following::streams)
    }

    /// Returns what a replica knows of its primary; `None` on a primary.
    pub(crate) fn replica(&self) -> Option<&Following> {
        self.parts.replica.as_ref()
    }

    /// Returns whether the server can handle requests; if not, the reason.
    pub async fn readiness(&self) -> Result<(), String> {
        if self.parts.closing.is_cancelled() {
            return Err("the server is stopping".to_owned());
        }
        if let Some(failure) = self.parts.vital.failure() {
            return Err(failure.to_string());
        }
        self.store_problem().await.map_or(Ok(()), Err)?;
        self.replica().map_or(Ok(()), |replica| replica.readiness(self.now()))
    }

    /// Returns why the store is not usable now, or `None`.
    pub(crate) async fn store_problem(&self) -> Option<String> {
        if let Err(error) = self.parts.store.health().await {
            return Some(error.to_string());
        }
        if self.replica().is_some() {
            // A replica commits nothing and sends no heartbeats.
            return None;
        }
        let signs = self.parts.last_sign.is_fresh(self.parts.settings.server_stale_after.0);
        let silent = || (!signs).then(|| "the store does not respond".to_owned());
        self.parts.journal.store_problem().or_else(silent)
    }

    pub(crate) fn nodes_with_problems(&self) -> u64 {
        let board = self.parts.dispatcher.board();
        board.nodes().filter(|node| !node.problems.is_empty()).count() as u64
    }
}
