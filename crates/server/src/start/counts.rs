//! Keeps the counts of instances: adds them up, and counts runs of programs that did not keep them.

use std::time::Duration;

use downbeat_core::limits;
use jiff::SignedDuration;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::parts::Parts;

const EVERY: Duration = Duration::from_secs(10);
/// How long ago a run must have ended to be counted: by then nothing about it is being committed any more.
const ENDED_FOR: SignedDuration = SignedDuration::from_mins(1);

pub(super) async fn keep_counts(parts: Parts, stop: CancellationToken) {
    while stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
        let before = parts.clock.now() - ENDED_FOR;
        loop {
            match parts.store.keep_counts(before, limits::RUNS_COUNTED_AT_ONCE).await {
                Ok(runs) if runs == u64::from(limits::RUNS_COUNTED_AT_ONCE) && !stop.is_cancelled() => {}
                Ok(_) => break,
                Err(error) => {
                    warn!(%error, "cannot keep the counts of runs");
                    break;
                }
            }
        }
    }
}
