//! Owns the projection of all stored jobs, with the times at which their schedules need a decision. It follows the feed, on
//! replicas too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use downbeat_core::ids::ClusterId;
use downbeat_core::job::{JobKey, JobLive, JobRecord, JobVersion};
use downbeat_core::schedule::{self, Timer, Timetable};
use downbeat_core::{Change, Event, Timestamp};
use downbeat_store::{self as store, Store};
use tokio::sync::Notify;
use tracing::error;

use super::index::{Index, Source};
use crate::clock::Clock;
use crate::journal::Perform;
use crate::standing::Standing;

/// How many jobs are read at once: their definitions may be large.
const AT_ONCE: u32 = 100;

/// The right to decide about the schedules of a job on this server.
pub(crate) type Turn = tokio::sync::Mutex<()>;

/// A handle to the projection; cheap to clone. The lock is never held across an await. The clusters may be locked while it
/// is held, never the other way round.
#[derive(Clone, Debug)]
pub(crate) struct Jobs {
    inner: Arc<Mutex<Inner>>,
    standing: Standing,
    clock: Clock,
    wake: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Inner {
    jobs: BTreeMap<JobKey, JobState>,
    /// When each job with schedules needs the next decision. Paused jobs are not in it.
    timer: Timer<JobKey>,
    /// The jobs that are being decided. They are not in the timer until that is over.
    deciding: BTreeSet<JobKey>,
    /// The triggers of all jobs, also of paused ones.
    triggers: Index,
}

impl Inner {
    fn remove(&mut self, key: &JobKey) -> Option<JobState> {
        let job = self.jobs.remove(key)?;
        self.triggers.remove(key, &job.record.current.definition.triggers);
        self.timer.set(key.clone(), None);
        Some(job)
    }

    fn set_next(&mut self, key: &JobKey, next: Option<Timestamp>) {
        if !self.deciding.contains(key) {
            self.timer.set(key.clone(), next);
        }
    }
}

/// A stored job with its schedules.
#[derive(Clone, Debug)]
pub struct JobState {
    pub record: Arc<JobRecord>,
    /// Absent without schedules.
    pub(crate) table: Option<Arc<Timetable>>,
    pub(super) turn: Arc<Turn>,
    /// Only events after this one start the job: the last one that changed or resumed it, as far as this server knows.
    pub(crate) since: u64,
}

impl Jobs {
    pub(crate) fn new(standing: Standing, clock: Clock) -> Self {
        Self { inner: Arc::default(), standing, clock, wake: Arc::default() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("nothing panics while it holds the jobs")
    }

    /// Loads everything from the store. Called after the clusters were loaded, before the journal publishes anything.
    pub(crate) async fn load(&self, store: &dyn Store) -> Result<(), store::Error> {
        let (mut loaded, mut after) = (Inner::default(), None);
        loop {
            let some = store.jobs(after, AT_ONCE).await?;
            let Some(last) = some.last() else { break };
            after = Some(last.key().id());
            some.into_iter().for_each(|job| self.put(&mut loaded, job));
        }
        *self.inner() = loaded;
        self.wake.notify_one();
        Ok(())
    }

    pub(crate) fn get(&self, key: &JobKey) -> Option<JobState> {
        self.inner().jobs.get(key).cloned()
    }

    /// Returns the jobs of a cluster, or of all, by cluster and name.
    pub(crate) fn list(&self, cluster: Option<ClusterId>) -> Vec<JobState> {
        let inner = self.inner();
        let jobs = inner.jobs.iter().filter(|(key, _)| cluster.is_none_or(|cluster| key.cluster == cluster));
        jobs.map(|(_, job)| job.clone()).collect()
    }

    /// Returns the jobs with a trigger that waits for this.
    pub(crate) fn waiting_for(&self, source: &Source) -> Vec<JobState> {
        let inner = self.inner();
        let keys = inner.triggers.get(source).into_iter().flatten();
        keys.filter_map(|key| inner.jobs.get(key).cloned()).collect()
    }

    /// Returns whether any job waits for events.
    pub(crate) fn follow_events(&self) -> bool {
        self.inner().triggers.follow_events()
    }

    /// Notes an event that changed or resumed a job: earlier events do not start it.
    pub(crate) fn starts_after(&self, key: &JobKey, seq: u64) {
        mark(&mut self.inner(), key, seq);
    }

    /// Returns how many jobs a cluster has.
    pub(crate) fn count(&self, cluster: ClusterId) -> usize {
        self.inner().jobs.keys().filter(|key| key.cluster == cluster).count()
    }

    /// Returns when the first decision is needed.
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.inner().timer.next()
    }

    /// Waits until a job or its times may have changed.
    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    /// Removes and returns a job that needs a decision now.
    pub(super) fn take_due(&self, now: Timestamp) -> Option<JobKey> {
        let mut inner = self.inner();
        let (_, key) = inner.timer.take_due(now)?;
        inner.deciding.insert(key.clone());
        Some(key)
    }

