//! Owns heartbeats: gathered, written once per tick, and answered only when they are written, so that what an agent
//! believes of its leases is never more than what the store knows.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use downbeat_core::ids::{NodeId, SessionId};
use downbeat_proto::message::Fault;
use downbeat_store::Store;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::clock::Clock;

/// Heartbeats that may wait for the next tick: every node of a full cluster, with room to spare.
const QUEUE: usize = 16_384;
/// How long heartbeats are gathered. An answer takes at most this long, and a write.
const TICK: Duration = Duration::from_millis(50);

/// Whether a session is its node's current one.
pub(crate) type Current = bool;

/// A handle to the gatherer; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Heartbeats {
    queue: mpsc::Sender<Beat>,
    /// When the write that is under way began.
    writing: Arc<Mutex<Option<Instant>>>,
}

#[derive(Debug)]
struct Beat {
    node: NodeId,
    session: SessionId,
    answer: oneshot::Sender<Result<Current, Fault>>,
}

impl Heartbeats {
    pub(crate) fn start(store: Arc<dyn Store>, clock: Clock, stop: CancellationToken) -> Self {
        let (queue, mut beats) = mpsc::channel::<Beat>(QUEUE);
        let writing: Arc<Mutex<Option<Instant>>> = Arc::default();
        let begun = Arc::clone(&writing);
        let mark = move |at| *begun.lock().expect("nothing panics while it holds this") = at;
        let gatherer = async move {
            let mut gathered = Vec::new();
            loop {
                tokio::select! {
                    received = beats.recv_many(&mut gathered, QUEUE) => if received == 0 { return },
                    () = stop.cancelled() => return,
                }
                tokio::time::sleep(TICK).await;
                while let Ok(beat) = beats.try_recv() {
                    gathered.push(beat);
                }
                mark(Some(Instant::now()));
                write(store.as_ref(), &clock, std::mem::take(&mut gathered)).await;
                mark(None);
            }
        };
        tokio::spawn(gatherer.in_current_span());
        Self { queue, writing }
    }

    /// How long the store has been busy with the heartbeats before: nobody could renew a lease meanwhile.
    pub(crate) fn stalled_for(&self) -> Duration {
        let writing = self.writing.lock().expect("nothing panics while it holds this");
        writing.map_or(Duration::ZERO, |begun| begun.elapsed())
    }

    /// Records a sign of life; answers when it is durable.
    pub(crate) async fn beat(&self, node: NodeId, session: SessionId) -> Result<Current, Fault> {
        let stopping = || Fault::Unavailable("the server is stopping".to_owned());
        let (answer, answered) = oneshot::channel();
        self.queue.send(Beat { node, session, answer }).await.map_err(|_| stopping())?;
        answered.await.map_err(|_| stopping())?
    }
}

async fn write(store: &dyn Store, clock: &Clock, beats: Vec<Beat>) {
    let seen: Vec<(NodeId, SessionId)> = beats.iter().map(|beat| (beat.node, beat.session)).collect();
    let result = store.touch_nodes(&seen, clock.now()).await;
    for (index, beat) in beats.into_iter().enumerate() {
        let answer = match &result {
            Ok(current) => Ok(current[index]),
            Err(error) => Err(Fault::Unavailable(error.to_string())),
        };
        // An agent that hung up will beat again.
        let _ = beat.answer.send(answer);
    }
}
