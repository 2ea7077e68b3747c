//! Follows events: from the store up to now, then live from the feed, each exactly once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use downbeat_core::change::{Change, Event};
use downbeat_core::ids::{ClusterId, NodeId, RunId};
use downbeat_core::run::RunRecord;
use downbeat_core::{Portion, limits};
use downbeat_store::{self as store, EventFilter, Store};

use crate::journal::{Batches, event_text};

/// What is read from the store at once.
const READ: Portion = Portion::new(limits::EVENTS_AT_ONCE, limits::EVENTS_AT_ONCE_BYTES);
/// How often to check the store while the feed is silent: the feed may have missed another server's commit.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Which events a client wants: those that match every field that is set.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    pub(super) run: Option<RunId>,
    pub(super) cluster: Option<ClusterId>,
    pub(super) node: Option<NodeId>,
    pub(super) job: Option<String>,
    /// Empty means any.
    pub(super) kinds: Vec<&'static str>,
}

/// When a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    Forever,
    /// When the run has ended.
    RunEnd,
}

/// What a reader of events gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Item {
    Event {
        seq: u64,
        kind: String,
        /// The event's view as JSON.
        text: Arc<str>,
    },
    /// Events before this number are no longer kept.
    Gap { first: u64 },
}

/// A reader of events. It buffers at most one read of the store or one batch of the feed.
#[derive(Debug)]
pub(super) struct Follower {
    store: Arc<dyn Store>,
    feed: Batches,
    wanted: Wanted,
    until: Until,
    /// Everything up to this number was sent, or is not wanted.
    seen: u64,
    ready: VecDeque<Item>,
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

impl Wanted {
    pub(super) fn of_run(run: RunId) -> Self {
        Self { run: Some(run), ..Self::default() }
    }

    /// Returns true if the store finds the wanted events by itself.
    pub(super) fn is_indexed(&self) -> bool {
        let Self { run: _, cluster, node, job, kinds } = self;
        cluster.is_none() && node.is_none() && job.is_none() && kinds.is_empty()
    }

    pub(super) fn matches(&self, event: &Event) -> bool {
        fn is<T: PartialEq + ?Sized>(wanted: Option<&T>, found: Option<&T>) -> bool {
            wanted.is_none() || wanted == found
        }
        is(self.run.as_ref(), event.change.run())
            && is(self.cluster.as_ref(), event.about.cluster.as_ref())
            && is(self.node.as_ref(), event.node().as_ref())
            && is(self.job.as_deref(), event.about.job.as_deref())
            && (self.kinds.is_empty() || self.kinds.contains(&event.change.kind()))
    }

    /// Returns the filter for events after a number. The store finds the run's events; `matches` decides the rest.
    pub(super) fn after(&self, since: u64) -> EventFilter {
        EventFilter { since, run: self.run.clone() }
    }
}

/// Returns the number of the first kept event if some of the events after `filter.since` may be gone. `page` has the
/// events that follow it; read the page first, because pruning may remove more in between.
pub(super) async fn find_gap(
    store: &dyn Store,
    filter: &EventFilter,
    page: &[Event],
) -> Result<Option<u64>, store::Error> {
    let next = filter.since + 1;
    // A run has no events before its creation.
    let is_whole = page.first().is_some_and(|event| {
        event.seq == next || filter.run.is_some() && matches!(event.change, Change::RunCreated { .. })
    });
    if is_whole {
        return Ok(None);
    }
    let first = first_kept(store).await?;
    Ok((first > next).then_some(first))
}

/// Returns the number of the first kept event; if none is kept, the number after the last one.
pub(super) async fn first_kept(store: &dyn Store) -> Result<u64, store::Error> {
    // Read first: if nothing is kept then, all events up to this one are gone.
    let last = store.last_seq().await?;
    Ok(store.kept().await?.first_seq.unwrap_or(last + 1))
}

impl Follower {
    /// Subscribe to `feed` before the store is read, so that no event falls between the two.
    pub(super) fn new(
        store: Arc<dyn Store>,
        feed: Batches,
        wanted: Wanted,
        until: Until,
        since: u64,
    ) -> Self {
        Self { store, feed, wanted, until, seen: since, ready: VecDeque::new(), phase: Phase::Behind }
    }