    /// Sets the next decision of a job that was taken: by its schedules, or at a time.
    pub(super) fn decide_again(&self, key: &JobKey, at: Option<Timestamp>) {
        let mut inner = self.inner();
        inner.deciding.remove(key);
        let Some(job) = inner.jobs.get(key) else { return };
        let next = at.or_else(|| self.next_of(job));
        inner.set_next(key, next);
        drop(inner);
        self.wake.notify_one();
    }

    fn next_of(&self, job: &JobState) -> Option<Timestamp> {
        let live = &job.record.live;
        let table = job.table.as_ref().filter(|_| live.paused_at.is_none())?;
        table.next(live.decided_at, self.clock.now())
    }

    /// Adds a job, or replaces its record.
    fn put(&self, inner: &mut Inner, record: JobRecord) {
        let key = record.key().clone();
        let former = inner.jobs.get(&key);
        let is_same = |former: &&JobState| former.record.current.version == record.current.version;
        let table = match former.filter(is_same) {
            Some(former) => former.table.clone(),
            None => self.table_of(&record).map(Arc::new),
        };
        let turn = former.map_or_else(Arc::default, |former| Arc::clone(&former.turn));
        let since = former.map_or(0, |former| former.since);
        if let Some(former) = inner.jobs.get(&key).map(|former| Arc::clone(&former.record)) {
            inner.triggers.remove(&key, &former.current.definition.triggers);
        }
        inner.triggers.insert(&key, &record.current.definition.triggers);
        let job = JobState { record: Arc::new(record), table, turn, since };
        let next = self.next_of(&job);
        inner.set_next(&key, next);
        inner.jobs.insert(key, job);
    }

    fn table_of(&self, record: &JobRecord) -> Option<Timetable> {
        let (key, schedules) = (record.key(), &record.current.definition.schedule);
        if schedules.is_empty() {
            return None;
        }
        let cluster = self.standing.cluster_by_id(key.cluster);
        let name = schedule::key(cluster.as_ref().map(|cluster| &*cluster.name), &key.name);
        let table = Timetable::new(name, schedules);
        // The schedules were valid when they were applied.
        table.inspect_err(|error| error!(job = %key.name, %error, "cannot use the schedules of a job")).ok()
    }

    fn apply(&self, inner: &mut Inner, version: &JobVersion) {
        let live = match inner.jobs.get(&version.key) {
            Some(job) => JobLive { version: version.version, ..job.record.live },
            None => JobLive::new(version.version, version.at),
        };
        self.put(inner, JobRecord { live, current: version.clone() });
    }

    /// Changes the live part of a job.
    fn alter(&self, inner: &mut Inner, key: &JobKey, alter: impl FnOnce(&mut JobLive)) {
        let Some(job) = inner.jobs.get(key) else { return };
        let mut record = (*job.record).clone();
        alter(&mut record.live);
        self.put(inner, record);
    }

    /// Reads the name of a cluster again: the delays of its jobs follow from it.
    fn rename(&self, inner: &mut Inner, cluster: ClusterId) {
        let of_cluster = |(key, _): &(&JobKey, &JobState)| key.cluster == cluster;
        let jobs: Vec<JobState> = inner.jobs.iter().filter(of_cluster).map(|(_, job)| job.clone()).collect();
        for job in jobs {
            inner.remove(job.record.key());
            self.put(inner, (*job.record).clone());
            if let Some(again) = inner.jobs.get_mut(job.record.key()) {
                again.turn = job.turn;
                again.since = job.since;
            }
        }
    }
}

fn mark(inner: &mut Inner, key: &JobKey, seq: u64) {
    if let Some(job) = inner.jobs.get_mut(key) {
        job.since = job.since.max(seq);
    }
}

impl Perform for Jobs {
    /// The clusters have already performed the events.
    fn perform(&self, events: &Arc<[Event]>) {
        let mut inner = self.inner();
        let mut is_changed = false;
        for event in events.iter() {
            match &event.change {
                Change::JobApplied { job, .. } => {
                    self.apply(&mut inner, job);
                    mark(&mut inner, &job.key, event.seq);
                }
                Change::JobPauseSet { job, paused, at, .. } => {
                    self.alter(&mut inner, job, |live| live.paused_at = paused.then_some(*at));
                    mark(&mut inner, job, event.seq);
                }
                Change::JobDecided { job, until, .. } => {
                    self.alter(&mut inner, job, |live| live.decided_at = *until);
                }
                Change::JobDeleted { job, .. } => {
                    inner.remove(job);
                }
                Change::ClusterChanged { cluster, .. } => self.rename(&mut inner, cluster.id),
                Change::ClusterDeleted { cluster, .. } => {
                    let gone: Vec<JobKey> =
                        inner.jobs.keys().filter(|key| key.cluster == *cluster).cloned().collect();
                    for key in gone {
                        inner.remove(&key);
                    }
                }
                _ => continue,
            }
            is_changed = true;
        }
        drop(inner);
        if is_changed {
            self.wake.notify_one();
        }
    }
}
