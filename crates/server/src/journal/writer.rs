//! Owns the group commit: a batch is everything that queued up while the last one was written. Only the parts of a large
//! whole are written by themselves, after the batch: small runs go on between two parts of a large one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use downbeat_core::change::About;
use downbeat_core::ids::ServerId;
use downbeat_core::{Applied, Change, Event, Portion, Refusal, limits};
use downbeat_proto::message::Fault;
use downbeat_store::{self as store, EventFilter, Hint, Store};
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, error, info, warn};

use super::Feed;
use crate::cluster::CommonLevel;
use crate::metrics::Metrics;
use crate::signal::heard;

/// Submissions that may wait for the next batch. Beyond this, submitters wait (back-pressure).
const QUEUE: usize = 4_096;
/// One batch. Limits the duration of one transaction.
const BATCH: Portion = Portion::new(limits::COMMIT_SUBMISSIONS, limits::COMMIT_BYTES);
/// Events that are read at once when catching up with the store.
const CATCH_UP: Portion = Portion::new(limits::EVENTS_AT_ONCE, limits::EVENTS_AT_ONCE_BYTES);
/// How often to read the store without a hint from other servers: hints may be lost.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The pause before an unavailable store is tried again.
const STORE_RETRY: Duration = Duration::from_millis(250);

/// How long a failed commit counts against the store if nothing was committed since.
const FAILURE_COUNTS: Duration = Duration::from_secs(10);

/// A part that acts on committed events. Called in the order of commits, before the submitters get their outcomes.
#[async_trait]
pub(crate) trait Perform: Send + Sync + std::fmt::Debug {
    /// Does what takes long before the events are performed. The journal waits for it; other tasks do not.
    async fn prepare(&self, _events: &[Event]) {}

    fn perform(&self, events: &Arc<[Event]>);
}

/// A handle to the journal; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    submissions: mpsc::Sender<Submission>,
    condition: Arc<Condition>,
    level: CommonLevel,
}

/// The result of the last write.
#[derive(Debug)]
struct Condition {
    available: AtomicBool,
    /// When and why a commit last failed, until one succeeds.
    failed: Mutex<Option<(Instant, String)>>,
}

impl Condition {
    fn failed(&self) -> MutexGuard<'_, Option<(Instant, String)>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Submission {
    changes: Vec<Change>,
    /// About the size of the changes as JSON.
    bytes: usize,
    /// More of the same follows.
    is_part: bool,
    reply: oneshot::Sender<Result<Vec<Applied>, CommitError>>,
}

/// Takes the next batch: whole submissions as far as they fit, or one part.
fn next_batch(waiting: &mut Vec<Submission>) -> Vec<Submission> {
    waiting.sort_by_key(|submission| submission.is_part);
    let whole = waiting.partition_point(|submission| !submission.is_part);
    let later = waiting.split_off(whole.max(1).min(waiting.len()));
    let batch = BATCH.take(waiting, |submission| submission.bytes);
    waiting.extend(later);
    batch
}

/// The commit failed.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum CommitError {
    /// It may or may not have taken effect, so the submitter has to read the store again.
    #[error("cannot commit: {0}")]
    Unavailable(String),
    /// It had no effect, and never will.
    #[error("the store cannot hold this: {0}")]
    Rejected(String),
}

impl From<CommitError> for store::Error {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Unavailable(_) => store::Error::Unavailable(error.to_string()),
            CommitError::Rejected(why) => store::Error::Corrupt(why),
        }
    }
}

impl From<CommitError> for Fault {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Unavailable(_) => Fault::Unavailable(error.to_string()),
            CommitError::Rejected(_) => Fault::Rejected(error.to_string()),
        }
    }
}

