//! Owns the agents' connections: thousands, each with one parked call. Only HTTP/2 and its limits lie
//! between a connection and the calls: every further layer would cost each node of a fleet.

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

/// A node that is silent for this long is pinged, and disconnected if it does not respond for as long again.
const KEEPALIVE: Duration = Duration::from_secs(20);
const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;

/// The response to HTTP/1: a client that uses the wrong port learns so at once. It is a problem document,
/// as on the REST port, so that the command line shows its detail.
const WRONG_PORT: &str = concat!(
    "HTTP/1.1 400 Bad Request\r\n",
    "content-type: application/problem+json\r\n",
    "content-length: 177\r\n",
    "connection: close\r\n",
    "\r\n",
    r#"{"type":"about:blank","title":"Bad Request","status":400,"code":"wrong_port","#,
    r#""detail":"this is the agents' port (gRPC); REST is on the --http port, by default 4680","errors":[]}"#,
);

/// The limits of connections.
#[derive(Clone, Copy, Debug)]
struct ConnectionLimits {
    bounds: Bounds,
    /// Time limit for the first bytes, and for reading the refusal on the wrong port.
    first_bytes: Duration,
    /// Maximum time without a call.
    idle: Duration,
}

impl Default for ConnectionLimits {
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

/// Serves until `closing`, and then until all calls in progress have a response.
pub(crate) async fn serve(listener: TcpListener, host: Arc<impl Link + 'static>, closing: CancellationToken) {
    serve_with(ConnectionLimits::default(), listener, host, closing).await;
}

async fn serve_with(
    limit: ConnectionLimits,
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
    let mut door = Door::new(listener, "grpc", limit.bounds);
    while let Some((stream, permit)) = door.accept(&closing).await {
        let connected = Connected::new(agent.clone(), intake.of_connection());
        let (builder, watcher, closing) = (builder.clone(), connections.watcher(), closing.clone());
        spawn.execute(async move {
            let _permit = permit;
            let opened = tokio::select! {
                opened = open(stream, limit.first_bytes) => opened,
                () = closing.cancelled() => None,
            };
            let stream = match opened {
                Some((Protocol::Http2, stream)) => stream,
                Some((Protocol::Http1, stream)) => {
                    return refuse(stream, WRONG_PORT.as_bytes(), limit.first_bytes).await;
                }
                None => return,
            };
            let calls = connected.calls();
            let connection = watcher.watch(builder.serve_connection(TokioIo::new(stream), connected));
            tokio::select! {
                biased;
                ended = connection => if let Err(error) = ended {
                    debug!(%error, "a connection ended with an error");
                },
                // No call in progress is aborted.
                () = calls.until_idle(limit.idle) => debug!("closed a connection without calls"),
            }
        });
    }
    // New connections are refused from now on.
    drop(door);
    connections.shutdown().await;
}

#[cfg(test)]
mod tests;
