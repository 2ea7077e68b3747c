//! Owns the starts of runs as a client sees them on a live stream: a run that it sees is durable.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use downbeat_api::Event;
use downbeat_client::Feed;
use downbeat_core::Timestamp;
use tokio::task::JoinHandle;

use crate::failure::{Failure, Result};
use crate::figures::Latencies;

#[derive(Debug, Default)]
struct Seen {
    /// The time of each run, and how much later its start was seen.
    starts: Vec<(Timestamp, Duration)>,
    failure: Option<Failure>,
}

/// Follows the stream of new runs until it is dropped.
#[derive(Debug)]
pub(super) struct Starts {
    seen: Arc<Mutex<Seen>>,
    following: JoinHandle<()>,
}

impl Starts {
    pub(super) fn follow(mut feed: Feed) -> Self {
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let shared = Arc::clone(&seen);
        let following = tokio::spawn(async move {
            loop {
                let next = feed.next().await;
                let now = Timestamp::now();
                let mut seen = shared.lock().unwrap_or_else(PoisonError::into_inner);
                let event = match next {
                    Ok(Some(message)) => message.decode::<Event>().map_err(Failure::from),
                    Ok(None) => Err(Failure::bug("the event stream ended")),
                    Err(error) => Err(error.into()),
                };
                match event {
                    Ok(event) => seen.take(&event, now),
                    Err(failure) => {
                        seen.failure = Some(failure);
                        return;
                    }
                }
            }
        });
        Self { seen, following }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how late the starts of all times from `from` until `until` were.
    pub(super) fn late(&self, from: Timestamp, until: Timestamp) -> Result<Latencies> {
        let seen = self.seen();
        if let Some(failure) = &seen.failure {
            return Err(failure.clone());
        }
        let mut latencies = Latencies::default();
        let within = seen.starts.iter().filter(|(at, _)| (from..=until).contains(at));
        within.for_each(|(_, late)| latencies.add(*late));
        Ok(latencies)
    }
}

impl Drop for Starts {
    fn drop(&mut self) {
        self.following.abort();
    }
}

impl Seen {
    fn take(&mut self, event: &Event, now: Timestamp) {
        if let Some((_, _, at)) = event.run.as_ref().and_then(|run| run.schedule()) {
            self.starts.push((at, Duration::try_from(now.duration_since(at)).unwrap_or_default()));
        }
    }
}