impl Journal {
    /// Starts the journal's task. It ends when `stop` is cancelled and all submitted changes have an outcome.
    pub(crate) fn start(
        store: Arc<dyn Store>,
        server: ServerId,
        feed: Feed,
        performers: Vec<Arc<dyn Perform>>,
        metrics: Metrics,
        level: CommonLevel,
        stop: CancellationToken,
    ) -> (Self, tokio::task::JoinHandle<()>) {
        let (submissions, queue) = mpsc::channel(QUEUE);
        let condition = Arc::new(Condition { available: AtomicBool::new(true), failed: Mutex::default() });
        let is_shared = store.is_shared();
        let hints = is_shared.then(|| store.hints());
        let writer =
            Writer { store, server, feed, performers, metrics, condition: Arc::clone(&condition), is_shared };
        let task = tokio::spawn(writer.run(queue, hints, stop).in_current_span());
        (Self { submissions, condition, level }, task)
    }

    /// Commits changes in one batch with those of other submitters. Returns an outcome for each change, in order.
    pub(crate) async fn commit(&self, changes: Vec<Change>) -> Result<Vec<Applied>, CommitError> {
        self.submit(changes, false).await
    }

    /// Commits a part of what the submitter has to commit, by itself, after everything else that waits.
    pub(crate) async fn commit_part(&self, changes: Vec<Change>) -> Result<Vec<Applied>, CommitError> {
        self.submit(changes, true).await
    }

    async fn submit(&self, changes: Vec<Change>, is_part: bool) -> Result<Vec<Applied>, CommitError> {
        if !changes.iter().all(|change| self.level.allows(change)) {
            // Callers check the level before they decide; a part of a decision must not be committed alone.
            return Ok(vec![Err(Refusal::NotKnownToAll); changes.len()]);
        }
        let stopped = || CommitError::Unavailable("the server is stopping".to_owned());
        let (reply, response) = oneshot::channel();
        let bytes = changes.iter().map(Change::bytes).sum();
        self.submissions.send(Submission { changes, bytes, is_part, reply }).await.map_err(|_| stopped())?;
        response.await.map_err(|_| stopped())?
    }

    /// Commits one change, together with changes that others submit.
    pub(crate) async fn commit_one(&self, change: Change) -> Result<Applied, CommitError> {
        let mut outcomes = self.commit(vec![change]).await?;
        outcomes.pop().ok_or_else(|| CommitError::Unavailable("the journal returned no outcome".to_owned()))
    }

    /// Commits changes that do not depend on each other. If the store will never accept one of them, the others are
    /// committed without it. Returns an outcome for each, in order; `None` for those that were rejected.
    pub(crate) async fn commit_apart(&self, changes: &[Change]) -> Result<Vec<Option<Applied>>, CommitError> {
        let mut outcomes = Vec::with_capacity(changes.len());
        // The next part is the last one.
        let mut parts = if changes.is_empty() { Vec::new() } else { vec![changes] };
        while let Some(part) = parts.pop() {
            match self.commit(part.to_vec()).await {
                Ok(applied) => outcomes.extend(applied.into_iter().map(Some)),
                Err(CommitError::Rejected(_)) if part.len() > 1 => {
                    let (first, rest) = part.split_at(part.len() / 2);
                    parts.extend([rest, first]);
                }
                Err(CommitError::Rejected(_)) => outcomes.push(None),
                Err(error) => return Err(error),
            }
        }
        Ok(outcomes)
    }

    pub(crate) fn is_available(&self) -> bool {
        self.condition.available.load(Ordering::Acquire)
    }

    /// Returns why the store does not accept writes, as far as the last commits show.
    pub(crate) fn store_problem(&self) -> Option<String> {
        match &*self.condition.failed() {
            Some((at, why)) if at.elapsed() < FAILURE_COUNTS || !self.is_available() => Some(why.clone()),
            _ if !self.is_available() => Some("the store does not respond".to_owned()),
            _ => None,
        }
    }
}

