//! Owns the projection of all open backfills, and when each needs a decision. It follows the feed, on replicas too.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use downbeat_core::ids::{BackfillId, RunId};
use downbeat_core::job::{BackfillEnd, BackfillRecord, JobKey, JobVersion};
use downbeat_core::run::RunState;
use downbeat_core::schedule::{Timer, Timetable};
use downbeat_core::{Change, Event, Timestamp};
use downbeat_store::{self as store, Store};
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::journal::Perform;

/// How many backfills are read at once.
const AT_ONCE: u32 = 100;

/// A handle to the projection; cheap to clone. The lock is never held across an await.
#[derive(Clone, Debug)]
pub(crate) struct Backfills {
    inner: Arc<Mutex<Inner>>,
    clock: Clock,
    wake: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Inner {
    open: BTreeMap<BackfillId, OpenBackfill>,
    /// The open runs of all backfills.
    runs: HashMap<RunId, (BackfillId, Timestamp)>,
    timer: Timer<BackfillId>,
}

/// An open backfill.
#[derive(Clone, Debug)]
pub(super) struct OpenBackfill {
    pub(super) record: BackfillRecord,
    /// Its runs that have ended, and whose ends are not recorded.
    pub(super) ended: Vec<BackfillEnd>,
    /// Whether this server has followed all of its open runs since they were created. If not, it has to read them.
    pub(super) is_followed: bool,
    /// The version of the job that it runs, when it was needed first.
    pub(super) version: Option<Arc<Version>>,
}

/// A version of a job with its schedules.
#[derive(Debug)]
pub(super) struct Version {
    pub(super) job: JobVersion,
    pub(super) table: Timetable,
}

impl OpenBackfill {
    fn new(record: BackfillRecord) -> Self {
        let is_followed = record.live.open.is_empty();
        Self { record, ended: Vec::new(), is_followed, version: None }
    }
}

impl Backfills {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { inner: Arc::default(), clock, wake: Arc::default() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("nothing panics while it holds the backfills")
    }

    /// Loads everything from the store, before the journal publishes anything.
    pub(crate) async fn load(&self, store: &dyn Store) -> Result<(), store::Error> {
        let (mut open, mut after) = (Vec::new(), None);
        loop {
            let some = store.open_backfills(after, AT_ONCE).await?;
            let Some(last) = some.last() else { break };
            after = Some(last.made.id);
            open.extend(some);
        }
        let (now, mut inner) = (self.clock.now(), self.inner());
        *inner = Inner::default();
        for record in open {
            let id = record.made.id;
            let runs = record.live.open.iter().map(|(at, run)| (run.clone(), (id, *at)));
            inner.runs.extend(runs.collect::<Vec<_>>());
            inner.open.insert(id, OpenBackfill::new(record));
            inner.timer.set(id, Some(now));
        }
        drop(inner);
        self.wake.notify_one();
        Ok(())
    }

    pub(super) fn get(&self, id: BackfillId) -> Option<OpenBackfill> {
        self.inner().open.get(&id).cloned()
    }

    /// Returns how many backfills of a job are open.
    pub(crate) fn count(&self, job: &JobKey) -> usize {
        self.inner().open.values().filter(|open| open.record.made.job == *job).count()
    }

    pub(super) fn next(&self) -> Option<Timestamp> {
        self.inner().timer.next()
    }

    /// Waits until a backfill may need a decision.
    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    /// Removes and returns the backfills that need a decision now, at most so many.
    pub(super) fn take_due(&self, now: Timestamp, most: usize) -> Vec<BackfillId> {
        let mut inner = self.inner();
        std::iter::from_fn(|| inner.timer.take_due(now)).map(|(_, id)| id).take(most).collect()
    }

    /// Sets when an open backfill needs a decision, unless something has happened to it meanwhile.
    pub(super) fn decide_at(&self, id: BackfillId, at: Timestamp) {
        let mut inner = self.inner();
        if inner.open.contains_key(&id) && inner.timer.time(&id).is_none_or(|set| set > at) {
            inner.timer.set(id, Some(at));
        }
        drop(inner);
        self.wake.notify_one();
    }

