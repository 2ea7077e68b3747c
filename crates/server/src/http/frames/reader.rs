//! Reads events for frames: from the store while it is behind, then from the feed.

use std::ops::ControlFlow;
use std::time::Duration;

use downbeat_api::{Frame, Gap, ServerState};
use downbeat_core::{Portion, limits};
use downbeat_store as store;
use tokio::time::Instant;

use super::gather::{Gather, Topics};
use crate::caller::Caller;
use crate::http::follow::{Wanted, find_gap};
use crate::http::live::{Ready, Source, sse};
use crate::http::problem::HttpResult;
use crate::http::system::servers_alive;
use crate::journal::Batches;
use crate::service::Service;

/// What is read from the store at once.
const READ: Portion = Portion::new(limits::EVENTS_AT_ONCE, limits::EVENTS_AT_ONCE_BYTES);

/// The least time between two frames.
const BETWEEN_FRAMES: Duration = Duration::from_millis(100);

/// How often to check the store and the servers while the feed is silent.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// A stream of frames. It holds the net change since the last frame, and at most one read of the store.
pub(super) struct Reader {
    service: Service,
    caller: Caller,
    feed: Batches,
    gather: Gather,
    /// Everything up to this number is in a frame or in `gather`.
    seen: u64,
    is_behind: bool,
    /// The next frame is not sent before this time.
    next_frame: Instant,
    next_look: Instant,
    servers: Vec<ServerState>,
}

impl Reader {
    pub(super) fn new(service: Service, caller: Caller, feed: Batches, topics: Topics, since: u64) -> Self {
        let mut gather = Gather::new(topics);
        gather.start_at(since);
        let now = Instant::now();
        Self {
            service,
            caller,
            feed,
            gather,
            seen: since,
            is_behind: true,
            next_frame: now,
            next_look: now,
            servers: Vec::new(),
        }
    }

    /// Reads one page from the store. Returns the number of the first event that can still be sent, if some are missing.
    async fn read_store(&mut self) -> Result<Option<u64>, store::Error> {
        let store = self.service.views();
        let committed = store.last_seq().await?;
        if committed.saturating_sub(self.seen) > limits::LIVE_REPLAYED {
            return Ok(Some(committed + 1));
        }
        let filter = Wanted::default().after(self.seen);
        let page = store.events(&filter, READ).await?;
        let gap = find_gap(&**store, &filter, &page).await?;
        if gap.is_some() {
            return Ok(gap);
        }
        for event in &page {
            self.gather.add(event);
            self.seen = event.seq;
        }
        // What was committed since then is in the feed.
        self.is_behind = !page.is_empty() && self.seen < committed;
        Ok(None)
    }

    /// Waits for the next batch of the feed, until a time.
    async fn read_feed(&mut self, until: Instant) {
        match tokio::time::timeout_at(until, self.feed.next()).await {
            Ok(Some(batch)) => {
                for event in batch.iter() {
                    if event.seq > self.seen + 1 {
                        // Another server committed in between: read it from the store.
                        self.is_behind = true;
                        return;
                    }
                    if event.seq > self.seen {
                        self.gather.add(event);
                        self.seen = event.seq;
                    }
                }
            }
            Ok(None) => self.is_behind = true,
            Err(_) => {}
        }
    }

    /// Checks whether the feed has missed something, and whether servers have come or gone.
    async fn look_again(&mut self) -> HttpResult<()> {
        self.next_look = Instant::now() + LOOK_AGAIN;
        self.is_behind |= self.service.views().last_seq().await? > self.seen;
        if self.gather.topics().servers {
            let servers = servers_alive(&self.service, &self.caller).await?;
            if servers != self.servers {
                self.servers.clone_from(&servers);
                self.gather.set_servers(servers);
            }
        }
        Ok(())
    }
}