/// Waits until another server may have committed something.
async fn others_committed(hints: &mut Hints) {
    let Some(hints) = hints else { return std::future::pending().await };
    let heard = async {
        while matches!(heard(hints).await, Some(Hint::Servers | Hint::Output(_))) {}
        // One read covers all hints that have arrived.
        while hints.try_recv().is_ok() {}
    };
    // A timeout is also a reason to read.
    let _ = tokio::time::timeout(LOOK_AGAIN, heard).await;
}

struct Writer {
    store: Arc<dyn Store>,
    server: ServerId,
    feed: Feed,
    performers: Vec<Arc<dyn Perform>>,
    metrics: Metrics,
    condition: Arc<Condition>,
    is_shared: bool,
}

/// Hints of other servers; `None` if the store is not shared.
type Hints = Option<broadcast::Receiver<Hint>>;

impl Writer {
    async fn run(self, mut queue: mpsc::Receiver<Submission>, mut hints: Hints, stop: CancellationToken) {
        let mut waiting = Vec::with_capacity(BATCH.rows);
        loop {
            tokio::select! {
                biased;
                received = queue.recv_many(&mut waiting, BATCH.rows) => {
                    if received == 0 {
                        return;
                    }
                }
                () = others_committed(&mut hints) => {
                    if let Err(error) = self.publish_new().await {
                        warn!(%error, "cannot read the changes of other servers");
                        self.catch_up(&mut waiting, &mut queue, &stop).await;
                    }
                    continue;
                }
                () = stop.cancelled() => {
                    // Earlier submissions are still written; later ones are refused.
                    queue.close();
                    if queue.recv_many(&mut waiting, BATCH.rows).await == 0 {
                        return;
                    }
                }
            }
            while !waiting.is_empty() {
                let batch = next_batch(&mut waiting);
                if !self.write(batch).await {
                    self.catch_up(&mut waiting, &mut queue, &stop).await;
                }
            }
        }
    }

    /// Writes a batch. Returns false if the store failed: the batch may or may not have taken effect.
    async fn write(&self, batch: Vec<Submission>) -> bool {
        let (mut changes, mut replies) = (Vec::new(), Vec::with_capacity(batch.len()));
        for submission in batch {
            replies.push((submission.changes.len(), submission.reply));
            changes.extend(submission.changes);
        }
        let begun = Instant::now();
        match self.store.commit(self.server, &changes).await {
            Ok(committed) => {
                if self.condition.failed().take().is_some() {
                    info!("the store accepts commits again");
                }
                self.metrics.on_commit(changes.len(), begun.elapsed());
                let refused = committed.outcomes.iter().any(Result::is_err);
                let mut known = self.publish(changes, &committed.seqs, committed.abouts).await;
                if refused && self.is_shared {
                    // A change of another server is the reason: the submitter has to know of it, too.
                    known &= self.publish_new().await.is_ok();
                }
                let mut outcomes = committed.outcomes.into_iter();
                for (count, reply) in replies {
                    // The submitter may be gone; its changes are committed all the same.
                    let _ = reply.send(Ok(outcomes.by_ref().take(count).collect()));
                }
                known
            }
            Err(store::Error::Corrupt(why)) if replies.len() > 1 => {
                // One submission is invalid; the others must not fail with it.
                warn!(%why, "the store refused a batch; writing its submissions one by one");
                let mut changes = changes.into_iter();
                let mut is_known = true;
                for (count, reply) in replies {
                    let part: Vec<Change> = changes.by_ref().take(count).collect();
                    let submission = Submission { changes: part, bytes: 0, is_part: false, reply };
                    is_known &= Box::pin(self.write(vec![submission])).await;
                }
                is_known
            }
            Err(store::Error::Corrupt(why)) => {
                error!(%why, "the store rejected a submission");
                for (_, reply) in replies {
                    let _ = reply.send(Err(CommitError::Rejected(why.clone())));
                }
                true
            }
            Err(error) => {
                error!(%error, "cannot commit changes");
                *self.condition.failed() = Some((Instant::now(), error.to_string()));
                for (_, reply) in replies {
                    let _ = reply.send(Err(CommitError::Unavailable(error.to_string())));
                }
                false
            }
        }
    }

