//! Remembers what takes long to find out about large runs: counts of results that are not kept, and the progress of
//! roll-outs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use downbeat_api::Rollout;
use downbeat_core::ids::RunId;
use downbeat_core::limits;
use downbeat_core::run::RunRecord;
use downbeat_store::{self as store, InstanceCount, Store};
use tokio::time::Instant;

use crate::heavy::is_heavy;

/// Looking at an open run takes at most one part in this many of the time.
const PAUSE_PER_LOOK: u32 = 10;

/// What was found out last about large runs; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counted {
    counts: Remembered<Arc<[InstanceCount]>>,
    pub(crate) rollouts: Remembered<Option<Rollout>>,
}

impl Counted {
    /// Counts the instances of a run by step and status. Counts of a large run that has not ended may be a little old.
    pub(crate) async fn of(
        &self,
        store: &dyn Store,
        run: &RunRecord,
    ) -> Result<Arc<[InstanceCount]>, store::Error> {
        let count = async || {
            let counts: Arc<[InstanceCount]> = store.instance_counts(&run.id).await?.into();
            Ok((counts.iter().map(|count| count.total).sum(), counts))
        };
        self.counts.of(run, count).await
    }
}

/// A fact about each of some runs.
#[derive(Clone, Debug)]
pub(crate) struct Remembered<T>(Arc<Mutex<HashMap<RunId, Kept<T>>>>);

impl<T> Default for Remembered<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

#[derive(Clone, Debug)]
struct Kept<T> {
    fact: T,
    /// The run had ended before: the fact does not change any more.
    has_ended: bool,
    read_at: Instant,
    cost: Duration,
}

impl<T: Clone> Remembered<T> {
    /// Returns the fact about a run. If it is not remembered, `find` finds it, together with the number of instances.
    pub(crate) async fn of<E>(
        &self,
        run: &RunRecord,
        find: impl AsyncFnOnce() -> Result<(u64, T), E>,
    ) -> Result<T, E> {
        let has_ended = run.state().is_terminal();
        if let Some(kept) = self.kept(&run.id, has_ended) {
            return Ok(kept);
        }
        let started = Instant::now();
        let (size, fact) = find().await?;
        let read_at = Instant::now();
        if is_heavy(size) {
            let kept = Kept { fact: fact.clone(), has_ended, read_at, cost: read_at - started };
            self.keep(run.id.clone(), kept);
        }
        Ok(fact)
    }

    fn kept(&self, run: &RunId, has_ended: bool) -> Option<T> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_fresh = |kept: &&Kept<T>| {
            kept.has_ended || (!has_ended && kept.read_at.elapsed() < kept.cost * PAUSE_PER_LOOK)
        };
        all.get(run).filter(is_fresh).map(|kept| kept.fact.clone())
    }

    fn keep(&self, run: RunId, kept: Kept<T>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= limits::COUNTS_KEPT && !all.contains_key(&run) {
            let oldest = all.iter().min_by_key(|(_, kept)| kept.read_at).map(|(run, _)| run.clone());
            oldest.and_then(|oldest| all.remove(&oldest));
        }
        all.insert(run, kept);
    }
}
