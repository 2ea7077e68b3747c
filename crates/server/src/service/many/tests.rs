//! Requests about many runs on a store with a very long list.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use downbeat_core::limits;
use downbeat_core::run::RunBrief;
use downbeat_store::{
    Error, Listed, MemoryStore, Page, Position, RunFilter, RunKey, RunOrder, Store, Wrapped, Wrapper,
};
use jiff::Timestamp;

use super::{Effect, WhichRuns};
use crate::service::Redo;
use crate::{Caller, Settings, Surroundings, start_within};

/// A store whose list of runs never ends and never matches.
#[derive(Debug)]
struct Endless {
    store: MemoryStore,
    pages: Arc<AtomicUsize>,
}

#[async_trait]
impl Wrapper for Endless {
    fn store(&self) -> &dyn Store {
        &self.store
    }

    async fn runs(&self, _: &RunFilter, _: &Page<RunKey>) -> Result<Listed<RunBrief, RunKey>, Error> {
        self.pages.fetch_add(1, Ordering::Relaxed);
        let last = RunKey { order: RunOrder::default(), at: Timestamp::UNIX_EPOCH, id: "last".into() };
        Ok(Listed { rows: Vec::new(), total: None, next: Some(Position { after: Some(last), skip: 0 }) })
    }
}

#[tokio::test]
async fn a_search_for_runs_to_retry_ends() {
    let pages = Arc::new(AtomicUsize::new(0));
    let store = Arc::new(Wrapped(Endless { store: MemoryStore::new(), pages: Arc::clone(&pages) }));
    let server = start_within(Settings::default(), store, Surroundings::default()).await.unwrap();
    let which = WhichRuns { job: Some("rare".to_owned()), ..WhichRuns::default() };
    for effect in [Effect::Count, Effect::Change] {
        pages.store(0, Ordering::Relaxed);
        let done = server.service().retry_many(&Caller::API, &which, &Redo::Failed, None, effect).await;
        assert_eq!(done.unwrap().matched, 0);
        assert_eq!(pages.load(Ordering::Relaxed), limits::PAGES_SEARCHED);
    }
}
