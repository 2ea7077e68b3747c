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
use tracing::{debug, warn};

use crate::doors::{Protocol, Spawn, open, refuse};

/// A node that is silent for this long is pinged, and one that does not answer for as long again is hung up on.
const KEEPALIVE: Duration = Duration::from_secs(20);
const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// No connection can be accepted (there are too many open files): some may close meanwhile.
const PAUSE: Duration = Duration::from_millis(100);

/// How long a connection may take for its first bytes, and for reading that it came to the wrong port.
const FIRST_BYTES: Duration = Duration::from_secs(limits::FIRST_BYTES_S);

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

/// Serves until `closing`, and then until every call that is under way is answered.
pub(crate) async fn serve(listener: TcpListener, host: Arc<impl Link + 'static>, closing: CancellationToken) {
    let spawn = Spawn::current();
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
        let (builder, service) = (builder.clone(), service.clone());
        let (watcher, closing) = (connections.watcher(), closing.clone());
        spawn.execute(async move {
            let opened = tokio::select! {
                opened = open(stream, FIRST_BYTES) => opened,
                () = closing.cancelled() => None,
            };
            let stream = match opened {
                Some((Protocol::Http2, stream)) => stream,
                Some((Protocol::Http1, stream)) => {
                    return refuse(stream, WRONG_PORT.as_bytes(), FIRST_BYTES).await;
                }
                None => return,
            };
            let connection = builder.serve_connection(TokioIo::new(stream), service);
            if let Err(error) = watcher.watch(connection).await {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_to_http1_is_as_long_as_it_says_and_is_json() {
        let (head, body) = WRONG_PORT.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{head} {}", body.len());
        let problem: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(problem["code"], "wrong_port");
    }
}
