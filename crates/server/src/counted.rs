//! Counts the results of runs, and remembers the counts of large runs: to count a million takes a tenth of a second.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use downbeat_core::ids::RunId;
use downbeat_core::limits;
use downbeat_core::run::RunRecord;
use downbeat_store::{self as store, InstanceCount, Store};
use tokio::time::Instant;

/// Counting an open run takes at most one part in this many of the time.
const PAUSE_PER_COUNT: u32 = 10;

/// The counts of large runs that were read last; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counted(Arc<Mutex<HashMap<RunId, Kept>>>);

#[derive(Clone, Debug)]
struct Kept {
    counts: Arc<[InstanceCount]>,
    /// The run had ended before: its counts do not change any more.
    has_ended: bool,
    read_at: Instant,
    cost: Duration,
}

impl Counted {
    /// Counts the instances of a run by step and status. Counts of a large run that has not ended may be a little old.
    pub(crate) async fn of(
        &self,
        store: &dyn Store,
        run: &RunRecord,
    ) -> Result<Arc<[InstanceCount]>, store::Error> {
        let has_ended = run.state().is_terminal();
        if let Some(kept) = self.kept(&run.id, has_ended) {
            return Ok(kept);
        }
        let started = Instant::now();
        let counts: Arc<[InstanceCount]> = store.instance_counts(&run.id).await?.into();
        let read_at = Instant::now();
        if counts.iter().map(|count| count.total).sum::<u64>() > limits::PLAN_SMALL_INSTANCES as u64 {
            let (counts, cost) = (Arc::clone(&counts), read_at - started);
            self.keep(run.id.clone(), Kept { counts, has_ended, read_at, cost });
        }
        Ok(counts)
    }

    fn kept(&self, run: &RunId, has_ended: bool) -> Option<Arc<[InstanceCount]>> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_fresh = |kept: &&Kept| {
            kept.has_ended || (!has_ended && kept.read_at.elapsed() < kept.cost * PAUSE_PER_COUNT)
        };
        all.get(run).filter(is_fresh).map(|kept| Arc::clone(&kept.counts))
    }

    fn keep(&self, run: RunId, kept: Kept) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= limits::COUNTS_KEPT && !all.contains_key(&run) {
            let oldest = all.iter().min_by_key(|(_, kept)| kept.read_at).map(|(run, _)| run.clone());
            oldest.and_then(|oldest| all.remove(&oldest));
        }
        all.insert(run, kept);
    }
}
