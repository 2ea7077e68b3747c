//! Owns the agents' connections: thousands, each with one parked call. Only HTTP/2 and its limits lie
//! between a connection and the calls: every further layer would cost each node of a fleet.

use std::sync::Arc;
use std::time::Duration;

use downbeat_core::limits;
use downbeat_proto::{Link, Ready, grpc};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::Watcher;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::connected::Connected;
use super::intake::Intake;
use crate::doors::{self, Bounds, KEEPALIVE, PortLimits, Protocol, Spawn, refuse};

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

/// Returns the limits of the port for clusters of this many nodes.
pub(crate) fn port_limits(max_nodes: u32) -> PortLimits {
    let of_nodes = (max_nodes as usize).saturating_mul(limits::CONNECTIONS_PER_NODE);
    let per_address = of_nodes.max(limits::AGENT_CONNECTIONS_PER_ADDRESS);
    let total = per_address.saturating_add(limits::AGENT_CONNECTIONS_RESERVE);
    PortLimits {
        connections: Bounds { total, per_address, loopback: total },
        first_bytes: Duration::from_secs(limits::AGENT_FIRST_BYTES_S),
        idle: Duration::from_secs(limits::AGENT_IDLE_S),
    }
}

/// Serves until `closing`, and then until all calls in progress have a response.
pub(crate) async fn serve(
    listener: TcpListener,
    host: Arc<impl Link + 'static>,
    ready: Arc<impl Ready>,
    port: PortLimits,
    closing: CancellationToken,
) {
    let mut builder = http2::Builder::new(Spawn::current());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(KEEPALIVE))
        .keep_alive_timeout(KEEPALIVE)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(limits::AGENT_STREAMS)
        .max_header_list_size(limits::AGENT_HEADER_BYTES)
        .max_frame_size(limits::AGENT_FRAME_BYTES);
    let services = grpc::Services::new(host, ready);
    let intake = Intake::new(limits::LARGE_MESSAGES_BYTES, limits::LARGE_MESSAGES_PER_CONNECTION_BYTES);
    let connection = move |protocol, stream, watcher: Watcher| {
        let connected = Connected::new(services.clone(), intake.of_connection());
        let builder = builder.clone();
        async move {
            if protocol == Protocol::Http1 {
                return refuse(stream, WRONG_PORT.as_bytes(), port.first_bytes).await;
            }
            let calls = connected.calls.clone();
            let service = service_fn(move |request| connected.call(request));
            let connection = watcher.watch(builder.serve_connection(TokioIo::new(stream), service));
            tokio::select! {
                biased;
                ended = connection => if let Err(error) = ended {
                    debug!(%error, "a connection ended with an error");
                },
                // No call in progress is aborted.
                () = calls.until_idle(port.idle) => debug!("closed a connection without calls"),
            }
        }
    };
    doors::serve(listener, "grpc", port, closing, connection).await;
}

#[cfg(test)]
mod tests;
