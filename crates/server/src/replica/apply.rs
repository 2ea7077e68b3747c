//! Applies each frame to a replica: first to its store, then to the board, then to the live streams.

use std::sync::Arc;

use downbeat_core::Event;
use downbeat_store::{self as store, Diverged, OutputChunk, Part, Replica, Replicated};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tracing::{error, info};

use super::Following;
use super::frame::{Frame, VERSION};
use crate::journal::Perform;
use crate::parts::Parts;
use crate::runs::load_board;

/// Parts of a snapshot that may wait to be written.
const PARTS: usize = 2;

#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("the copy differs from its primary: {0}; it is replaced by a new snapshot")]
    Diverged(#[from] Diverged),
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error(
        "the primary has version {0} of the replication protocol, this replica {VERSION}: start the same release on both"
    )]
    Version(u32),
    #[error("the primary sent an invalid frame: {0}")]
    InvalidFrame(&'static str),
}

/// A replica's copy, with everything that depends on it.
#[derive(Debug)]
pub(crate) struct Applier {
    pub(super) copy: Arc<dyn Replica>,
    pub(super) parts: Parts,
    pub(super) following: Following,
    /// How much output of an execution the primary keeps.
    output_max_bytes: u64,
    loading: Option<Loading>,
    /// The copy differs from its primary: it needs a new snapshot.
    diverged: bool,
}

#[derive(Debug)]
struct Loading {
    parts: mpsc::Sender<Part>,
    written: JoinHandle<Result<u64, store::Error>>,
}

impl Applier {
    pub(crate) fn new(copy: Arc<dyn Replica>, parts: Parts, following: Following) -> Self {
        let output_max_bytes = parts.settings.output_max_bytes;
        Self { copy, parts, following, output_max_bytes, loading: None, diverged: false }
    }

    pub(super) fn has_diverged(&self) -> bool {
        self.diverged
    }

    /// Drops an incomplete snapshot when its connection has ended.
    pub(super) fn forget_loading(&mut self) {
        self.loading = None;
    }

    pub(super) async fn apply(&mut self, primary: &str, frame: Frame) -> Result<(), Failure> {
        match frame {
            Frame::Hello { version, server, output_max_bytes, seq, at } => {
                if version != VERSION {
                    return Err(Failure::Version(version));
                }
                info!(primary, server, "following the primary");
                self.output_max_bytes = output_max_bytes;
                self.following.connected(primary, seq, self.parts.clock.now(), at);
            }
            Frame::Reset => self.begin_copy(),
            Frame::Part(part) => self.load(part).await?,
            Frame::Changes { events, output } => self.change(events, output).await?,
            Frame::Kept(kept) => self.copy.forget(&kept).await?,
            Frame::Presence(seen) => self.copy.see_nodes(&seen).await?,
            Frame::Servers(servers) => self.copy.set_servers(&servers).await?,
            Frame::Beat { seq, at } => self.following.beat(self.parts.clock.now(), seq, at),
        }
        Ok(())
    }

    fn begin_copy(&mut self) {
        info!("receiving a snapshot");
        let (sender, parts) = mpsc::channel(PARTS);
        let copy = Arc::clone(&self.copy);
        let written = tokio::spawn(async move { copy.replace(parts).await });
        self.loading = Some(Loading { parts: sender, written });
    }

    async fn load(&mut self, part: Part) -> Result<(), Failure> {
        let end = matches!(part, Part::End { .. });
        let loading = self.loading.take().ok_or(Failure::InvalidFrame("a part without a snapshot"))?;
        let taken = loading.parts.send(part).await.is_ok();
        if taken && !end {
            self.loading = Some(loading);
            return Ok(());
        }
        // At the end, or if a write failed: then the writer returns the error.
        drop(loading.parts);
        let written = loading.written.await;
        let seq = written
            .map_err(|error| store::Error::Unavailable(format!("cannot write the copy: {error}")))??;
        self.rebuild(seq).await?;
        info!(seq, "the copy is complete");
        Ok(())
    }

