//! Limits how long a request waits for the store, and waits until this server is up to date.

use std::time::Duration;

use downbeat_core::{Applied, Change};

use super::Service;
use crate::error::{Error, Result};

/// How long a request waits for the store.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Waits for a read from the store, with a time limit.
pub(super) async fn read_in_time<T>(reading: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(PATIENCE, reading).await.unwrap_or_else(|_| {
        let seconds = PATIENCE.as_secs();
        Err(Error::Unavailable(format!(
            "the store has not responded for {seconds} s; nothing was changed: try again"
        )))
    })
}

/// Waits for a change, with a time limit. After the limit it may still take effect.
pub(super) async fn change_in_time<T>(work: impl Future<Output = T>) -> Result<T> {
    tokio::time::timeout(PATIENCE, work).await.map_err(|_| {
        let seconds = PATIENCE.as_secs();
        Error::Unavailable(format!(
            "the store has not responded for {seconds} s; the change may still take effect: check before you try again, \
             or use an Idempotency-Key"
        ))
    })
}

impl Service {
    /// Waits until this server knows all changes that any server has committed: a job targets every
    /// registered node, whichever server registered it.
    pub(crate) async fn catch_up(&self) -> Result<()> {
        if !self.parts.store.is_shared() {
            return Ok(());
        }
        let reached = async {
            let committed = self.parts.store.last_seq().await?;
            self.parts.feed.reached(committed).await;
            Ok(())
        };
        read_in_time(reached).await
    }

    /// Waits until this server knows all changes that any server has committed, itself included. Returns the number of the
    /// last of them.
    pub(super) async fn catch_up_all(&self) -> Result<u64> {
        let reached = async {
            let committed = self.parts.store.last_seq().await?;
            self.parts.feed.reached(committed).await;
            Ok(committed)
        };
        read_in_time(reached).await
    }

    pub(super) async fn commit(&self, changes: Vec<Change>) -> Result<Vec<Applied>> {
        Ok(change_in_time(self.parts.journal.commit(changes)).await??)
    }

    pub(super) async fn commit_one(&self, change: Change) -> Result<Applied> {
        Ok(change_in_time(self.parts.journal.commit_one(change)).await??)
    }
}
