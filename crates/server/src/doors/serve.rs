//! Serves the connections of a port, each in its own task, until the server closes.

use std::time::Duration;

use hyper::rt::Executor;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span};

use super::{Bounds, Door, Opened, Protocol, Shut, open};

/// An HTTP/2 peer that is silent for this long is pinged, and disconnected if it does not respond for as long again.
pub(crate) const KEEPALIVE: Duration = Duration::from_secs(20);

/// The limits of one port. Tests set their own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortLimits {
    pub(crate) connections: Bounds,
    /// Time limit for the first bytes of a connection.
    pub(crate) first_bytes: Duration,
    /// Maximum time without a request; over HTTP/1, until the header of the next one is complete.
    pub(crate) idle: Duration,
}

/// Serves until `closing`, and then until all current requests have a response. Returns at once if the port no longer
/// accepts connections. `connection` serves one connection; `key` is the setting that names the port.
pub(crate) async fn serve<F>(
    listener: TcpListener,
    key: &'static str,
    limits: PortLimits,
    closing: CancellationToken,
    connection: impl Fn(Protocol, Opened<TcpStream>, Watcher) -> F + Clone + Send + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let (spawn, connections) = (Spawn::current(), GracefulShutdown::new());
    let mut door = Door::new(listener, key, limits.connections);
    loop {
        let (stream, permit) = match door.accept(&closing).await {
            Ok(accepted) => accepted,
            Err(Shut::Closing) => break,
            Err(Shut::Broken) => return,
        };
        let (connection, watcher, closing) = (connection.clone(), connections.watcher(), closing.clone());
        spawn.execute(async move {
            let _permit = permit;
            let opened = closing.run_until_cancelled(open(stream, limits.first_bytes)).await;
            if let Some((protocol, stream)) = opened.flatten() {
                connection(protocol, stream, watcher).await;
            }
        });
    }
    // New connections are refused from now on.
    drop(door);
    connections.shutdown().await;
}

/// Spawns the tasks of a connection in the server's span, so that their log lines name the server.
#[derive(Clone, Debug)]
pub(crate) struct Spawn(Span);

impl Spawn {
    pub(crate) fn current() -> Self {
        Self(Span::current())
    }
}

impl<F> Executor<F> for Spawn
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, work: F) {
        tokio::spawn(work.instrument(self.0.clone()));
    }
}
