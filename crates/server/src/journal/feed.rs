//! Owns the feed: committed events, in order, for live streams. A reader that falls behind reads the store instead.
//!
//! The events that wait for the slowest reader are limited in bytes: a batch may be large, and a stalled
//! reader (a paused `curl`) would otherwise keep a thousand of them in memory.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use downbeat_api::Event as EventView;
use downbeat_core::{Event, limits};
use tokio::sync::broadcast;

use crate::signal::heard;

/// How many batches a slow stream may be behind before it has to read the store.
const BATCHES: usize = 1_024;

#[derive(Clone, Debug)]
pub(crate) struct Feed {
    sender: broadcast::Sender<Arc<Batch>>,
    last: Arc<AtomicU64>,
    waiting: Arc<Waiting>,
}

/// Committed events, each with the text that clients get. A text is made once, however many streams send it.
#[derive(Debug)]
pub(crate) struct Published {
    events: Arc<[Event]>,
    texts: Box<[OnceLock<Arc<str>>]>,
}

/// One batch in the feed. It exists until its last reader has received it.
#[derive(Debug)]
struct Batch {
    /// `None`: this batch was dropped because too many bytes waited for slow readers.
    events: Mutex<Option<Arc<Published>>>,
    bytes: usize,
    /// The bytes of all waiting batches, without dropped ones.
    total: Arc<AtomicUsize>,
}

/// The batches that some reader has not received yet.
#[derive(Debug)]
struct Waiting {
    most_bytes: usize,
    bytes: Arc<AtomicUsize>,
    /// The oldest first. Batches that all readers have received no longer exist.
    batches: Mutex<VecDeque<Weak<Batch>>>,
}

#[derive(Debug)]
pub(crate) struct Batches(broadcast::Receiver<Arc<Batch>>);

impl Feed {
    pub(crate) fn new(last: u64) -> Self {
        Self::bounded(last, BATCHES, limits::FEED_BYTES)
    }

    /// Creates a feed whose readers may be this many batches and bytes behind.
    pub(crate) fn bounded(last: u64, batches: usize, most_bytes: usize) -> Self {
        let waiting = Waiting { most_bytes, bytes: Arc::default(), batches: Mutex::default() };
        Self {
            sender: broadcast::channel(batches).0,
            last: Arc::new(AtomicU64::new(last)),
            waiting: Arc::new(waiting),
        }
    }

    /// Returns a reader of all batches from now on.
    pub(crate) fn subscribe(&self) -> Batches {
        Batches(self.sender.subscribe())
    }

    pub(crate) fn last_seq(&self) -> u64 {
        self.last.load(Ordering::Acquire)
    }

    /// Continues after `last`: earlier events belong to another copy of the store.
    pub(crate) fn restart(&self, last: u64) {
        self.last.store(last, Ordering::Release);
    }

    /// Waits until everything up to this number was published, and so performed.
    pub(crate) async fn reached(&self, seq: u64) {
        let mut batches = self.subscribe();
        while self.last_seq() < seq {
            // A missed batch was published as well.
            batches.next().await;
        }
    }

    pub(crate) fn publish(&self, events: Arc<[Event]>) {
        if let Some(event) = events.last() {
            self.last.store(event.seq, Ordering::Release);
            // Computing sizes takes time, and is needed only if there are readers.
            if self.sender.receiver_count() > 0 {
                let batch = self.waiting.add(events);
                let _ = self.sender.send(batch);
            }
        }
    }
}

impl Published {
    fn new(events: Arc<[Event]>) -> Self {
        let texts = events.iter().map(|_| OnceLock::new()).collect();
        Self { events, texts }
    }

    /// Returns an event as clients get it: its view as JSON.
    pub(crate) fn text(&self, index: usize) -> Arc<str> {
        Arc::clone(self.texts[index].get_or_init(|| event_text(&self.events[index])))
    }
}

/// Returns the view of an event as JSON.
pub(crate) fn event_text(event: &Event) -> Arc<str> {
    serde_json::to_string(&EventView::of(event)).expect("views are plain data").into()
}

impl Deref for Published {
    type Target = [Event];

    fn deref(&self) -> &[Event] {
        &self.events
    }
}

impl Waiting {
    fn add(&self, events: Arc<[Event]>) -> Arc<Batch> {
        // Twice: the event itself and its text, which is about as large.
        let bytes = 2 * events.iter().map(|event| event.change.bytes()).sum::<usize>();
        let total = Arc::clone(&self.bytes);
        total.fetch_add(bytes, Ordering::AcqRel);
        let events = Mutex::new(Some(Arc::new(Published::new(events))));
        let batch = Arc::new(Batch { events, bytes, total });
        let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        while batches.front().is_some_and(|oldest| oldest.strong_count() == 0) {
            batches.pop_front();
        }
        batches.push_back(Arc::downgrade(&batch));
        // Also drops the newest batch if it is too large by itself.
        while self.bytes.load(Ordering::Acquire) > self.most_bytes {
            let Some(oldest) = batches.pop_front() else { break };
            if let Some(oldest) = oldest.upgrade() {
                oldest.forget();
            }
        }
        batch
    }
}

