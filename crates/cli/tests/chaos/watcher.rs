//! Follows the event stream through any server that responds, and reconnects with the last number that it has.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use downbeat_testbed::Client;
use futures_util::StreamExt;
use tokio::task::JoinHandle;

/// A stream that is silent for this long is closed: the wire may be dead without an error.
const SILENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(200);

/// The events that a follower received, over all its reconnects.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watched {
    pub(crate) events: Vec<(u64, String)>,
    pub(crate) reconnects: u64,
    pub(crate) complaints: Vec<String>,
}

/// A follower of all events, from the first.
#[derive(Debug)]
pub(crate) struct Watcher {
    /// It ends when it has seen this many.
    until: Arc<AtomicU64>,
    task: JoinHandle<Watched>,
}

impl Watcher {
    /// Starts with this server, and uses the next one after a failure.
    pub(crate) fn start(client: Client, first: usize) -> Self {
        let until = Arc::new(AtomicU64::new(u64::MAX));
        let task = tokio::spawn(watch(client, first, Arc::clone(&until)));
        Self { until, task }
    }

    /// Returns the received events after this event arrived, or after `patience`.
    pub(crate) async fn finish(self, last: u64, patience: Duration) -> Watched {
        self.until.store(last, Ordering::SeqCst);
        let late = Watched {
            complaints: vec!["a follower never got to the last event".to_owned()],
            ..Watched::default()
        };
        match tokio::time::timeout(patience, self.task).await {
            Ok(watched) => watched.unwrap(),
            Err(_) => late,
        }
    }
}

async fn watch(client: Client, first: usize, until: Arc<AtomicU64>) -> Watched {
    let mut watched = Watched::default();
    let mut server = first;
    loop {
        follow(&client, server, &until, &mut watched).await;
        if last(&watched) >= until.load(Ordering::SeqCst) {
            return watched;
        }
        watched.reconnects += 1;
        server = (server + 1) % client.servers.len();
        tokio::time::sleep(PAUSE).await;
    }
}

fn last(watched: &Watched) -> u64 {
    watched.events.last().map_or(0, |(seq, _)| *seq)
}

/// Reads one stream to its end.
async fn follow(client: &Client, server: usize, until: &AtomicU64, watched: &mut Watched) {
    let Some(response) = client.stream(server, last(watched)).await else { return };
    let status = response.status();
    if !status.is_success() {
        if status.is_client_error() {
            let text = response.text().await.unwrap_or_default();
            watched
                .complaints
                .push(format!("a stream after {} was answered {status}: {text}", last(watched)));
        }
        return;
    }
    let mut bytes = response.bytes_stream();
    let mut text = String::new();
    loop {
        match tokio::time::timeout(SILENCE, bytes.next()).await {
            Ok(Some(Ok(piece))) => text.push_str(&String::from_utf8_lossy(&piece)),
            Ok(Some(Err(_)) | None) | Err(_) => return,
        }
        while let Some((block, rest)) = text.split_once("\n\n") {
            if let Some(event) = event(block) {
                watched.events.push(event);
            }
            text = rest.to_owned();
        }
        if last(watched) >= until.load(Ordering::SeqCst) {
            return;
        }
    }
}

fn event(block: &str) -> Option<(u64, String)> {
    let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    Some((field("id:")?.parse().ok()?, field("event:")?.to_owned()))
}
