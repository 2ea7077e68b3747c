//! A real port with short limits, and clients that misbehave.

use std::net::{Ipv4Addr, SocketAddr};

use axum::response::sse::{Event, Sse};
use axum::routing::get;
use futures_util::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::broadcast;
use tokio_stream::wrappers::BroadcastStream;

use super::*;

/// A test that waits longer than this fails.
const DEADLINE: Duration = Duration::from_secs(60);
/// Limits that a test waits for.
const SHORT: Duration = Duration::from_millis(50);
/// Limits that no test waits for.
const LONG: Duration = Duration::from_secs(3600);

const MANY: Bounds = Bounds { total: 100, per_address: 100, loopback: 100 };

struct Port {
    address: SocketAddr,
    events: broadcast::Sender<String>,
    closing: CancellationToken,
}

impl Port {
    async fn new(connections: Bounds, first_bytes: Duration, idle: Duration) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let events = broadcast::channel(16).0;
        let sender = events.clone();
        let stream = move || async move {
            let events = BroadcastStream::new(sender.subscribe());
            Sse::new(events.map(|text| text.map(|text| Event::default().data(text))))
        };
        let router = Router::new().route("/", get(|| async { "hello" })).route("/events", get(stream));
        let closing = CancellationToken::new();
        tokio::spawn(serve(listener, router, PortLimits { connections, first_bytes, idle }, closing.clone()));
        Self { address, events, closing }
    }

    async fn connect(&self) -> Client {
        Client(TcpStream::connect(self.address).await.unwrap())
    }

    async fn connect_from(&self, from: Ipv4Addr) -> Client {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        Client(socket.connect(self.address).await.unwrap())
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

struct Client(TcpStream);

impl Client {
    async fn send(&mut self, text: &str) {
        // The server may have closed the connection: the next read shows it.
        let _ = self.0.write_all(text.as_bytes()).await;
    }

    /// Reads until this text arrives.
    async fn reads(&mut self, wanted: &str) -> bool {
        let read = async {
            let mut text = Vec::new();
            while !text.windows(wanted.len()).any(|window| window == wanted.as_bytes()) {
                match self.0.read_buf(&mut text).await {
                    Ok(0) | Err(_) => return false,
                    Ok(_) => {}
                }
            }
            true
        };
        tokio::time::timeout(DEADLINE, read).await.expect("the server responds or closes")
    }

    async fn is_closed(&mut self) {
        let read = async {
            let mut rest = Vec::new();
            let _ = self.0.read_to_end(&mut rest).await;
        };
        tokio::time::timeout(DEADLINE, read).await.expect("the server closes the connection");
    }

    async fn is_served(&mut self) -> bool {
        self.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        self.reads("hello").await
    }
}

#[tokio::test]
async fn a_connection_that_sends_nothing_is_closed() {
    let port = Port::new(MANY, SHORT, LONG).await;
    port.connect().await.is_closed().await;
}

#[tokio::test]
async fn a_header_that_is_half_sent_is_closed() {
    let port = Port::new(MANY, LONG, SHORT).await;
    for text in ["G", "GET / HTTP/1.1\r\nHost: local"] {
        let mut client = port.connect().await;
        client.send(text).await;
        client.is_closed().await;
    }
}

#[tokio::test]
async fn an_idle_connection_is_closed() {
    let port = Port::new(MANY, LONG, SHORT).await;
    let mut client = port.connect().await;
    assert!(client.is_served().await);
    client.is_closed().await;
}

#[tokio::test]
async fn a_stream_goes_on_after_the_time_for_a_header() {
    let port = Port::new(MANY, SHORT, SHORT).await;
    let mut stream = port.connect().await;
    stream.send("GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    assert!(stream.reads("text/event-stream").await);
    // A later connection has also reached its time limit.
    let mut idle = port.connect().await;
    assert!(idle.is_served().await);
    idle.is_closed().await;
    port.events.send("still here".to_owned()).unwrap();
    assert!(stream.reads("still here").await);
}

#[tokio::test]
async fn one_address_gets_no_more_than_its_share() {
    let bounds = Bounds { total: 100, per_address: 100, loopback: 2 };
    let port = Port::new(bounds, LONG, LONG).await;
    let (mut one, mut two) = (port.connect().await, port.connect().await);
    assert!(one.is_served().await && two.is_served().await);
    assert!(!port.connect().await.is_served().await);
    assert!(port.connect_from(Ipv4Addr::new(127, 0, 0, 2)).await.is_served().await);
    assert!(one.is_served().await, "the others continue");
    drop(two);
    let again = async { while !port.connect().await.is_served().await {} };
    tokio::time::timeout(DEADLINE, again).await.expect("there is room again");
}

#[tokio::test]
async fn a_flood_of_connections_keeps_no_stream_from_its_events() {
    let bounds = Bounds { total: 20, per_address: 20, loopback: 20 };
    let port = Port::new(bounds, SHORT, SHORT).await;
    let mut stream = port.connect().await;
    stream.send("GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    assert!(stream.reads("text/event-stream").await);
    let mut flood = Vec::new();
    for _ in 0..200 {
        flood.push(port.connect().await);
    }
    port.events.send("during the flood".to_owned()).unwrap();
    assert!(stream.reads("during the flood").await);
    // The accepted ones are silent, and make room after their time limit.
    for client in &mut flood {
        client.is_closed().await;
    }
    assert!(port.connect().await.is_served().await);
}

#[tokio::test]
async fn a_header_without_end_is_refused() {
    let port = Port::new(MANY, LONG, LONG).await;
    let mut client = port.connect().await;
    client.send("GET / HTTP/1.1\r\nHost: localhost\r\nX: ").await;
    client.send(&"x".repeat(2 * limits::HTTP_HEADER_BYTES)).await;
    assert!(client.reads("431 Request Header Fields Too Large").await);
    client.is_closed().await;
}
