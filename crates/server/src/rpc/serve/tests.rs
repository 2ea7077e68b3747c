//! The agents' port with peers that are not agents.

use std::net::SocketAddr;

use async_trait::async_trait;
use downbeat_proto::message::{
    Fault, Heartbeat, HeartbeatAnswer, Hello, Output, Poll, PollAnswer, Register, Registered, Report,
    ReportAnswer, Welcome,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::*;

/// The maximum duration in these tests.
const SOON: Duration = Duration::from_secs(30);
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const FRAME_SIZE_ERROR: u8 = 6;

#[derive(Debug)]
struct Nobody;

fn no_service<T>() -> Result<T, Fault> {
    Err(Fault::Unavailable("no agent service".to_owned()))
}

#[async_trait]
impl Link for Nobody {
    async fn hello(&self, _: Hello) -> Result<Welcome, Fault> {
        no_service()
    }
    async fn register(&self, _: Register) -> Result<Registered, Fault> {
        no_service()
    }
    async fn heartbeat(&self, _: Heartbeat) -> Result<HeartbeatAnswer, Fault> {
        no_service()
    }
    async fn poll(&self, _: Poll) -> Result<PollAnswer, Fault> {
        no_service()
    }
    async fn report(&self, _: Report) -> Result<ReportAnswer, Fault> {
        no_service()
    }
    async fn output(&self, _: Output) -> Result<(), Fault> {
        no_service()
    }
}

#[async_trait]
impl Ready for Nobody {
    async fn is_ready(&self) -> bool {
        true
    }
    async fn stops(&self) {
        std::future::pending::<()>().await;
    }
}

/// Starts a port with these limits; it closes with the token.
async fn port(limits: PortLimits) -> (SocketAddr, CancellationToken) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, closing) = (listener.local_addr().unwrap(), CancellationToken::new());
    tokio::spawn(serve(listener, Arc::new(Nobody), Arc::new(Nobody), limits, closing.clone()));
    (address, closing)
}

fn frame(length: usize, kind: u8, flags: u8, stream: u32) -> Vec<u8> {
    let length = u32::try_from(length).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat()
}

/// Returns the kind and the content of the next frame; `None` at the end of the connection.
async fn next(stream: &mut TcpStream) -> Option<(u8, Vec<u8>)> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.ok()?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut body = vec![0; length as usize];
    stream.read_exact(&mut body).await.ok()?;
    Some((head[3], body))
}

async fn closes(stream: &mut TcpStream) {
    let ended = async { while next(stream).await.is_some() {} };
    timeout(SOON, ended).await.expect("the server closes the connection");
}

async fn greeted(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(PREFACE).await.unwrap();
    stream.write_all(&frame(0, SETTINGS, 0, 0)).await.unwrap();
    stream
}

#[tokio::test]
async fn a_peer_gets_the_limits_of_a_connection() {
    let (address, _closing) = port(port_limits(10)).await;
    let mut stream = greeted(address).await;
    let (kind, settings) = timeout(SOON, next(&mut stream)).await.unwrap().unwrap();
    assert_eq!(kind, SETTINGS);
    let announced = |number: u8| {
        let mut pairs = settings.chunks_exact(6);
        let pair = pairs.find(|pair| pair[..2] == [0, number]).expect("the setting is announced");
        u32::from_be_bytes(pair[2..].try_into().unwrap())
    };
    assert_eq!(
        (announced(3), announced(5), announced(6)),
        (16, 64 * 1024, 8 * 1024),
        "streams, frame, headers"
    );
}

#[tokio::test]
async fn a_frame_that_is_too_large_ends_its_connection_before_it_is_read() {
    let (address, _closing) = port(port_limits(10)).await;
    for _ in 0..60 {
        let mut stream = greeted(address).await;
        // Only its header declares a length.
        stream.write_all(&frame(10 * 1024 * 1024, HEADERS, 4, 1)).await.unwrap();
        let goaway = async {
            loop {
                match next(&mut stream).await.expect("the server sends a reason") {
                    (GOAWAY, body) => return body,
                    _ => continue,
                }
            }
        };
        let goaway = timeout(SOON, goaway).await.expect("the server responds in time");
        assert_eq!(goaway[7], FRAME_SIZE_ERROR);
        closes(&mut stream).await;
    }
}

#[tokio::test]
async fn silence_and_half_a_preface_are_not_waited_for() {
    let limits = PortLimits { first_bytes: Duration::from_millis(50), ..port_limits(10) };
    let (address, _closing) = port(limits).await;
    for half in [&b""[..], &PREFACE[..10]] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(half).await.unwrap();
        closes(&mut stream).await;
    }
}

#[tokio::test]
async fn a_connection_that_makes_no_call_is_closed() {
    let limits = PortLimits { idle: Duration::from_millis(50), ..port_limits(10) };
    let (address, _closing) = port(limits).await;
    closes(&mut greeted(address).await).await;
}

#[tokio::test]
async fn connections_are_bounded_and_one_that_ends_makes_room() {
    let connections = Bounds { total: 2, per_address: 2, loopback: 2 };
    let (address, _closing) = port(PortLimits { connections, ..port_limits(10) }).await;
    let mut held = [greeted(address).await, greeted(address).await];
    for stream in &mut held {
        timeout(SOON, next(stream)).await.unwrap().expect("it is served");
    }
    closes(&mut TcpStream::connect(address).await.unwrap()).await;
    drop(held);
    let served = async {
        while next(&mut greeted(address).await).await.is_none() {
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, served).await.expect("there is room again");
}

#[test]
fn a_small_cluster_has_room_for_connections_that_were_not_closed() {
    let bounds = port_limits(1).connections;
    assert_eq!(bounds.per_address, 64);
    assert!(bounds.total > bounds.per_address);
    assert_eq!(port_limits(1_000).connections.per_address, 2_000);
}

#[tokio::test]
async fn http1_gets_the_response_that_this_is_the_port_of_agents() {
    let (head, body) = WRONG_PORT.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{head} {}", body.len());
    let problem: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(problem["code"], "wrong_port");
    let (address, _closing) = port(port_limits(10)).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /api/v1/nodes HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    timeout(SOON, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert_eq!(answer, WRONG_PORT);
}

/// A message of the maximum size.
#[tokio::test]
async fn a_large_message_arrives_in_many_frames() {
    let (address, _closing) = port(port_limits(10)).await;
    let link = grpc::Client::connect(&address.to_string()).await.unwrap();
    let chunk = downbeat_proto::message::OutputChunk {
        execution: downbeat_core::ids::ExecutionId(uuid::Uuid::nil()),
        offset: 0,
        stream: downbeat_core::execution::Stream::Stdout,
        text: "x".repeat(limits::OUTPUT_CHUNK_BYTES),
        at: downbeat_core::Timestamp::UNIX_EPOCH,
    };
    let output = Output {
        node: downbeat_core::ids::NodeId(uuid::Uuid::nil()),
        session: downbeat_core::ids::SessionId(uuid::Uuid::nil()),
        held: Vec::new(),
        chunks: vec![chunk; 9 * 1024 * 1024 / limits::OUTPUT_CHUNK_BYTES],
    };
    assert_eq!(link.output(output).await, no_service(), "it reached the host");
}
