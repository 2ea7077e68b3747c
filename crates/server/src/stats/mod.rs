//! Owns statistics of ended runs: kept in memory from the feed, so that a request costs no read of history. At its start
//! a server reads the newest runs.

mod ledger;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use downbeat_api::Stats as View;
use downbeat_core::collections::HashSet;
use downbeat_core::execution::Verdict;
use downbeat_core::ids::{ClusterId, RunId};
use downbeat_core::run::{RunLive, RunRecord, RunState};
use downbeat_core::{Change, Event, Span, Timestamp, limits};
use downbeat_store::{self as store, Listed, Page, RunFilter, Store};
use tracing::{Instrument, warn};

use self::ledger::{Ledger, RunEnd};

/// How many runs are read at once: their definitions may be large.
const PER_READ: u32 = 100;

/// A handle to the statistics; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stats(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    ledger: Ledger,
    /// Runs that were created before this time may be missing.
    since: Option<Timestamp>,
    loading: Option<Loading>,
}

/// Runs that end while ended runs are read: the store and the feed both have them, and each is counted once.
#[derive(Debug, Default)]
struct Loading {
    counted: HashSet<RunId>,
    /// Everything was read, and later events are of other runs.
    until: Option<u64>,
}

impl Inner {
    /// Returns whether the end of a run is not counted yet. `seq` is the number of its event; 0 if the store had it.
    fn is_new(&mut self, run: &RunId, seq: u64) -> bool {
        self.loading.take_if(|loading| loading.until.is_some_and(|until| until < seq));
        self.loading.as_mut().is_none_or(|loading| loading.counted.insert(run.clone()))
    }
}

/// The part of the statistics that a request is about.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) cluster: ClusterId,
    pub(crate) job: Option<String>,
    /// The length of a period, and their number.
    pub(crate) per: Duration,
    pub(crate) periods: u32,
}

impl Stats {
    fn with<T>(&self, act: impl FnOnce(&mut Inner) -> T) -> T {
        // A panic leaves counters that are at worst one behind.
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Forgets everything, and reads the newest ended runs in the background. Runs that end from now on are noted by
    /// [`note`](Self::note).
    pub(crate) fn start(&self, store: Arc<dyn Store>, now: Timestamp) {
        let loading = Some(Loading::default());
        self.with(|inner| *inner = Inner { since: Some(now), loading, ..Inner::default() });
        let stats = self.clone();
        let load = async move {
            if let Err(error) = stats.load(store.as_ref()).await {
                warn!(%error, "cannot read ended runs; the statistics start now");
                stats.with(|inner| inner.loading = None);
            }
        };
        tokio::spawn(load.in_current_span());
    }

    /// Adds ended runs, newest first.
    async fn load(&self, store: &dyn Store) -> Result<(), store::Error> {
        let states = RunState::ALL.into_iter().filter(|state| state.is_terminal()).collect();
        let filter = RunFilter { states, ..RunFilter::default() };
        let (mut page, mut oldest) = (Page::first(PER_READ), None);
        for _ in 0..limits::STATS_RUNS_READ / PER_READ {
            let Listed { rows, next, .. } = store.runs(&filter, &page).await?;
            oldest = rows.last().map(|run| run.created_at).or(oldest);
            self.with(|inner| {
                for run in &rows {
                    let end = end(run.cluster, run.job.as_deref(), &run.live);
                    if let Some(end) = end.filter(|_| inner.is_new(&run.id, 0)) {
                        inner.ledger.add_older_run(end);
                    }
                }
            });
            match next {
                Some(next) => page.start = next,
                None => {
                    oldest = None;
                    break;
                }
            }
        }
        let until = Some(store.last_seq().await?);
        self.with(|inner| {
            inner.since = oldest;
            inner.loading.iter_mut().for_each(|loading| loading.until = until);
        });
        Ok(())
    }

    /// Notes an event. `run` is the run that it concerns, as it was before.
    pub(crate) fn note(&self, event: &Event, run: Option<&RunRecord>) {
        if let Change::ClusterDeleted { cluster, .. } = &event.change {
            self.with(|inner| inner.ledger.forget(*cluster));
        }
        let Some(run) = run else { return };
        match &event.change {
            Change::RunMoved { path, .. } if path.last().is_some_and(|state| state.is_terminal()) => {
                let mut live = run.live.clone();
                live.follow(std::slice::from_ref(&event.change));
                self.with(|inner| {
                    let end = end(run.cluster, run.job.as_deref(), &live);
                    if let Some(end) = end.filter(|_| inner.is_new(&run.id, event.seq)) {
                        inner.ledger.add_run(end);
                    }
                });
            }
            Change::ExecutionFinished { outcome, .. } if outcome.verdict == Verdict::Succeeded => {
                let (Some(job), Some(step)) = (&run.job, event.about.step) else { return };
                let took = outcome.finished_at.duration_since(outcome.started_at);
                let (took, at) = (Duration::try_from(took).unwrap_or_default(), outcome.ended_at());
                self.with(|inner| inner.ledger.add_execution(run.cluster, job, step, took, at));
            }
            _ => {}
        }
    }

    pub(crate) fn show(&self, part: &Part, now: Timestamp) -> View {
        self.with(|inner| View {
            since: inner.since,
            per: Span(part.per),
            ends: inner.ledger.ends(part.cluster, part.per, i64::from(part.periods), now),
            jobs: inner.ledger.jobs(part.cluster, part.job.as_deref()),
        })
    }
}

/// Returns the end of a run that has ended.
fn end<'a>(cluster: ClusterId, job: Option<&'a str>, live: &RunLive) -> Option<RunEnd<'a>> {
    let ended = live.ended()?;
    let (verdict, started_at, at) = (ended.verdict, live.started_at, ended.at);
    Some(RunEnd { cluster, job, verdict, started_at, at })
}

#[cfg(test)]
mod tests;