impl Source for Reader {
    async fn read(&mut self, ready: &mut Ready) -> HttpResult<ControlFlow<()>> {
        let now = Instant::now();
        if self.gather.is_cut() {
            self.gather.start_at(self.seen);
            ready.push_back(sse(Gap::NAME, &Gap { first: self.seen + 1 }).id(self.seen.to_string()));
        } else if !self.gather.is_empty() && (now >= self.next_frame || self.gather.is_full()) {
            let frame = self.gather.take_frame();
            self.next_frame = now + BETWEEN_FRAMES;
            ready.push_back(sse(Frame::NAME, &frame).id(frame.seq.to_string()));
        } else if now >= self.next_look {
            self.look_again().await?;
        } else if self.is_behind {
            if let Some(first) = self.read_store().await? {
                self.seen = first - 1;
                self.gather.start_at(self.seen);
                ready.push_back(sse(Gap::NAME, &Gap { first }).id(self.seen.to_string()));
            }
        } else {
            let until = if self.gather.is_empty() { self.next_look } else { self.next_frame };
            self.read_feed(until).await;
        }
        Ok(ControlFlow::Continue(()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use downbeat_core::Change;
    use downbeat_core::ids::{ClusterId, NodeId};
    use downbeat_store::MemoryStore;

    use super::*;
    use crate::testing::register;
    use crate::{Server, Settings, Surroundings, start_within};

    const HOSTNAME: &str = "web-01";

    async fn server() -> Server {
        let settings = Settings { name: "one".to_owned(), ..Settings::default() };
        let store = Arc::new(MemoryStore::new());
        let server = start_within(settings, store, Surroundings::default()).await.unwrap();
        server.link().register(register(HOSTNAME)).await.unwrap();
        server
    }

    /// Returns a reader of nodes that starts after the last event.
    async fn reader(service: &Service) -> Reader {
        let topics = Topics { nodes: true, ..Topics::default() };
        let (feed, since) = (service.parts.feed.subscribe(), service.views().last_seq().await.unwrap());
        Reader::new(service.clone(), Caller::named("ada"), feed, topics, since)
    }

    /// Commits the given change of the node's drain.
    async fn drain(service: &Service, draining: bool) {
        let node = NodeId::derive(ClusterId::DEFAULT, HOSTNAME);
        let (by, at) = ("ada".to_owned(), service.now());
        service
            .parts
            .journal
            .commit_one(Change::NodeDrainSet { node, draining, by, at })
            .await
            .unwrap()
            .unwrap();
    }

    /// Returns how many events a read adds.
    async fn read(reader: &mut Reader) -> usize {
        let mut ready = Ready::new();
        assert!(reader.read(&mut ready).await.unwrap().is_continue());
        ready.len()
    }

    #[tokio::test(start_paused = true)]
    async fn frames_are_sent_though_events_are_committed_between_all_reads() {
        let server = server().await;
        let service = server.service();
        let mut reader = reader(service).await;
        let mut frames = 0;
        for round in 0..20 {
            drain(service, round % 2 == 0).await;
            frames += read(&mut reader).await;
        }
        assert_eq!(frames, 1, "the time for the next one has not come");
        tokio::time::advance(BETWEEN_FRAMES).await;
        drain(service, true).await;
        assert_eq!(read(&mut reader).await, 1);
        assert!(!reader.is_behind, "the feed has the rest");
    }

    #[tokio::test(start_paused = true)]
    async fn many_changes_are_one_frame_when_its_time_has_come() {
        let server = server().await;
        let service = server.service();
        let mut reader = reader(service).await;
        drain(service, true).await;
        while read(&mut reader).await == 0 {}
        let first = Instant::now();
        for round in 0..60 {
            drain(service, round % 2 == 1).await;
        }
        // The paused clock goes on only while the reader waits.
        while read(&mut reader).await == 0 {}
        assert!(first.elapsed() >= BETWEEN_FRAMES);
        assert_eq!(reader.seen, service.views().last_seq().await.unwrap());
        assert!(reader.gather.is_empty(), "one frame had all changes");
    }
}
