//! Owns the group commit: a batch is whatever queued up while the last one was being written.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use downbeat_core::ids::ServerId;
use downbeat_core::{Applied, Change, Event, Refusal};
use downbeat_store::{self as store, EventFilter, Hint, Store};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, error, info, warn};

use super::Feed;
use crate::cluster::CommonLevel;
use crate::metrics::Metrics;

/// Submissions that may wait for the next batch. Beyond it submitters wait: back-pressure, not memory.
const QUEUE: usize = 4_096;
/// Submissions in one batch. Bounds how long one transaction takes.
const BATCH: usize = 1_024;
/// Events that are read at once when catching up with the store.
const CATCH_UP: u32 = 1_000;
/// How often the store is read without a hint: hints may get lost.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How long to wait before asking a store again that was away.
const STORE_RETRY: Duration = Duration::from_millis(250);

/// How long a failed commit counts against the store when nobody has committed anything since.
const FAILURE_COUNTS: Duration = Duration::from_secs(10);

/// Whoever acts on what was committed. Called in the order of commits, before the submitters are answered.
pub(crate) trait Perform: Send + Sync + std::fmt::Debug {
    fn perform(&self, events: &Arc<[Event]>);
}

/// A handle to the journal; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    submissions: mpsc::Sender<Submission>,
    condition: Arc<Condition>,
    level: CommonLevel,
}

/// How the store took what was last written.
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
    answer: oneshot::Sender<Result<Vec<Applied>, Lost>>,
}

/// The commit failed. It may or may not have taken effect: what a submission relied on has to be looked at again.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot commit: {0}")]
pub(crate) struct Lost(pub String);

impl Journal {
    /// Starts the journal's task. It ends when `stop` is cancelled and everything submitted is answered.
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
        let writer = Writer {
            store,
            server,
            feed,
            performers,
            metrics,
            condition: Arc::clone(&condition),
            is_shared,
            hints,
        };
        let task = tokio::spawn(writer.run(queue, stop).in_current_span());
        (Self { submissions, condition, level }, task)
    }

    /// Commits changes together with whatever others submit. Answers for each change, in order.
    pub(crate) async fn commit(&self, changes: Vec<Change>) -> Result<Vec<Applied>, Lost> {
        if !changes.iter().all(|change| self.level.allows(change)) {
            // Whoever decides asks first; half of what was decided is not what was decided.
            return Ok(vec![Err(Refusal::NotKnownToAll); changes.len()]);
        }
        let stopped = || Lost("the server is stopping".to_owned());
        let (answer, answered) = oneshot::channel();
        self.submissions.send(Submission { changes, answer }).await.map_err(|_| stopped())?;
        answered.await.map_err(|_| stopped())?
    }

    /// Commits one change, together with changes that others submit.
    pub(crate) async fn commit_one(&self, change: Change) -> Result<Applied, Lost> {
        let mut outcomes = self.commit(vec![change]).await?;
        outcomes.pop().ok_or_else(|| Lost("the journal returned no outcome".to_owned()))
    }

    /// Whether the last commit went through.
    pub(crate) fn is_available(&self) -> bool {
        self.condition.available.load(Ordering::Acquire)
    }

    /// Why the store does not take what is written, as far as the last commits show.
    pub(crate) fn trouble(&self) -> Option<String> {
        match &*self.condition.failed() {
            Some((at, why)) if at.elapsed() < FAILURE_COUNTS || !self.is_available() => Some(why.clone()),
            _ if !self.is_available() => Some("the store does not answer".to_owned()),
            _ => None,
        }
    }
}

/// Waits until another server may have committed something.
async fn others_committed(hints: &mut Option<broadcast::Receiver<Hint>>) {
    let Some(hints) = hints else { return std::future::pending().await };
    let heard = async {
        loop {
            match hints.recv().await {
                Ok(Hint::Events | Hint::Anything) | Err(RecvError::Lagged(_)) => break,
                Ok(Hint::Servers | Hint::Output(_)) => {}
                Err(RecvError::Closed) => std::future::pending().await,
            }
        }
        // What follows at once is answered by the same look.
        while hints.try_recv().is_ok() {}
    };
    // Running out of time is a reason to look as well.
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
    /// Of other servers; nothing when there can be none.
    hints: Option<broadcast::Receiver<Hint>>,
}

impl Writer {
    async fn run(mut self, mut queue: mpsc::Receiver<Submission>, stop: CancellationToken) {
        let mut batch = Vec::with_capacity(BATCH);
        let mut hints = self.hints.take();
        loop {
            tokio::select! {
                biased;
                received = queue.recv_many(&mut batch, BATCH) => {
                    if received == 0 {
                        return;
                    }
                }
                () = others_committed(&mut hints) => {
                    if let Err(error) = self.read_on().await {
                        warn!(%error, "cannot read what other servers committed");
                        self.catch_up(&mut queue, &stop).await;
                    }
                    continue;
                }
                () = stop.cancelled() => {
                    // What was submitted before is still written; later submissions are turned away.
                    queue.close();
                    if queue.recv_many(&mut batch, BATCH).await == 0 {
                        return;
                    }
                }
            }
            if !self.write(std::mem::take(&mut batch)).await {
                self.catch_up(&mut queue, &stop).await;
            }
        }
    }