    /// Derives everything again that was derived from the former copy.
    async fn rebuild(&mut self, seq: u64) -> Result<(), store::Error> {
        load_board(self.parts.store.as_ref(), &self.parts.dispatcher, &self.parts.admission).await?;
        self.parts.standing.load(self.parts.store.as_ref()).await?;
        self.parts.jobs.load(self.parts.store.as_ref()).await?;
        self.parts.backfills.load(self.parts.store.as_ref()).await?;
        self.parts.stats.start(Arc::clone(&self.parts.store), self.parts.clock.now());
        self.parts.feed.restart(seq);
        self.following.copied(self.parts.clock.now(), seq);
        self.diverged = false;
        Ok(())
    }

    async fn change(&mut self, events: Vec<Event>, output: Vec<OutputChunk>) -> Result<(), Failure> {
        match self.copy.replicate(&events, &output, self.output_max_bytes).await? {
            Replicated::Applied => {}
            Replicated::Diverged(why) => {
                error!(%why, "the copy differs from its primary; it is replaced by a new snapshot");
                self.diverged = true;
                return Err(why.into());
            }
        }
        if let Some(event) = events.last() {
            self.following.applied(self.parts.clock.now(), event.seq);
            let events: Arc<[Event]> = events.into();
            self.parts.dispatcher.prepare(&events).await;
            self.parts.dispatcher.perform(&events);
            // A replica claims nothing, so its stray leases are dropped here.
            self.parts.dispatcher.board().forget_stray();
            self.parts.admission.perform(&events);
            self.parts.runs.perform(&events);
            self.parts.standing.perform(&events);
            self.parts.jobs.perform(&events);
            self.parts.backfills.perform(&events);
            self.parts.feed.publish(events);
        }
        self.parts.outputs.announce(&output);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use downbeat_core::execution::Execution;
    use downbeat_core::ids::ServerId;
    use downbeat_store::conformance::make;
    use downbeat_store::{Executions as _, MemoryStore, Store, Wrapped, Wrapper};
    use tokio::sync::watch;
    use tokio_util::sync::CancellationToken;
    use uuid::Uuid;

    use super::*;
    use crate::testing::registered;
    use crate::{Settings, Surroundings, start_within};

    /// A store whose open executions are read only while it is not held.
    #[derive(Debug)]
    struct Held {
        memory: Arc<MemoryStore>,
        held: watch::Receiver<bool>,
        read: mpsc::UnboundedSender<()>,
    }

    #[async_trait]
    impl Wrapper for Held {
        fn store(&self) -> &dyn Store {
            &*self.memory
        }

        async fn open_executions(&self) -> Result<Vec<Execution>, store::Error> {
            let _ = self.read.send(());
            let _ = self.held.clone().wait_for(|held| !held).await;
            self.memory.open_executions().await
        }
    }

    #[tokio::test]
    async fn readers_see_the_former_board_until_the_new_one_is_complete() {
        let memory = Arc::new(MemoryStore::new());
        let register = async |number| {
            let node = registered(number, downbeat_core::Timestamp::UNIX_EPOCH);
            assert_eq!(memory.commit(ServerId(Uuid::nil()), &[node]).await.unwrap().outcomes, [Ok(())]);
        };
        register(1).await;
        let (hold, held) = watch::channel(false);
        let (read, mut reads) = mpsc::unbounded_channel();
        let store = Wrapped(Held { memory: Arc::clone(&memory), held, read });
        let settings = Settings { name: "one".to_owned(), ..Settings::default() };
        let server = start_within(settings, Arc::new(store), Surroundings::default()).await.unwrap();
        let parts = server.service().parts.clone();
        let known = |number| parts.dispatcher.board().node(make::node(number)).is_some();
        register(2).await;
        while reads.try_recv().is_ok() {}
        hold.send(true).unwrap();
        let following = Following::new("http://a".to_owned(), true, 1, CancellationToken::new());
        let copy = Arc::new(MemoryStore::new());
        let mut applier = Applier::new(copy, parts.clone(), following);
        let rebuilding = tokio::spawn(async move { applier.rebuild(2).await });
        reads.recv().await.unwrap();
        assert_eq!((known(1), known(2)), (true, false));
        hold.send(false).unwrap();
        rebuilding.await.unwrap().unwrap();
        assert_eq!((known(1), known(2)), (true, true));
        server.stop().await;
    }
}
