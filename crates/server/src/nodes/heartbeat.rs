//! Owns heartbeats: gathered, written once per tick, and confirmed only after the write, so that an agent
//! never assumes a renewal that the store does not have.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use downbeat_core::Timestamp;
use downbeat_core::ids::{NodeId, SessionId};
use downbeat_proto::message::Fault;
use downbeat_store::Store;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::clock::Clock;

/// Heartbeats that may wait for the next tick: more than the default maximum of nodes. Beyond this, agents wait.
const QUEUE: usize = 16_384;
/// How long heartbeats are gathered. A response takes at most this long plus one write.
const TICK: Duration = Duration::from_millis(50);

/// The recorded time of a heartbeat; nothing if its session is not the current one of its node.
pub(crate) type Heard = Option<Timestamp>;

/// A handle to the gatherer; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Heartbeats {
    queue: mpsc::Sender<Beat>,
    /// When the current write started.
    writing: Arc<Mutex<Option<Instant>>>,
}

#[derive(Debug)]
struct Beat {
    node: NodeId,
    session: SessionId,
    answer: oneshot::Sender<Result<Heard, Fault>>,
}

impl Heartbeats {
    /// Starts the gatherer; it ends with `stop`.
    pub(crate) fn start(
        store: Arc<dyn Store>,
        clock: Clock,
        stop: CancellationToken,
    ) -> (Self, JoinHandle<()>) {
        let (queue, mut beats) = mpsc::channel::<Beat>(QUEUE);
        let writing: Arc<Mutex<Option<Instant>>> = Arc::default();
        let begun = Arc::clone(&writing);
        let mark = move |at| *begun.lock().expect("nothing panics while it holds this") = at;
        let gatherer = async move {
            let mut gathered = Vec::new();
            while let Some(1..) = stop.run_until_cancelled(beats.recv_many(&mut gathered, QUEUE)).await {
                tokio::time::sleep(TICK).await;
                while let Ok(beat) = beats.try_recv() {
                    gathered.push(beat);
                }
                mark(Some(Instant::now()));
                write(store.as_ref(), &clock, std::mem::take(&mut gathered)).await;
                mark(None);
            }
        };
        (Self { queue, writing }, tokio::spawn(gatherer.in_current_span()))
    }

    /// Returns for how long the store has been writing heartbeats: no lease could be renewed in this time.
    pub(crate) fn stalled_for(&self) -> Duration {
        let writing = self.writing.lock().expect("nothing panics while it holds this");
        writing.map_or(Duration::ZERO, |begun| begun.elapsed())
    }

    /// Records a heartbeat. Returns when it is durable.
    pub(crate) async fn beat(&self, node: NodeId, session: SessionId) -> Result<Heard, Fault> {
        let stopping = || Fault::Unavailable("the server is stopping".to_owned());
        let (answer, answered) = oneshot::channel();
        self.queue.send(Beat { node, session, answer }).await.map_err(|_| stopping())?;
        answered.await.map_err(|_| stopping())?
    }
}

async fn write(store: &dyn Store, clock: &Clock, beats: Vec<Beat>) {
    let seen: Vec<(NodeId, SessionId)> = beats.iter().map(|beat| (beat.node, beat.session)).collect();
    let at = clock.now();
    let result = store.touch_nodes(&seen, at).await;
    for (index, beat) in beats.into_iter().enumerate() {
        let answer = match &result {
            Ok(current) => Ok(current[index].then_some(at)),
            Err(error) => Err(Fault::Unavailable(error.to_string())),
        };
        // An agent that has disconnected will send another heartbeat.
        let _ = beat.answer.send(answer);
    }
}
