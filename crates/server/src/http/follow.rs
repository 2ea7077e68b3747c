//! Follows events: from the store up to now, then live from the feed, each exactly once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use downbeat_api::Event;
use downbeat_core::change::{Change, Event as Record};
use downbeat_core::ids::RunId;
use downbeat_core::run::RunRecord;
use downbeat_core::{Portion, limits};
use downbeat_store::{self as store, EventFilter, Store};

use crate::journal::Batches;

/// What is read from the store at once.
const READ: Portion = Portion::new(limits::EVENTS_AT_ONCE, limits::EVENTS_AT_ONCE_BYTES);
/// How often to check the store while the feed is silent: the feed may have missed another server's commit.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Which events to send, and until when.
#[derive(Clone, Debug)]
pub(super) enum Scope {
    All,
    /// Events of a run, without an end.
    Run(RunId),
    /// Events of a run, until it has ended.
    UntilEnd(RunId),
}

/// A reader of events. It buffers at most one read of the store or one batch of the feed.
#[derive(Debug)]
pub(super) struct Follower {
    store: Arc<dyn Store>,
    feed: Batches,
    scope: Scope,
    /// Everything up to this number was sent, or is not in scope.
    seen: u64,
    ready: VecDeque<Event>,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// There may be more in the store.
    Behind,
    Live,
    /// The run has ended: the store holds all of its events.
    Last,
    Ended,
}

impl Scope {
    fn run(&self) -> Option<&RunId> {
        match self {
            Scope::All => None,
            Scope::Run(run) | Scope::UntilEnd(run) => Some(run),
        }
    }
}

impl Follower {
    /// Subscribe to `feed` before the store is read, so that no event falls between the two.
    pub(super) fn new(store: Arc<dyn Store>, feed: Batches, scope: Scope, since: u64) -> Self {
        Self { store, feed, scope, seen: since, ready: VecDeque::new(), phase: Phase::Behind }
    }

