//! Measures how much the store holds, now and then, and how fast that grows. The measurements are in memory: a server that
//! starts knows no growth for a while.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use downbeat_core::limits;
use downbeat_core::retention::{Growth, Held, History};
use downbeat_core::run::RunState;
use downbeat_store::{self as store, Store, Tally, Volume};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::parts::Parts;

/// The measurements of the last day; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured(Arc<Mutex<History>>);

impl Measured {
    pub(crate) fn growth(&self) -> Option<Growth> {
        self.lock().growth()
    }

    fn lock(&self) -> MutexGuard<'_, History> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads how much the store holds. The cost does not depend on it.
pub(crate) async fn read(store: &dyn Store) -> Result<Held, store::Error> {
    let tally = store.tally().await?;
    Ok(held(&tally, &store.volume().await?))
}

pub(crate) fn held(tally: &Tally, volume: &Volume) -> Held {
    let ended = tally.runs.iter().filter(|(state, _): &&(RunState, u64)| state.is_terminal());
    Held {
        runs: tally.runs.iter().map(|(_, count)| count).sum(),
        ended_runs: ended.map(|(_, count)| count).sum(),
        executions: tally.executions.iter().map(|(_, count)| count).sum(),
        events: volume.events,
        first_seq: volume.first_seq,
        output_bytes: volume.output_bytes,
        disk_bytes: volume.disk_bytes,
    }
}

/// Measures until `stop` is cancelled.
pub(crate) async fn measure(parts: Parts, stop: CancellationToken) {
    loop {
        match read(parts.store.as_ref()).await {
            Ok(held) => {
                parts.metrics.set_held(&held);
                parts.measured.lock().add(parts.clock.now(), held);
            }
            Err(error) => debug!(%error, "cannot measure the store"),
        }
        let pause = tokio::time::sleep(Duration::from_secs(limits::MEASURED_EVERY_S));
        if stop.run_until_cancelled(pause).await.is_none() {
            return;
        }
    }
}
