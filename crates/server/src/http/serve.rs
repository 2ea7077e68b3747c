//! Owns the connections of the REST port: limited in number, each with time limits for requests. Responses
//! have no time limit, so streams can stay open.

use std::time::Duration;

use axum::Router;
use downbeat_core::limits;
use hyper::rt::Executor;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::doors::{Bounds, Door, Spawn, open};

/// An HTTP/2 client that is silent for this long is pinged, and disconnected if it does not respond for as long again.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// The limits of one port. Tests set their own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortLimits {
    pub(crate) connections: Bounds,
    /// Time limit for the first bytes of a connection.
    pub(crate) first_bytes: Duration,
    /// Time limit for the header of a request, after the previous request.
    pub(crate) header: Duration,
}

impl Default for PortLimits {
    fn default() -> Self {
        Self {
            connections: Bounds {
                total: limits::HTTP_CONNECTIONS,
                per_address: limits::HTTP_CONNECTIONS_PER_ADDRESS,
                loopback: limits::HTTP_CONNECTIONS_LOOPBACK,
            },
            first_bytes: Duration::from_secs(limits::FIRST_BYTES_S),
            header: Duration::from_secs(limits::HTTP_HEADER_S),
        }
    }
}

/// Serves until `closing`, and then until all current requests have a response.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    port: PortLimits,
    closing: CancellationToken,
) {
    let spawn = Spawn::current();
    let mut builder = auto::Builder::new(spawn.clone());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(port.header)
        .max_buf_size(limits::HTTP_HEADER_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE)
        .max_concurrent_streams(limits::HTTP_STREAMS)
        .max_frame_size(limits::HTTP_FRAME_BYTES)
        .max_header_list_size(limits::HTTP_HEADER_BYTES as u32);
    let service = TowerToHyperService::new(router);
    let connections = GracefulShutdown::new();
    let mut door = Door::new(listener, "http", port.connections);
    while let Some((stream, permit)) = door.accept(&closing).await {
        let (builder, service) = (builder.clone(), service.clone());
        let (watcher, closing) = (connections.watcher(), closing.clone());
        spawn.execute(async move {
            let _permit = permit;
            let opened = tokio::select! {
                opened = open(stream, port.first_bytes) => opened,
                () = closing.cancelled() => None,
            };
            let Some((_, stream)) = opened else { return };
            let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
            if let Err(error) = watcher.watch(connection).await {
                debug!(%error, "a connection ended with an error");
            }
        });
    }
    // New connections are refused from now on.
    drop(door);
    connections.shutdown().await;
}

#[cfg(test)]
mod tests;
