//! Owns what a replica does with each frame: its store first, then the board, then the live streams.

use std::sync::Arc;

use downbeat_core::Event;
use downbeat_store::{self as store, Diverged, OutputChunk, Part, Replica, Replicated};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tracing::{error, info};

use super::Following;
use super::frame::{Frame, VERSION};
use crate::dispatch::Board;
use crate::journal::Perform;
use crate::parts::Parts;
use crate::runs::load_board;

/// Parts of a snapshot that wait to be written.
const PARTS: usize = 2;

/// Why the primary is not followed any further.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("the copy has parted from its primary: {0}; it is made anew")]
    Diverged(#[from] Diverged),
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error(
        "it speaks version {0} of the replication protocol, this replica version {VERSION}: start equal versions"
    )]
    Version(u32),
    #[error("it sent something that makes no sense: {0}")]
    Confused(&'static str),
}

/// A replica's copy, and all that hangs on it.
#[derive(Debug)]
pub(crate) struct Applier {
    pub(super) copy: Arc<dyn Replica>,
    pub(super) parts: Parts,
    pub(super) following: Following,
    /// What the primary keeps of an execution's output.
    output_max_bytes: u64,
    loading: Option<Loading>,
    /// The copy is none any more: there is nothing to go on with.
    diverged: bool,
}

/// A snapshot that is being taken.
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

    /// A connection has ended: half a snapshot is no use.
    pub(super) fn forget_loading(&mut self) {
        self.loading = None;
    }

    pub(super) async fn apply(&mut self, primary: &str, frame: Frame) -> Result<(), Failure> {
        match frame {
            Frame::Hello { version, server, output_max_bytes, at } => {
                if version != VERSION {
                    return Err(Failure::Version(version));
                }
                info!(primary, server, "follows");
                self.output_max_bytes = output_max_bytes;
                self.following.connected(primary, self.parts.clock.now(), at);
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
        info!("takes a snapshot");
        let (sender, parts) = mpsc::channel(PARTS);
        let copy = Arc::clone(&self.copy);
        let written = tokio::spawn(async move { copy.replace(parts).await });
        self.loading = Some(Loading { parts: sender, written });
    }

    async fn load(&mut self, part: Part) -> Result<(), Failure> {
        let end = matches!(part, Part::End { .. });
        let loading = self.loading.as_mut().ok_or(Failure::Confused("a part of no snapshot"))?;
        let taken = loading.parts.send(part).await.is_ok();
        if taken && !end {
            return Ok(());
        }
        // At its end, or when it could not be written: then the writer knows why.
        let loading = self.loading.take().ok_or(Failure::Confused("a part of no snapshot"))?;
        drop(loading.parts);
        let written = loading.written.await;
        let seq = written
            .map_err(|error| store::Error::Unavailable(format!("a copy was broken off: {error}")))??;
        self.show_anew(seq).await?;
        info!(seq, "has a whole copy");
        Ok(())
    }

    /// What was derived from the former copy is derived again.
    async fn show_anew(&mut self, seq: u64) -> Result<(), store::Error> {
        *self.parts.dispatcher.board() = Board::default();
        load_board(self.parts.store.as_ref(), &self.parts.dispatcher, &self.parts.admission).await?;
        self.parts.metrics.start_from(&self.parts.store.tally().await?);
        self.parts.feed.restart(seq);
        self.following.copied(seq);
        self.diverged = false;
        Ok(())
    }

    async fn change(&mut self, events: Vec<Event>, output: Vec<OutputChunk>) -> Result<(), Failure> {
        match self.copy.replicate(&events, &output, self.output_max_bytes).await? {
            Replicated::Applied => {}
            Replicated::Diverged(why) => {
                error!(%why, "the copy has parted from its primary, and is made anew");
                self.diverged = true;
                return Err(why.into());
            }
        }
        if let Some(event) = events.last() {
            self.following.applied(event.seq);
            let events: Arc<[Event]> = events.into();
            self.parts.dispatcher.perform(&events);
            // Nobody claims here, and nobody else forgets these.
            self.parts.dispatcher.board().forget_stray();
            self.parts.admission.perform(&events);
            self.parts.runs.perform(&events);
            self.parts.feed.publish(events);
        }
        let mut grown: Vec<_> = output.iter().map(|chunk| chunk.execution).collect();
        grown.dedup();
        for execution in grown {
            self.parts.outputs.announce(execution);
        }
        Ok(())
    }
}