    /// Publishes committed changes in the order of their numbers. Returns false if events before them are
    /// missing and cannot be read.
    async fn publish(&self, changes: Vec<Change>, seqs: &[Option<u64>], abouts: Vec<About>) -> bool {
        let Some(first) = seqs.iter().flatten().min() else { return true };
        // The numbers of a commit have no gaps: each event has its place, and a sort would move large values often.
        let mut events: Vec<Option<Event>> = seqs.iter().flatten().map(|_| None).collect();
        for ((change, about), seq) in changes.into_iter().zip(abouts).zip(seqs) {
            if let Some(seq) = *seq {
                events[(seq - first) as usize] = Some(Event { seq, server: self.server, about, change });
            }
        }
        let events: Vec<Event> = events.into_iter().flatten().collect();
        if let Some(first) = events.first()
            && self.read_up_to(first.seq).await.is_err()
        {
            return false;
        }
        self.perform_all(events).await;
        true
    }

    /// Reads the events before `seq`. Numbers have no gaps, so another server committed them, or this one
    /// without noticing.
    async fn read_up_to(&self, seq: u64) -> Result<(), store::Error> {
        while self.feed.last_seq() + 1 < seq {
            let missing = seq - 1 - self.feed.last_seq();
            let filter = EventFilter { since: self.feed.last_seq(), run: None };
            let rows = usize::try_from(missing).map_or(CATCH_UP.rows, |missing| missing.min(CATCH_UP.rows));
            let events = self.store.events(&filter, Portion { rows, ..CATCH_UP }).await?;
            if events.is_empty() {
                // The store has no more. Missing ones were removed by retention: nothing can act on them any more.
                return Ok(());
            }
            self.perform_all(events).await;
        }
        Ok(())
    }

    async fn perform_all(&self, events: Vec<Event>) {
        if events.is_empty() {
            return;
        }
        let events: Arc<[Event]> = events.into();
        for performer in &self.performers {
            performer.prepare(&events).await;
            performer.perform(&events);
        }
        self.feed.publish(events);
    }

    /// Publishes all events of the store that were not published yet.
    async fn publish_new(&self) -> Result<(), store::Error> {
        self.read_up_to(u64::MAX).await
    }

    /// Reads the store until it responds: after a failed commit only the store knows whether it took
    /// effect. Until then submissions fail.
    async fn catch_up(
        &self,
        waiting: &mut Vec<Submission>,
        queue: &mut mpsc::Receiver<Submission>,
        stop: &CancellationToken,
    ) {
        self.condition.available.store(false, Ordering::Release);
        while let Err(error) = self.publish_new().await {
            warn!(%error, "the store does not respond; trying again");
            for submission in waiting.drain(..).chain(std::iter::from_fn(|| queue.try_recv().ok())) {
                let _ = submission.reply.send(Err(CommitError::Unavailable(error.to_string())));
            }
            if stop.run_until_cancelled(tokio::time::sleep(STORE_RETRY)).await.is_none() {
                return;
            }
        }
        self.condition.available.store(true, Ordering::Release);
        info!("the store responds again");
    }
}

#[cfg(test)]
mod tests {
    use downbeat_core::{Timestamp, level};
    use downbeat_store::MemoryStore;
    use uuid::Uuid;

    use super::*;

