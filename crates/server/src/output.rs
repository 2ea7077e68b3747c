//! Owns output on its way to the store: gathered from all agents, appended in one write, then announced.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use downbeat_core::ids::ExecutionId;
use downbeat_proto::message::Fault;
use downbeat_store::{Hint, OutputChunk, Store};
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::signal::heard;

/// Messages that may wait for the next write; each is bounded by the size of a gRPC message.
const QUEUE: usize = 256;
/// How many announcements a follower may be behind before it has to read the store.
const ANNOUNCEMENTS: usize = 4_096;

/// Output to append, and the sender to notify when it is durable.
type Message = (Vec<OutputChunk>, oneshot::Sender<Result<(), Fault>>);

/// A handle to the gatherer; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Outputs {
    queue: mpsc::Sender<Message>,
    grown: broadcast::Sender<ExecutionId>,
    /// How often output of other servers was announced without its execution.
    unnamed: Arc<AtomicU64>,
}

impl Outputs {
    /// The gatherer ends with the last handle; listening to other servers ends with `stop`.
    pub(crate) fn start(
        store: Arc<dyn Store>,
        keep_bytes: u64,
        stop: CancellationToken,
    ) -> (Self, JoinHandle<()>) {
        let (queue, mut messages) = mpsc::channel::<Message>(QUEUE);
        let grown = broadcast::channel(ANNOUNCEMENTS).0;
        let unnamed = Arc::<AtomicU64>::default();
        let sender = grown.clone();
        let others = announce_others(store.hints(), grown.clone(), Arc::clone(&unnamed));
        tokio::spawn(async move { stop.run_until_cancelled(others).await });
        let gatherer = async move {
            let mut gathered = Vec::new();
            while messages.recv_many(&mut gathered, QUEUE).await > 0 {
                let (mut chunks, mut answers) = (Vec::new(), Vec::new());
                for (more, answer) in gathered.drain(..) {
                    chunks.extend(more);
                    answers.push(answer);
                }
                let result = store.append_output(&chunks, keep_bytes).await;
                let result = result.map_err(|error| Fault::Unavailable(error.to_string()));
                for answer in answers {
                    let _ = answer.send(result.clone());
                }
                announce(&sender, &chunks);
            }
        };
        (Self { queue, grown, unnamed }, tokio::spawn(gatherer.in_current_span()))
    }

    /// Appends output. Returns when it is durable.
    pub(crate) async fn append(&self, chunks: impl Iterator<Item = OutputChunk>) -> Result<(), Fault> {
        let chunks: Vec<OutputChunk> = chunks.collect();
        if chunks.is_empty() {
            return Ok(());
        }
        let stopping = || Fault::Unavailable("the server is stopping".to_owned());
        let (answer, answered) = oneshot::channel();
        self.queue.send((chunks, answer)).await.map_err(|_| stopping())?;
        answered.await.map_err(|_| stopping())?
    }

    /// Announces output that was not appended here.
    pub(crate) fn announce(&self, chunks: &[OutputChunk]) {
        announce(&self.grown, chunks);
    }

    /// Returns a number that grows when another server may have appended output of any execution.
    pub(crate) fn unnamed(&self) -> u64 {
        self.unnamed.load(Ordering::Acquire)
    }

    pub(crate) fn grown(&self) -> broadcast::Receiver<ExecutionId> {
        self.grown.subscribe()
    }
}

fn announce(grown: &broadcast::Sender<ExecutionId>, chunks: &[OutputChunk]) {
    let mut executions: Vec<ExecutionId> = chunks.iter().map(|chunk| chunk.execution).collect();
    executions.dedup();
    for execution in executions {
        // An error means that there is no follower.
        let _ = grown.send(execution);
    }
}

async fn announce_others(
    mut hints: broadcast::Receiver<Hint>,
    announce: broadcast::Sender<ExecutionId>,
    unnamed: Arc<AtomicU64>,
) {
    loop {
        match heard(&mut hints).await {
            Some(Hint::Output(executions)) => {
                for execution in executions.iter() {
                    let _ = announce.send(*execution);
                }
            }
            // Followers of one execution also check without announcements.
            Some(Hint::Anything) | None => {
                unnamed.fetch_add(1, Ordering::AcqRel);
            }
            Some(Hint::Events | Hint::Servers) => {}
        }
    }
}
