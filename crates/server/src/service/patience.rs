//! Limits how long a request waits for the store, and what it needs from the store before and after a decision.

use std::time::Duration;

use downbeat_core::{Applied, Change};

use super::Service;
use crate::error::Error;

/// How long a request waits for the store.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Waits for a read from the store.
pub(super) async fn answered<T>(reading: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    tokio::time::timeout(PATIENCE, reading).await.unwrap_or_else(|_| {
        let seconds = PATIENCE.as_secs();
        Err(Error::Unavailable(format!(
            "the store has not answered for {seconds} s; nothing was done: try again"
        )))
    })
}

/// Waits for work that changes something. After the time limit it may still take effect.
pub(super) async fn patiently<T>(work: impl Future<Output = T>) -> Result<T, Error> {
    tokio::time::timeout(PATIENCE, work).await.map_err(|_| {
        let seconds = PATIENCE.as_secs();
        Error::Unavailable(format!(
            "the store has not answered for {seconds} s; what was asked for may still happen: look before asking \
             again, or use an Idempotency-Key"
        ))
    })
}

impl Service {
    /// Waits until this server knows what all servers have committed by now: a job targets every node that is
    /// registered, whichever server registered it.
    pub(super) async fn catch_up(&self) -> Result<(), Error> {
        if !self.parts.store.is_shared() {
            return Ok(());
        }
        let reached = async {
            let committed = self.parts.store.last_seq().await?;
            self.parts.feed.reached(committed).await;
            Ok(())
        };
        answered(reached).await
    }

    pub(super) async fn commit_one(&self, change: Change) -> Result<Applied, Error> {
        Ok(patiently(self.parts.journal.commit_one(change)).await??)
    }
}