    #[tokio::test]
    async fn a_kind_above_the_common_level_is_refused_with_all_changes_of_its_submission() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let (common, stop) = (CommonLevel::default(), CancellationToken::new());
        let feed = Feed::new(0);
        let server = ServerId(Uuid::from_u128(1));
        let (journal, task) = Journal::start(
            Arc::clone(&store),
            server,
            feed,
            Vec::new(),
            Metrics::new(),
            common.clone(),
            stop.clone(),
        );
        let at = Timestamp::UNIX_EPOCH;
        let known = Change::RunCancelRequested { run: "none".to_owned().into(), by: "ada".to_owned(), at };
        let newer = Change::Unknown { name: "job_stored".to_owned(), run: None, at };
        // It reaches the store, which has no such run.
        assert_eq!(journal.commit(vec![known.clone()]).await.unwrap(), [Err(Refusal::NotFound)]);
        let refused = [Err(Refusal::NotKnownToAll), Err(Refusal::NotKnownToAll)];
        assert_eq!(journal.commit(vec![known.clone(), newer]).await.unwrap(), refused);
        // A server with a lower level joins.
        common.update(level::common([level::LEVEL, 0]));
        assert_eq!(journal.commit(vec![known.clone()]).await.unwrap(), [Err(Refusal::NotKnownToAll)]);
        common.update(level::common([level::LEVEL, level::LEVEL + 1]));
        assert_eq!(journal.commit(vec![known]).await.unwrap(), [Err(Refusal::NotFound)]);
        stop.cancel();
        task.await.unwrap();
    }

    /// A store that waits before each commit, and notes how many changes each has.
    #[derive(Debug)]
    struct Held {
        store: MemoryStore,
        open: Arc<tokio::sync::Semaphore>,
        commits: Arc<Mutex<Vec<usize>>>,
    }

    #[async_trait::async_trait]
    impl store::Wrapper for Held {
        fn store(&self) -> &dyn Store {
            &self.store
        }

        async fn commit(
            &self,
            server: ServerId,
            changes: &[Change],
        ) -> Result<store::Committed, store::Error> {
            self.commits.lock().unwrap().push(changes.len());
            let _permit = self.open.acquire().await.unwrap();
            self.store.commit(server, changes).await
        }
    }

    #[tokio::test]
    async fn submissions_are_batched_up_to_the_bytes_and_parts_follow_one_by_one() {
        let (open, commits) = (Arc::new(tokio::sync::Semaphore::new(0)), Arc::new(Mutex::default()));
        let held = Held { store: MemoryStore::new(), open: Arc::clone(&open), commits: Arc::clone(&commits) };
        let stop = CancellationToken::new();
        let (journal, task) = Journal::start(
            Arc::new(store::Wrapped(held)),
            ServerId(Uuid::from_u128(1)),
            Feed::new(0),
            Vec::new(),
            Metrics::new(),
            CommonLevel::default(),
            stop.clone(),
        );
        let change = |bytes| Change::RunCancelRequested {
            run: "none".to_owned().into(),
            by: "x".repeat(bytes),
            at: Timestamp::UNIX_EPOCH,
        };
        let third = limits::COMMIT_BYTES / 3;
        let sizes = [1, 1, third, third, third, 1, 2 * limits::COMMIT_BYTES, 1, third];
        let parts = [1, 7];
        let mut submitted = tokio::task::JoinSet::new();
        for (index, bytes) in sizes.into_iter().enumerate() {
            let (own, changes) = (journal.clone(), vec![change(bytes); if index == 0 { 2 } else { 1 }]);
            let is_part = parts.contains(&index);
            submitted.spawn(async move {
                if is_part { own.commit_part(changes).await } else { own.commit(changes).await }
            });
            // The first is being written while the others queue up, in this order.
            let queued = || journal.submissions.max_capacity() - journal.submissions.capacity();
            while commits.lock().unwrap().is_empty() || queued() < index {
                tokio::task::yield_now().await;
            }
        }
        open.add_permits(sizes.len());
        while let Some(outcome) = submitted.join_next().await {
            outcome.unwrap().unwrap();
        }
        // A submission is never divided.
        assert_eq!(*commits.lock().unwrap(), [2, 2, 2, 1, 1, 1, 1]);
        stop.cancel();
        task.await.unwrap();
    }
}
