//! Follows all events, and starts the jobs that they start.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use downbeat_core::ids::RunId;
use downbeat_core::job::JobKey;
use downbeat_core::trigger::{Happened, What};
use downbeat_core::{Change, Event, level, limits};
use futures_util::{StreamExt as _, stream};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::replay::{events, past};
use super::start::{Outcome, Pending, Try, start};
use crate::jobs::Source;
use crate::service::Service;

/// How long a server leaves the events of another server to it.
const OTHERS: Duration = Duration::from_secs(2);
/// The pause before a start is repeated, and for how long it is repeated.
const RETRY: Duration = Duration::from_secs(1);
const RETRIED_FOR: Duration = Duration::from_secs(600);
/// Runs that are started at the same time.
const AT_ONCE: usize = 32;
/// Starts that wait at most. Until some are done, no further events are read.
const WAITING: usize = 10_000;
/// A mark is written after so many events, or so long after a start.
const MARK_EVENTS: u64 = 2_000;
const MARK_AFTER: Duration = Duration::from_secs(1);

struct Waiting {
    pending: Pending,
    due: Instant,
    since: Instant,
}

struct Follower {
    service: Service,
    /// The last event that was read.
    position: u64,
    /// The last mark in the feed.
    marked: u64,
    /// When the mark of this server's own starts is due.
    mark_due: Option<Instant>,
    waiting: BTreeMap<RunId, Waiting>,
    /// When events are read again that could not be read.
    behind: Option<Instant>,
}

/// Follows all events until `stop` is cancelled.
pub(crate) async fn follow(service: Service, stop: CancellationToken) {
    let feed = service.parts.feed.clone();
    let mut batches = feed.subscribe();
    let last = feed.last_seq();
    let Some(mut follower) = Follower::begin(service, last, &stop).await else { return };
    loop {
        follower.act().await;
        follower.mark().await;
        let next = follower.next();
        if follower.behind.is_some_and(|due| due <= Instant::now()) {
            follower.read_up_to(feed.last_seq(), &BTreeSet::new()).await;
        }
        tokio::select! {
            () = stop.cancelled() => return,
            batch = batches.next(), if follower.waiting.len() < WAITING => match batch {
                Some(batch) => follower.observe_new(&batch).await,
                // Missed: the store has it.
                None => follower.read_up_to(feed.last_seq(), &BTreeSet::new()).await,
            },
            () = async { sleep_until(next.unwrap_or_else(Instant::now)).await }, if next.is_some() => {}
        }
    }
}

impl Follower {
    /// Reads what happened before this server started. Returns `None` if it stops meanwhile.
    async fn begin(service: Service, last: u64, stop: &CancellationToken) -> Option<Self> {
        let past = loop {
            match past(&service, last).await {
                Ok(past) => break past,
                Err(error) => warn!(%error, "cannot read which triggers were followed"),
            }
            tokio::select! {
                () = stop.cancelled() => return None,
                () = sleep(RETRY) => {}
            }
        };
        let (position, marked) = (past.mark, past.mark);
        let mut follower =
            Self { service, position, marked, mark_due: None, waiting: BTreeMap::new(), behind: None };
        follower.read_up_to(last, &past.settled).await;
        Some(follower)
    }

    /// Observes a batch of the feed. Reads the events before it that are missing.
    async fn observe_new(&mut self, batch: &[Event]) {
        let Some(first) = batch.first() else { return };
        if first.seq > self.position + 1 {
            self.read_up_to(first.seq - 1, &BTreeSet::new()).await;
        }
        if self.behind.is_some() {
            return;
        }
        for event in batch {
            self.observe(event, &BTreeSet::new());
        }
    }

    /// Observes events from the store. What cannot be read now is read later.
    async fn read_up_to(&mut self, last: u64, settled: &BTreeSet<RunId>) {
        while self.position < last && self.waiting.len() < WAITING {
            let to = last.min(self.position + limits::EVENTS_AT_ONCE as u64);
            match events(&self.service, self.position, to).await {
                Ok(events) => {
                    events.iter().for_each(|event| self.observe(event, settled));
                    self.position = self.position.max(to);
                }
                Err(error) => {
                    warn!(%error, since = self.position, "cannot read the events that triggers follow");
                    break;
                }
            }
        }
        self.behind = (self.position < last).then(|| Instant::now() + RETRY);
    }