impl Batch {
    fn forget(&self) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if events.take().is_some() {
            self.total.fetch_sub(self.bytes, Ordering::AcqRel);
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.forget();
    }
}

impl Batches {
    /// Returns the next batch, or `None` if at least one was missed; the store has it.
    pub(crate) async fn next(&mut self) -> Option<Arc<Published>> {
        let batch = heard(&mut self.0).await?;
        batch.events.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use downbeat_core::change::About;
    use downbeat_core::ids::ServerId;
    use downbeat_core::{Change, Timestamp};
    use uuid::Uuid;

    use super::*;

    const BOUND: usize = 10_000;

    fn events(seq: u64, bytes: usize) -> Arc<[Event]> {
        let at = Timestamp::UNIX_EPOCH;
        let change = Change::RunCancelRequested { run: "r".to_owned().into(), by: "x".repeat(bytes), at };
        [Event { seq, server: ServerId(Uuid::nil()), about: About::default(), change }].into()
    }

    fn waiting(feed: &Feed) -> usize {
        feed.waiting.bytes.load(Ordering::Acquire)
    }

    async fn received(reader: &mut Batches) -> Option<u64> {
        reader.next().await.map(|events| events[0].seq)
    }

    #[tokio::test]
    async fn a_reader_that_stalls_keeps_no_more_than_the_bound_and_is_notified_that_it_missed_something() {
        let feed = Feed::bounded(0, 1_000, BOUND);
        let mut stalled = feed.subscribe();
        for seq in 1..=100 {
            feed.publish(events(seq, 1_000));
            assert!(waiting(&feed) <= BOUND, "{} bytes wait", waiting(&feed));
        }
        let mut missed = 0;
        while received(&mut stalled).await.is_none() {
            missed += 1;
        }
        assert!((90..100).contains(&missed), "{missed}");
        // The newest batches are still there, in order.
        for seq in missed + 2..=100 {
            assert_eq!(received(&mut stalled).await, Some(seq));
        }
        assert_eq!(waiting(&feed), 0);
    }

    #[tokio::test]
    async fn what_everybody_received_takes_no_memory() {
        let feed = Feed::bounded(0, 1_000, BOUND);
        let (mut one, mut two) = (feed.subscribe(), feed.subscribe());
        for seq in 1..=100 {
            let batch = events(seq, 1_000);
            let held = Arc::downgrade(&batch);
            feed.publish(batch);
            assert_eq!(received(&mut one).await, Some(seq));
            assert!(held.upgrade().is_some());
            assert_eq!(received(&mut two).await, Some(seq));
            assert!(held.upgrade().is_none());
        }
        assert_eq!(waiting(&feed), 0);
        assert!(feed.waiting.batches.lock().unwrap().len() <= 1);
    }

    #[tokio::test]
    async fn a_batch_that_is_larger_than_the_bound_is_left_to_the_store() {
        let feed = Feed::bounded(0, 1_000, BOUND);
        let mut reader = feed.subscribe();
        feed.publish(events(1, BOUND * 2));
        feed.publish(events(2, 10));
        assert_eq!(received(&mut reader).await, None);
        assert_eq!(received(&mut reader).await, Some(2));
        assert_eq!(feed.last_seq(), 2);
    }

    #[tokio::test]
    async fn a_reader_that_goes_away_leaves_nothing_behind() {
        let feed = Feed::bounded(0, 1_000, BOUND);
        let reader = feed.subscribe();
        feed.publish(events(1, 1_000));
        assert!(waiting(&feed) > 1_000);
        drop(reader);
        assert_eq!(waiting(&feed), 0);
        feed.publish(events(2, 1_000));
        assert_eq!(waiting(&feed), 0);
    }

    #[tokio::test]
    async fn all_readers_of_a_batch_share_the_text_of_an_event() {
        let feed = Feed::bounded(0, 1_000, BOUND);
        let (mut one, mut two) = (feed.subscribe(), feed.subscribe());
        feed.publish(events(1, 10));
        let texts = [one.next().await.unwrap().text(0), two.next().await.unwrap().text(0)];
        assert!(texts[0].contains("run_cancel_requested"));
        assert!(Arc::ptr_eq(&texts[0], &texts[1]));
    }
}