    /// False: the store failed, and nobody knows whether the batch took effect.
    async fn write(&self, batch: Vec<Submission>) -> bool {
        let (mut changes, mut answers) = (Vec::new(), Vec::with_capacity(batch.len()));
        for submission in batch {
            answers.push((submission.changes.len(), submission.answer));
            changes.extend(submission.changes);
        }
        let begun = Instant::now();
        match self.store.commit(self.server, &changes).await {
            Ok(committed) => {
                if self.condition.failed().take().is_some() {
                    info!("the store takes commits again");
                }
                self.metrics.on_commit(changes.len(), begun.elapsed());
                let refused = committed.outcomes.iter().any(Result::is_err);
                let mut known = self.publish(changes, &committed.seqs).await;
                if refused && self.is_shared {
                    // What another server did is why: whoever hears of the refusal is to know of that, too.
                    known &= self.read_on().await.is_ok();
                }
                let mut outcomes = committed.outcomes.into_iter();
                for (count, answer) in answers {
                    // The submitter may have gone away: what it asked for is done all the same.
                    let _ = answer.send(Ok(outcomes.by_ref().take(count).collect()));
                }
                known
            }
            Err(store::Error::Corrupt(why)) if answers.len() > 1 => {
                // One submission is at fault, and must not take the others with it.
                warn!(%why, "a batch was refused by the store; writing its parts one by one");
                let mut changes = changes.into_iter();
                let mut well = true;
                for (count, answer) in answers {
                    let part: Vec<Change> = changes.by_ref().take(count).collect();
                    well &= Box::pin(self.write(vec![Submission { changes: part, answer }])).await;
                }
                well
            }
            Err(error) => {
                error!(%error, "cannot commit");
                *self.condition.failed() = Some((Instant::now(), error.to_string()));
                for (_, answer) in answers {
                    let _ = answer.send(Err(Lost(error.to_string())));
                }
                false
            }
        }
    }

    /// Hands committed changes on, in the order of their numbers. False: there is a gap before them, and the store did
    /// not answer what is in it.
    async fn publish(&self, changes: Vec<Change>, seqs: &[Option<u64>]) -> bool {
        let mut events: Vec<Event> = changes
            .into_iter()
            .zip(seqs)
            .filter_map(|(change, seq)| Some(Event { seq: (*seq)?, server: self.server, change }))
            .collect();
        events.sort_unstable_by_key(|event| event.seq);
        if let Some(first) = events.first()
            && self.read_up_to(first.seq).await.is_err()
        {
            return false;
        }
        self.hand_on(events);
        true
    }

    /// Numbers have no gaps: what lies before this one was committed by another server, or by this one without its
    /// knowing.
    async fn read_up_to(&self, seq: u64) -> Result<(), store::Error> {
        while self.feed.last_seq() + 1 < seq {
            let missing = seq - 1 - self.feed.last_seq();
            let filter = EventFilter { since: self.feed.last_seq(), run: None };
            let limit = u32::try_from(missing).unwrap_or(u32::MAX).min(CATCH_UP);
            let events = self.store.events(&filter, limit).await?;
            if events.is_empty() {
                // They are past retention: nobody can act on them any more.
                return Ok(());
            }
            self.hand_on(events);
        }
        Ok(())
    }

    fn hand_on(&self, events: Vec<Event>) {
        if events.is_empty() {
            return;
        }
        let events: Arc<[Event]> = events.into();
        for performer in &self.performers {
            performer.perform(&events);
        }
        self.feed.publish(events);
    }

    /// Hands on whatever the store has beyond what was handed on.
    async fn read_on(&self) -> Result<(), store::Error> {
        loop {
            let filter = EventFilter { since: self.feed.last_seq(), run: None };
            let events = self.store.events(&filter, CATCH_UP).await?;
            if events.is_empty() {
                return Ok(());
            }
            self.hand_on(events);
        }
    }

    /// After a failed commit nobody knows whether it took effect: the store does. Until it answers, submitters are
    /// told that it does not.
    async fn catch_up(&self, queue: &mut mpsc::Receiver<Submission>, stop: &CancellationToken) {
        self.condition.available.store(false, Ordering::Release);
        while let Err(error) = self.read_on().await {
            warn!(%error, "the store does not answer");
            while let Ok(submission) = queue.try_recv() {
                let _ = submission.answer.send(Err(Lost(error.to_string())));
            }
            tokio::select! {
                biased;
                () = tokio::time::sleep(STORE_RETRY) => {}
                () = stop.cancelled() => return,
            }
        }
        self.condition.available.store(true, Ordering::Release);
        info!("the store answers again");
    }
}

#[cfg(test)]
mod tests {
    use downbeat_core::{Timestamp, level};
    use downbeat_store::MemoryStore;
    use uuid::Uuid;

    use super::*;

    #[tokio::test]
    async fn a_kind_above_the_common_level_is_refused_with_all_that_was_decided_beside_it() {
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
        // It reaches the store, which knows no such run.
        assert_eq!(journal.commit(vec![known.clone()]).await.unwrap(), [Err(Refusal::NotFound)]);
        let refused = [Err(Refusal::NotKnownToAll), Err(Refusal::NotKnownToAll)];
        assert_eq!(journal.commit(vec![known.clone(), newer]).await.unwrap(), refused);
        // A server lives that knows less than the first level; none does, but a later level falls in this way.
        common.update(level::common([level::LEVEL, 0]));
        assert_eq!(journal.commit(vec![known.clone()]).await.unwrap(), [Err(Refusal::NotKnownToAll)]);
        common.update(level::common([level::LEVEL, level::LEVEL + 1]));
        assert_eq!(journal.commit(vec![known]).await.unwrap(), [Err(Refusal::NotFound)]);
        stop.cancel();
        task.await.unwrap();
    }
}