    fn observe(&mut self, event: &Event, settled: &BTreeSet<RunId>) {
        if event.seq <= self.position {
            return;
        }
        self.position = event.seq;
        match &event.change {
            Change::RunCreated { run, .. } => _ = self.waiting.remove(&run.id),
            Change::JobNotTriggered { run, .. } => _ = self.waiting.remove(run),
            Change::TriggersFollowed { until, .. } => self.marked = self.marked.max(*until),
            _ => {}
        }
        let parts = &self.service.parts;
        let node = |id| {
            let board = parts.dispatcher.board();
            let node = board.node(id)?;
            Some((node.description.hostname.clone(), node.description.groups.clone()))
        };
        let Some(happened) = Happened::of(event, node) else { return };
        let happened = Arc::new(happened);
        let wait = if event.server == parts.server { Duration::ZERO } else { OTHERS };
        for key in self.started_by(event.seq, &happened) {
            let run = happened.run_id(&key);
            if !settled.contains(&run) {
                let now = Instant::now();
                let pending = Pending { job: key, happened: Arc::clone(&happened) };
                self.waiting.insert(run, Waiting { pending, due: now + wait, since: now });
            }
        }
    }

    /// Returns the jobs that an event starts.
    fn started_by(&self, seq: u64, happened: &Happened) -> BTreeSet<JobKey> {
        let jobs = &self.service.parts.jobs;
        let by_job = match &happened.what {
            What::RunEnded { job: Some(job), .. } => {
                Some(Source::Job(JobKey::new(happened.cluster, Arc::clone(job))))
            }
            What::RunEnded { .. } | What::Node { .. } => None,
        };
        let by_event = happened.kind().map(|kind| Source::Event(happened.cluster, kind));
        let sources = by_job.into_iter().chain(by_event);
        let found = sources.flat_map(|source| jobs.waiting_for(&source)).filter(|job| {
            let (record, name) = (&job.record, &job.record.key().name);
            seq > job.since
                && record.live.paused_at.is_none()
                && happened.starts(name, &record.current.definition.triggers).is_some()
        });
        found.map(|job| job.record.key().clone()).collect()
    }

    /// Starts all runs that are due.
    async fn act(&mut self) {
        let (service, now) = (&self.service, Instant::now());
        if !service.parts.level.reaches(level::TRIGGERS) {
            for waiting in self.waiting.values_mut() {
                waiting.due = waiting.due.max(now + RETRY);
            }
            return;
        }
        let due = self.waiting.iter().filter(|(_, waiting)| waiting.due <= now);
        let try_of =
            |waiting: &Waiting| if waiting.since + RETRIED_FOR <= now { Try::Last } else { Try::Early };
        let mut due: Vec<(RunId, Pending, Try)> =
            due.map(|(run, waiting)| (run.clone(), waiting.pending.clone(), try_of(waiting))).collect();
        if due.is_empty() {
            return;
        }
        due.sort_by_key(|(_, pending, _)| pending.happened.seq);
        let started = stream::iter(due).map(|(run, pending, which)| async move {
            let outcome = start(service, &run, &pending, which).await;
            (run, outcome)
        });
        let started: Vec<(RunId, Outcome)> = started.buffer_unordered(AT_ONCE).collect().await;
        let now = Instant::now();
        for (run, outcome) in started {
            let Some(waiting) = self.waiting.get_mut(&run) else { continue };
            if outcome == Outcome::Later {
                waiting.due = now + RETRY;
                continue;
            }
            self.waiting.remove(&run);
        }
        self.mark_due.get_or_insert(now + MARK_AFTER);
    }

    /// Returns up to which event everything is done.
    fn done(&self) -> u64 {
        let first = self.waiting.values().map(|waiting| waiting.pending.happened.seq).min();
        first.map_or(self.position, |first| first - 1)
    }

    /// Writes a mark, if it is due.
    async fn mark(&mut self) {
        let (service, now, until) = (&self.service, Instant::now(), self.done());
        let is_due = self.mark_due.is_some_and(|due| due <= now) || until >= self.marked + MARK_EVENTS;
        if !is_due || until <= self.marked || !service.parts.level.reaches(level::TRIGGERS) {
            return;
        }
        if !service.parts.jobs.follow_events() {
            self.marked = until;
            return;
        }
        let change = Change::TriggersFollowed { until, at: service.now() };
        match service.parts.journal.commit_one(change).await {
            Ok(_) => (self.marked, self.mark_due) = (until, None),
            Err(error) => {
                warn!(%error, "cannot record which triggers were followed");
                self.mark_due = Some(now + RETRY);
            }
        }
    }

    /// Returns when something is due.
    fn next(&self) -> Option<Instant> {
        let waiting = self.waiting.values().map(|waiting| waiting.due);
        waiting.chain(self.mark_due).chain(self.behind).min()
    }
}
