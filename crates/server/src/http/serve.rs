//! Owns the connections of the REST port: limited in number, each with time limits for requests. Responses
//! have no time limit, so streams can stay open.

use std::time::Duration;

use axum::Router;
use downbeat_core::limits;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::Watcher;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::doors::{self, Bounds, KEEPALIVE, PortLimits, Spawn};

pub(crate) const LIMITS: PortLimits = PortLimits {
    connections: Bounds {
        total: limits::HTTP_CONNECTIONS,
        per_address: limits::HTTP_CONNECTIONS_PER_ADDRESS,
        loopback: limits::HTTP_CONNECTIONS_LOOPBACK,
    },
    first_bytes: Duration::from_secs(limits::FIRST_BYTES_S),
    idle: Duration::from_secs(limits::HTTP_HEADER_S),
};

/// Serves until `closing`, and then until all current requests have a response.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    port: PortLimits,
    closing: CancellationToken,
) {
    let mut builder = auto::Builder::new(Spawn::current());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(port.idle)
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
    let connection = move |_, stream, watcher: Watcher| {
        let connection = builder.serve_connection(TokioIo::new(stream), service.clone()).into_owned();
        async move {
            if let Err(error) = watcher.watch(connection).await {
                debug!(%error, "a connection ended with an error");
            }
        }
    };
    doors::serve(listener, "http", port, closing, connection).await;
}

#[cfg(test)]
mod tests;