    pub(super) fn set_version(&self, id: BackfillId, version: &Arc<Version>) {
        if let Some(open) = self.inner().open.get_mut(&id) {
            open.version = Some(Arc::clone(version));
        }
    }

    /// Adds the ends of runs that were read.
    pub(super) fn found(&self, id: BackfillId, ended: &[BackfillEnd]) {
        if let Some(open) = self.inner().open.get_mut(&id) {
            open.is_followed = true;
            for end in ended {
                open.end(*end);
            }
        }
    }
}

impl OpenBackfill {
    fn end(&mut self, end: BackfillEnd) {
        let is_known = self.ended.iter().any(|known| known.at == end.at);
        if !is_known && self.record.live.open.contains_key(&end.at) {
            self.ended.push(end);
        }
    }
}

impl Inner {
    /// Changes an open backfill. The store has applied the change, so that a refusal means that it is known already.
    fn alter(&mut self, id: BackfillId, now: Timestamp, alter: impl FnOnce(&mut OpenBackfill)) {
        let Some(open) = self.open.get_mut(&id) else { return };
        alter(open);
        let live = &open.record.live;
        open.ended.retain(|end| live.open.contains_key(&end.at));
        if live.ended_at.is_some() {
            self.remove(id);
        } else {
            self.timer.set(id, Some(now));
        }
    }

    fn remove(&mut self, id: BackfillId) {
        self.open.remove(&id);
        self.runs.retain(|_, (backfill, _)| *backfill != id);
        self.timer.set(id, None);
    }

    /// Returns the open backfills that match.
    fn of(&self, matches: impl Fn(&JobKey) -> bool) -> Vec<BackfillId> {
        let ids = self.open.iter().filter(|(_, open)| matches(&open.record.made.job)).map(|(id, _)| *id);
        ids.collect()
    }

    fn perform(&mut self, change: &Change, now: Timestamp) -> bool {
        match change {
            Change::BackfillCreated { backfill } => {
                self.open
                    .entry(backfill.id)
                    .or_insert_with(|| OpenBackfill::new(BackfillRecord::new(backfill.clone())));
                self.timer.set(backfill.id, Some(now));
            }
            Change::BackfillMoved { backfill, step, at, .. } => {
                for end in &step.ended {
                    self.runs.retain(|_, (id, at)| *id != *backfill || *at != end.at);
                }
                self.alter(*backfill, now, |open| _ = open.record.step(step, *at));
            }
            Change::BackfillCancelled { backfill, cancel, .. } => {
                self.alter(*backfill, now, |open| _ = open.record.cancel(cancel));
            }
            Change::RunCreated { run, firing: Some(firing), .. } => {
                let Some(time) = firing.backfill else { return false };
                self.runs.insert(run.id.clone(), (time.id, time.at));
                self.alter(time.id, now, |open| _ = open.record.start(firing.from, time.at, &run.id));
            }
            Change::RunMoved { run, path, .. } => {
                let Some(state) = path.last().copied().filter(|state: &RunState| state.is_terminal()) else {
                    return false;
                };
                let Some((id, at)) = self.runs.remove(run) else { return false };
                self.alter(id, now, |open| open.end(BackfillEnd { at, state: Some(state) }));
            }
            Change::JobDeleted { job, .. } => {
                self.of(|key| key == job).into_iter().for_each(|id| self.timer.set(id, Some(now)));
            }
            Change::ClusterDeleted { cluster, .. } => {
                self.of(|key| key.cluster == *cluster).into_iter().for_each(|id| self.remove(id));
            }
            _ => return false,
        }
        true
    }
}

impl Perform for Backfills {
    fn perform(&self, events: &Arc<[Event]>) {
        let (now, mut inner) = (self.clock.now(), self.inner());
        let changes = events.iter().map(|event| inner.perform(&event.change, now));
        let is_changed = changes.fold(false, |any, one| any | one);
        drop(inner);
        if is_changed {
            self.wake.notify_one();
        }
    }
}