    pub(super) async fn next(&mut self) -> Result<Option<Item>, store::Error> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Ok(Some(item));
            }
            match self.phase {
                Phase::Behind | Phase::Last => self.read_store().await?,
                Phase::Live => self.read_feed().await?,
                Phase::Ended => return Ok(None),
            }
        }
    }

    /// Returns the run whose end is the end of the events; none if it does not exist, or its cluster was deleted.
    async fn run(&self) -> Result<Option<RunRecord>, store::Error> {
        let (Until::RunEnd, Some(run)) = (self.until, &self.wanted.run) else { return Ok(None) };
        let Some(run) = self.store.run(run).await? else { return Ok(None) };
        // The rows of a deleted cluster are there for a while.
        Ok(self.store.cluster(&run.cluster.to_string()).await?.map(|_| run))
    }

    /// Returns the run whose end was the end of the events.
    pub(super) async fn ended_run(&self) -> Result<Option<RunRecord>, store::Error> {
        Ok(self.run().await?.filter(|run| run.state().is_terminal()))
    }

    async fn read_store(&mut self) -> Result<(), store::Error> {
        // Read before the page: everything up to this number is then seen, even if it belongs to other runs.
        let committed = self.store.last_seq().await?;
        let filter = self.wanted.after(self.seen);
        let page = self.store.events(&filter, READ).await?;
        if let Some(first) = find_gap(&*self.store, &filter, &page).await? {
            self.ready.push_back(Item::Gap { first });
            self.seen = first - 1;
            return Ok(());
        }
        for event in &page {
            self.take(event, || event_text(event));
        }
        if !page.is_empty() || self.phase == Phase::Ended {
            return Ok(());
        }
        self.seen = self.seen.max(committed);
        self.phase = match (self.until, self.phase) {
            (Until::RunEnd, Phase::Last) => Phase::Ended,
            (Until::RunEnd, _) => match self.run().await? {
                // Its end may have been committed after the page was read.
                Some(run) if run.state().is_terminal() => Phase::Last,
                Some(_) => Phase::Live,
                None => Phase::Ended,
            },
            (Until::Forever, _) => Phase::Live,
        };
        Ok(())
    }

    async fn read_feed(&mut self) -> Result<(), store::Error> {
        match tokio::time::timeout(LOOK_AGAIN, self.feed.next()).await {
            Ok(Some(batch)) => {
                for (index, event) in batch.iter().enumerate() {
                    let may_be_gone = matches!(event.change, Change::ClusterDeleted { .. });
                    if event.seq > self.seen + 1 || (may_be_gone && self.until == Until::RunEnd) {
                        // Another server committed in between, or the run may be gone: the store knows it.
                        self.phase = Phase::Behind;
                        return Ok(());
                    }
                    if event.seq > self.seen {
                        self.take(event, || batch.text(index));
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

    fn take(&mut self, event: &Event, text: impl FnOnce() -> Arc<str>) {
        self.seen = event.seq;
        if !self.wanted.matches(event) {
            return;
        }
        let (seq, kind) = (event.seq, event.change.kind().to_owned());
        self.ready.push_back(Item::Event { seq, kind, text: text() });
        if self.until == Until::RunEnd && ends_its_run(&event.change) {
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
    use downbeat_core::change::About;
    use downbeat_core::ids::ServerId;
    use downbeat_store::MemoryStore;

    use super::*;
    use crate::journal::Feed;
    use crate::testing::registered;

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
            let (wanted, until) = (Wanted::default(), Until::Forever);
            Follower::new(Arc::clone(&self.store), self.feed.subscribe(), wanted, until, since)
        }

        /// Commits one change. `Publish::Not`: as another server, so that the feed does not get it.
        async fn commit(&self, publish: Publish) {
            let change = registered(1, Timestamp::UNIX_EPOCH);
            let server = ServerId(uuid::Uuid::nil());
            let committed = self.store.commit(server, std::slice::from_ref(&change)).await.unwrap();
            if publish == Publish::ToFeed {
                let seq = committed.seqs[0].unwrap();
                self.feed.publish(Arc::from([Event { seq, server, about: About::default(), change }]));
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
            match next.expect("an event comes").unwrap() {
                Some(Item::Event { seq, .. }) => numbers.push(seq),
                other => panic!("{other:?} instead of an event"),
            }
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

    #[tokio::test]
    async fn a_reader_that_starts_before_the_first_kept_event_gets_a_gap_once() {
        let journal = Journal::new();
        for _ in 0..3 {
            journal.commit(Publish::Not).await;
        }
        journal.store.prune(Timestamp::MAX, 100).await.unwrap();
        let mut follower = journal.follower(1);
        let gap = tokio::time::timeout(DEADLINE, follower.next()).await.unwrap().unwrap();
        assert_eq!(gap, Some(Item::Gap { first: 4 }));
        journal.commit(Publish::ToFeed).await;
        assert_eq!(numbers(&mut follower, 1).await, [4]);
        // One that has seen everything misses nothing.
        let mut follower = journal.follower(3);
        assert_eq!(numbers(&mut follower, 1).await, [4]);
    }
}
