//! Owns the agents' connections: thousands of them, each with one call parked and nothing else to do. Between a
//! connection and the calls lies nothing but HTTP/2: what is laid between costs every node of a fleet.

use std::sync::Arc;
use std::time::Duration;

use downbeat_core::limits;
use downbeat_proto::{Link, grpc};
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span, debug, warn};

/// A node that is silent for this long is pinged, and one that does not answer for as long again is hung up on.
const KEEPALIVE: Duration = Duration::from_secs(20);
const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// No connection can be accepted (there are too many open files): some may close meanwhile.
const PAUSE: Duration = Duration::from_millis(100);

/// Tasks of a connection log in the name of the server that they belong to.
#[derive(Clone)]
struct Spawn(Span);

impl<F> Executor<F> for Spawn
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, work: F) {
        tokio::spawn(work.instrument(self.0.clone()));
    }
}

/// Serves until `closing`, and then until every call that is under way is answered.
pub(crate) async fn serve(listener: TcpListener, host: Arc<impl Link + 'static>, closing: CancellationToken) {
    let spawn = Spawn(Span::current());
    let mut builder = http2::Builder::new(spawn.clone());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(KEEPALIVE))
        .keep_alive_timeout(KEEPALIVE)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(limits::MESSAGE_BYTES as u32);
    let service = TowerToHyperService::new(grpc::service(host));
    let connections = GracefulShutdown::new();
    while let Some(stream) = accept(&listener, &closing).await {
        let connection = builder.serve_connection(TokioIo::new(stream), service.clone());
        let connection = connections.watch(connection);
        spawn.execute(async move {
            if let Err(error) = connection.await {
                debug!(%error, "a connection ended");
            }
        });
    }
    // Whoever dials from now on is turned away at once.
    drop(listener);
    connections.shutdown().await;
}

/// Nothing: it is over.
async fn accept(listener: &TcpListener, closing: &CancellationToken) -> Option<TcpStream> {
    loop {
        let accepted = tokio::select! {
            biased;
            () = closing.cancelled() => return None,
            accepted = listener.accept() => accepted,
        };
        match accepted.and_then(|(stream, _)| stream.set_nodelay(true).map(|()| stream)) {
            Ok(stream) => return Some(stream),
            Err(error) => {
                warn!(%error, "cannot accept a connection");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
