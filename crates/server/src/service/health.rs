//! Returns whether this server is ready, and how many nodes report problems.

use super::Service;

impl Service {
    /// Returns whether the server can handle requests; if not, the reason.
    pub async fn readiness(&self) -> Result<(), String> {
        if self.parts.closing.is_cancelled() {
            return Err("the server is stopping".to_owned());
        }
        self.store_problem().await.map_or(Ok(()), Err)?;
        self.replica().map_or(Ok(()), |replica| replica.readiness(self.parts.clock.now()))
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
