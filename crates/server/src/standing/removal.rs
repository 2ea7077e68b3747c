//! Removes the rows of deleted clusters, in small portions.

use std::time::Duration;

use downbeat_core::retention;
use downbeat_store as store;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::parts::Parts;

/// How many rows one call removes: commits wait for it on SQLite.
const MOST: u32 = 500;
/// How often a server looks for rows that another server left behind.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Removes what deleted clusters left behind, until `stop` is cancelled.
pub(crate) async fn remove_deleted(parts: Parts, stop: CancellationToken) {
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = parts.standing.cluster_deleted() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        parts.standing.forget_gone(parts.clock.now());
        let removed = stop.run_until_cancelled(remove(&parts)).await;
        if let Some(Err(error)) = removed {
            warn!(%error, "cannot remove the rows of a deleted cluster; trying again");
        }
    }
}

async fn remove(parts: &Parts) -> Result<(), store::Error> {
    for cluster in parts.store.removed_clusters().await? {
        let mut rows = 0;
        loop {
            let begun = Instant::now();
            let removed = parts.store.remove_cluster(cluster, MOST).await?;
            rows += removed;
            if removed == 0 {
                break;
            }
            tokio::time::sleep(retention::pause_after(begun.elapsed())).await;
        }
        info!(%cluster, rows, "removed the rows of a deleted cluster");
    }
    Ok(())
}
