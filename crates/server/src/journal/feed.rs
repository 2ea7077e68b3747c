//! Owns the feed: committed events, in order, for live streams. Whoever falls behind reads the store instead.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use downbeat_core::Event;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

/// Batches that a slow stream may be behind before it has to go back to the store.
const BATCHES: usize = 1_024;

/// What was committed, as it is committed.
#[derive(Clone, Debug)]
pub struct Feed {
    sender: broadcast::Sender<Arc<[Event]>>,
    last: Arc<AtomicU64>,
}

impl Feed {
    pub(crate) fn new(last: u64) -> Self {
        Self { sender: broadcast::channel(BATCHES).0, last: Arc::new(AtomicU64::new(last)) }
    }

    /// Batches from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<[Event]>> {
        self.sender.subscribe()
    }

    /// The sequence number of the last event that was published.
    pub fn last_seq(&self) -> u64 {
        self.last.load(Ordering::Acquire)
    }

    /// What was published before is of another store, or was missed.
    pub(crate) fn restart(&self, last: u64) {
        self.last.store(last, Ordering::Release);
    }

    /// Waits until everything up to this number was published, and so acted on.
    pub(crate) async fn reached(&self, seq: u64) {
        let mut batches = self.subscribe();
        while self.last_seq() < seq {
            // A batch that was missed was published as well.
            if let Err(RecvError::Closed) = batches.recv().await {
                return;
            }
        }
    }

    pub(crate) fn publish(&self, events: Arc<[Event]>) {
        if let Some(event) = events.last() {
            self.last.store(event.seq, Ordering::Release);
            // No stream is open: nobody to tell.
            let _ = self.sender.send(events);
        }
    }
}
