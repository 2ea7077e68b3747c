//! Owns the agents' connections: thousands of them, each with one call parked and nothing else to do. Between a
//! connection and the calls lies nothing but HTTP/2 and what bounds it: what is laid between costs every node of a fleet.

use std::sync::Arc;
use std::time::Duration;

use downbeat_core::limits;
use downbeat_proto::{Link, grpc};
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::connected::Connected;
use super::intake::Intake;
use crate::doors::{Bounds, Door, Protocol, Spawn, open, refuse};

/// A node that is silent for this long is pinged, and one that does not answer for as long again is hung up on.
const KEEPALIVE: Duration = Duration::from_secs(20);
const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;

/// The answer to HTTP/1: a client that was given the wrong port hears so at once. It is a problem document, as on the
/// REST port, so that the command line shows its detail.
const WRONG_PORT: &str = concat!(
    "HTTP/1.1 400 Bad Request\r\n",
    "content-type: application/problem+json\r\n",
    "content-length: 208\r\n",
    "connection: close\r\n",
    "\r\n",
    r#"{"type":"about:blank","title":"Bad Request","status":400,"code":"wrong_port","#,
    r#""detail":"this is the agents' port (gRPC); REST is on the --http port, which is 4680 unless the server says otherwise","errors":[]}"#,
);

/// What connections may do before and between calls.
#[derive(Clone, Copy, Debug)]
struct Patience {
    bounds: Bounds,
    /// For the first bytes, and for reading that it came to the wrong port.
    first_bytes: Duration,
    /// Without a call.
    idle: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            bounds: Bounds {
                total: limits::AGENT_CONNECTIONS,
                per_address: limits::AGENT_CONNECTIONS_PER_ADDRESS,
                loopback: limits::AGENT_CONNECTIONS_LOOPBACK,
            },
            first_bytes: Duration::from_secs(limits::AGENT_FIRST_BYTES_S),
            idle: Duration::from_secs(limits::AGENT_IDLE_S),
        }
    }
}

/// Serves until `closing`, and then until every call that is under way is answered.
pub(crate) async fn serve(listener: TcpListener, host: Arc<impl Link + 'static>, closing: CancellationToken) {
    serve_with(Patience::default(), listener, host, closing).await;
}

async fn serve_with(
    patience: Patience,
    listener: TcpListener,
    host: Arc<impl Link + 'static>,
    closing: CancellationToken,
) {
    let spawn = Spawn::current();
    let mut builder = http2::Builder::new(spawn.clone());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(KEEPALIVE))
        .keep_alive_timeout(KEEPALIVE)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(limits::AGENT_STREAMS)
        .max_header_list_size(limits::AGENT_HEADER_BYTES)
        .max_frame_size(limits::AGENT_FRAME_BYTES);
    let agent = grpc::service(host);
    let intake = Intake::new(limits::LARGE_MESSAGES_BYTES, limits::LARGE_MESSAGES_PER_CONNECTION_BYTES);
    let connections = GracefulShutdown::new();
    let mut door = Door::new(listener, "grpc", patience.bounds);
    while let Some((stream, permit)) = door.accept(&closing).await {
        let connected = Connected::new(agent.clone(), intake.of_connection());
        let (builder, watcher, closing) = (builder.clone(), connections.watcher(), closing.clone());
        spawn.execute(async move {
            let _permit = permit;
            let opened = tokio::select! {
                opened = open(stream, patience.first_bytes) => opened,
                () = closing.cancelled() => None,
            };
            let stream = match opened {
                Some((Protocol::Http2, stream)) => stream,
                Some((Protocol::Http1, stream)) => {
                    return refuse(stream, WRONG_PORT.as_bytes(), patience.first_bytes).await;
                }
                None => return,
            };
            let calls = connected.calls();
            let connection = watcher.watch(builder.serve_connection(TokioIo::new(stream), connected));
            tokio::select! {
                biased;
                ended = connection => if let Err(error) = ended {
                    debug!(%error, "a connection ended");
                },
                // None that is under way is cut off.
                () = calls.cease(patience.idle) => debug!("a connection without calls was closed"),
            }
        });
    }
    // Whoever dials from now on is turned away at once.
    drop(door);
    connections.shutdown().await;
}

#[cfg(test)]
mod tests;