    pub(super) async fn next(&mut self) -> Result<Option<Event>, store::Error> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            match self.phase {
                Phase::Behind | Phase::Last => self.read_store().await?,
                Phase::Live => self.read_feed().await?,
                Phase::Ended => return Ok(None),
            }
        }
    }

    /// Returns the run whose end was the end of the events.
    pub(super) async fn ended_run(&self) -> Result<Option<RunRecord>, store::Error> {
        match &self.scope {
            Scope::UntilEnd(run) => self.store.run(run).await,
            Scope::All | Scope::Run(_) => Ok(None),
        }
    }

    async fn read_store(&mut self) -> Result<(), store::Error> {
        // Read before the page: everything up to this number is then seen, even if it belongs to other runs.
        let committed = self.store.last_seq().await?;
        let filter = EventFilter { since: self.seen, run: self.scope.run().cloned() };
        let page = self.store.events(&filter, READ).await?;
        for record in &page {
            self.take(record);
        }
        if !page.is_empty() || self.phase == Phase::Ended {
            return Ok(());
        }
        self.seen = self.seen.max(committed);
        self.phase = match (&self.scope, self.phase) {
            (Scope::UntilEnd(_), Phase::Last) => Phase::Ended,
            (Scope::UntilEnd(run), _) => match self.store.run(run).await? {
                // Its end may have been committed after the page was read.
                Some(run) if run.state().is_terminal() => Phase::Last,
                Some(_) => Phase::Live,
                None => Phase::Ended,
            },
            (Scope::All | Scope::Run(_), _) => Phase::Live,
        };
        Ok(())
    }

    async fn read_feed(&mut self) -> Result<(), store::Error> {
        match tokio::time::timeout(LOOK_AGAIN, self.feed.next()).await {
            Ok(Some(batch)) => {
                for record in batch.iter() {
                    if record.seq > self.seen + 1 {
                        // Another server committed in between: read it from the store.
                        self.phase = Phase::Behind;
                        return Ok(());
                    }
                    if record.seq > self.seen {
                        self.take(record);
                    }
                }
            }
            Ok(None) => self.phase = Phase::Behind,
            Err(_) => {
                if self.store.last_seq().await? > self.seen {
                    self.phase = Phase::Behind;
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, record: &Record) {
        self.seen = record.seq;
        if self.scope.run().is_some_and(|run| record.change.run() != Some(run)) {
            return;
        }
        self.ready.push_back(Event::of(record));
        if matches!(self.scope, Scope::UntilEnd(_)) && ends_its_run(&record.change) {
            self.phase = Phase::Ended;
        }
    }
}

fn ends_its_run(change: &Change) -> bool {
    matches!(change, Change::RunMoved { path, .. } if path.last().is_some_and(|state| state.is_terminal()))
}

#[cfg(test)]
mod tests {
    use downbeat_core::Timestamp;
    use downbeat_core::ids::{ClusterId, NodeId, ServerId, SessionId};
    use downbeat_core::node::{Description, Former, Registration};
    use downbeat_store::MemoryStore;

    use super::*;
    use crate::journal::Feed;

    const DEADLINE: Duration = Duration::from_secs(10);

    struct Journal {
        store: Arc<dyn Store>,
        feed: Feed,
    }

    impl Journal {
        /// The feed holds two batches; a reader that is further behind has lagged.
        fn new() -> Self {
            Self::with(Feed::bounded(0, 2, usize::MAX))
        }

        fn with(feed: Feed) -> Self {
            Self { store: Arc::new(MemoryStore::new()), feed }
        }

        fn follower(&self, since: u64) -> Follower {
            Follower::new(Arc::clone(&self.store), self.feed.subscribe(), Scope::All, since)
        }

        /// Commits one change. `Publish::Not`: as another server, so that the feed does not get it.
        async fn commit(&self, publish: Publish) {
            let hostname = "web-01".to_owned();
            let node = NodeId::derive(ClusterId::DEFAULT, &hostname);
            let description = Description {
                hostname,
                groups: Vec::new(),
                labels: [].into(),
                capabilities: [].into(),
                backends: Vec::new(),
                slots: 1,
                version: String::new(),
            };
            let (session, at) = (SessionId(uuid::Uuid::nil()), Timestamp::UNIX_EPOCH);
            let registration = Registration {
                node,
                cluster: ClusterId::DEFAULT,
                session,
                description,
                installation: None,
                undelivered: Vec::new(),
                former: Former::Any,
                at,
            };
            let change = Change::NodeRegistered { registration };
            let server = ServerId(uuid::Uuid::nil());
            let committed = self.store.commit(server, std::slice::from_ref(&change)).await.unwrap();
            if publish == Publish::ToFeed {
                let seq = committed.seqs[0].unwrap();
                self.feed.publish(Arc::from([Record { seq, server, change }]));
            }
        }
    }

    #[derive(PartialEq)]
    enum Publish {
        ToFeed,
        Not,
    }

    async fn numbers(follower: &mut Follower, count: usize) -> Vec<u64> {
        let mut numbers = Vec::new();
        for _ in 0..count {
            let next = tokio::time::timeout(DEADLINE, follower.next()).await;
            numbers.push(next.expect("an event comes").unwrap().unwrap().seq);
        }
        numbers
    }

    #[tokio::test]
    async fn what_is_in_the_store_and_in_the_feed_is_sent_once() {
        let journal = Journal::new();
        journal.commit(Publish::ToFeed).await;
        let mut follower = journal.follower(0);
        journal.commit(Publish::ToFeed).await;
        assert_eq!(numbers(&mut follower, 2).await, [1, 2]);
        journal.commit(Publish::ToFeed).await;
        assert_eq!(numbers(&mut follower, 1).await, [3]);
    }

    #[tokio::test]
    async fn a_reader_that_lags_goes_back_to_the_store() {
        let journal = Journal::new();
        let mut follower = journal.follower(0);
        journal.commit(Publish::ToFeed).await;
        assert_eq!(numbers(&mut follower, 1).await, [1]);
        for _ in 0..10 {
            journal.commit(Publish::ToFeed).await;
        }
        assert_eq!(numbers(&mut follower, 10).await, (2..=11).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_reader_for_which_too_many_bytes_wait_goes_back_to_the_store() {
        let journal = Journal::with(Feed::bounded(0, 1_000, 1_000));
        let mut follower = journal.follower(0);
        journal.commit(Publish::ToFeed).await;
        assert_eq!(numbers(&mut follower, 1).await, [1]);
        for _ in 0..100 {
            journal.commit(Publish::ToFeed).await;
        }
        assert_eq!(numbers(&mut follower, 100).await, (2..=101).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn what_another_server_committed_in_between_is_not_skipped() {
        let journal = Journal::new();
        let mut follower = journal.follower(0);
        journal.commit(Publish::ToFeed).await;
        assert_eq!(numbers(&mut follower, 1).await, [1]);
        journal.commit(Publish::Not).await;
        journal.commit(Publish::ToFeed).await;
        assert_eq!(numbers(&mut follower, 2).await, [2, 3]);
    }

    #[tokio::test]
    async fn what_another_server_committed_is_found_though_the_feed_is_silent() {
        let journal = Journal::new();
        let mut follower = journal.follower(0);
        journal.commit(Publish::ToFeed).await;
        assert_eq!(numbers(&mut follower, 1).await, [1]);
        journal.commit(Publish::Not).await;
        assert_eq!(numbers(&mut follower, 1).await, [2]);
    }

    #[tokio::test]
    async fn more_than_one_read_of_the_store_is_sent_in_order() {
        let journal = Journal::new();
        let last = 301;
        for _ in 0..last {
            journal.commit(Publish::Not).await;
        }
        let mut follower = journal.follower(7);
        assert_eq!(
            numbers(&mut follower, usize::try_from(last - 7).unwrap()).await,
            (8..=last).collect::<Vec<_>>()
        );
    }
}
