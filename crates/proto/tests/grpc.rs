//! The protocol over a real gRPC connection: messages arrive as they were sent.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use downbeat_core::execution::{Outcome, Stream, Verdict};
use downbeat_core::ids::{ClusterId, ExecutionId, LeaseToken, NodeId, RunId, SessionId};
use downbeat_core::limits;
use downbeat_core::node::Description;
use downbeat_core::work::{Origin, Parent};
use downbeat_proto::Link;
use downbeat_proto::grpc::generated::agent_client::AgentClient;
use downbeat_proto::grpc::{Client, generated as wire, service};
use downbeat_proto::message::{
    Assignment, Fault, Finished, Free, Heartbeat, HeartbeatAnswer, Hello, InstanceId, LeaseRef, Output,
    OutputChunk, Poll, PollAnswer, Receipt, Register, Registered, Report, ReportAnswer, Started, Welcome,
    WorkKind,
};
use jiff::Timestamp;
use tonic::transport::server::TcpIncoming;
use uuid::Uuid;

/// Records requests as text, and returns prepared responses.
#[derive(Debug, Default)]
struct Host {
    received: Mutex<Vec<String>>,
    fault: Mutex<Option<Fault>>,
}

impl Host {
    fn receive<T>(&self, message: &impl std::fmt::Debug, answer: T) -> Result<T, Fault> {
        self.received.lock().unwrap().push(format!("{message:?}"));
        self.fault.lock().unwrap().clone().map_or(Ok(answer), Err)
    }
}

#[async_trait]
impl Link for Host {
    async fn hello(&self, hello: Hello) -> Result<Welcome, Fault> {
        self.receive(&hello, welcome())
    }
    async fn register(&self, register: Register) -> Result<Registered, Fault> {
        self.receive(&register, Registered { reset: true })
    }
    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatAnswer, Fault> {
        self.receive(
            &heartbeat,
            HeartbeatAnswer { refused: vec![held(1)], stop: vec![held(2)], unheard: vec![held(3)] },
        )
    }
    async fn poll(&self, poll: Poll) -> Result<PollAnswer, Fault> {
        self.receive(&poll, poll_answer())
    }
    async fn report(&self, report: Report) -> Result<ReportAnswer, Fault> {
        self.receive(&report, report_answer())
    }
    async fn output(&self, output: Output) -> Result<(), Fault> {
        self.receive(&output, ())
    }
}

async fn connected() -> (Arc<Host>, Client) {
    let (host, address) = listening();
    (host, Client::connect(&address.to_string()).await.unwrap())
}

fn listening() -> (Arc<Host>, SocketAddr) {
    let host = Arc::new(Host::default());
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = incoming.local_addr().unwrap();
    let server = tonic::transport::Server::builder().add_service(service(host.clone()));
    tokio::spawn(server.serve_with_incoming(incoming));
    (host, address)
}

fn held(number: u128) -> LeaseRef {
    LeaseRef {
        execution: ExecutionId(Uuid::from_u128(number)),
        token: LeaseToken(Uuid::from_u128(number + 100)),
    }
}

fn node() -> NodeId {
    NodeId::derive(ClusterId::DEFAULT, "node-1")
}

fn session() -> SessionId {
    SessionId(Uuid::from_u128(9))
}

fn at() -> Timestamp {
    "2031-05-06T07:08:09.123456Z".parse().unwrap()
}

fn welcome() -> Welcome {
    Welcome {
        cluster: ClusterId::DEFAULT,
        server_name: "server".to_owned(),
        version: "1".to_owned(),
        heartbeat_interval: Duration::from_millis(10_500),
        lease_ttl: Duration::from_secs(30),
        output_max_bytes: 1 << 20,
        protocol: 1,
        keeps_undelivered: true,
    }
}

fn poll_answer() -> PollAnswer {
    let assignment = Assignment {
        execution: held(3).execution,
        token: held(3).token,
        of: Origin::Step { run: RunId::from("nightly:2031"), step: 7, item: None },
        attempt: 2,
        kind: WorkKind::Placed,
        backend: "exec".to_owned(),
        action: "run".to_owned(),
        params: Arc::new([("command".to_owned(), serde_json::json!(["echo", "ü"]))].into()),
        timeout: Duration::from_secs(1800),
        stop_on_disconnect: true,
        outputs: Vec::new(),
    };
    PollAnswer { assignments: vec![assignment], stop: vec![held(4)] }
}

fn chunk(text: String) -> OutputChunk {
    OutputChunk { execution: held(1).execution, offset: 1 << 40, stream: Stream::Stderr, text, at: at() }
}

fn report() -> Report {
    Report {
        node: node(),
        session: session(),
        started: vec![Started { held: held(1), of: Parent::Run(RunId::from("run")), at: at() }],
        finished: vec![Finished {
            held: held(2),
            of: Parent::Run(RunId::from("run")),
            outcome: Outcome {
                verdict: Verdict::Failed,
                exit_code: Some(-1),
                error: Some("why".to_owned()),
                started_at: at(),
                finished_at: at(),
                outputs: [("version".to_owned(), serde_json::json!(["1.2", null, {"ü": 3}]))].into(),
                received_at: None,
            },
            output: vec![chunk("last words".to_owned())],
        }],
        free: Free { fleet: 1, placed: 4, debug: None },
        poll: 12,
        takes_work: true,
    }
}

fn report_answer() -> ReportAnswer {
    let receipts = vec![Receipt::Recorded, Receipt::Refused];
    ReportAnswer { receipts, assignments: poll_answer().assignments }
}

fn output(chunks: Vec<OutputChunk>) -> Output {
    Output { node: node(), session: session(), held: vec![held(1)], chunks }
}

#[tokio::test]
async fn every_message_arrives_as_it_was_said() {
    let (host, client) = connected().await;
    let hello = Hello { cluster: "default".to_owned(), version: "1".to_owned(), protocol: 1 };
    let description: Description = serde_json::from_value(
        serde_json::json!({"hostname": "node-1", "slots": 4, "labels": {"disk": "ssd"}, "capabilities": {"cpu": 2}}),
    )
    .unwrap();
    let register = Register {
        cluster: ClusterId::DEFAULT,
        node: node(),
        session: session(),
        description,
        instance: InstanceId(vec![7; 32]),
        undelivered: vec![held(3)],
        life: 1 << 40,
    };
    let heartbeat = Heartbeat {
        node: node(),
        session: session(),
        held: vec![held(1), held(2)],
        leaving: true,
        problems: vec!["the disk is full".to_owned()],
    };
    let free = Free { fleet: 0, placed: 3, debug: None };
    let wait = Duration::from_secs(30);
    let poll = Poll { node: node(), session: session(), free, poll: 5, resync: Some(vec![]), wait };
    let plain = Poll { resync: None, ..poll.clone() };
    let output = output(vec![chunk("text".to_owned())]);

    assert_eq!(client.hello(hello.clone()).await, Ok(welcome()));
    assert_eq!(client.register(register.clone()).await, Ok(Registered { reset: true }));
    let answer = HeartbeatAnswer { refused: vec![held(1)], stop: vec![held(2)], unheard: vec![held(3)] };
    assert_eq!(client.heartbeat(heartbeat.clone()).await, Ok(answer));
    assert_eq!(client.poll(poll.clone()).await, Ok(poll_answer()));
    assert_eq!(client.poll(plain.clone()).await, Ok(poll_answer()));
    assert_eq!(client.report(report()).await, Ok(report_answer()));
    assert_eq!(client.output(output.clone()).await, Ok(()));

    let expected = [
        format!("{hello:?}"),
        format!("{register:?}"),
        format!("{heartbeat:?}"),
        format!("{poll:?}"),
        format!("{plain:?}"),
        format!("{:?}", report()),
        format!("{output:?}"),
    ];
    assert_eq!(*host.received.lock().unwrap(), expected);
}

#[tokio::test]
async fn faults_arrive_as_what_they_are() {
    let (host, client) = connected().await;
    for fault in [
        Fault::NotFound("n".to_owned()),
        Fault::NoCluster("c".to_owned()),
        Fault::Superseded("s".to_owned()),
        Fault::Unknown("k".to_owned()),
        Fault::Occupied("o".to_owned()),
        Fault::Unavailable("u".to_owned()),
    ] {
        *host.fault.lock().unwrap() = Some(fault.clone());
        assert_eq!(client.report(report()).await, Err(fault));
    }
}

#[tokio::test]
async fn what_is_too_large_or_no_name_is_rejected_and_the_connection_goes_on() {
    let (host, client) = connected().await;
    let long = "x".repeat(limits::OUTPUT_CHUNK_BYTES + 1);
    assert!(matches!(client.output(output(vec![chunk(long)])).await, Err(Fault::Rejected(_))));
    let nameless = Hello { cluster: String::new(), version: String::new(), protocol: 1 };
    assert!(matches!(client.hello(nameless).await, Err(Fault::Rejected(_))));
    let many = vec![chunk("x".repeat(limits::OUTPUT_CHUNK_BYTES)); 700];
    assert!(matches!(client.output(output(many)).await, Err(Fault::Rejected(_))));
    assert!(host.received.lock().unwrap().is_empty());
    assert!(client.report(report()).await.is_ok());
}

#[tokio::test]
async fn a_long_error_is_cut_not_refused() {
    let (host, client) = connected().await;
    let mut report = report();
    report.finished[0].outcome.error = Some("é".repeat(limits::REASON_BYTES));
    assert!(client.report(report).await.is_ok());
    let received = host.received.lock().unwrap()[0].clone();
    assert_eq!(received.matches('é').count(), (limits::REASON_BYTES - "…".len()) / 2);
    assert!(received.contains("é…"), "it says that it was cut");
}

/// If it were refused, its agent would send it forever.
#[tokio::test]
async fn a_result_that_makes_no_sense_has_failed_and_is_not_refused() {
    let (host, address) = listening();
    let mut client = AgentClient::connect(format!("http://{address}")).await.unwrap();
    let uuid = |id: Uuid| id.as_bytes().to_vec();
    for (outputs, expected) in [
        ("{", "its agent sent outputs that cannot be read"),
        ("[1]", "its agent sent outputs that cannot be read"),
        (&*format!("{{\"a\": \"{}\"}}", "x".repeat(8 * limits::VALUES_BYTES)), "larger than 64 KiB"),
    ] {
        let finished = wire::Finished {
            execution_id: uuid(held(2).execution.0),
            token: uuid(held(2).token.0),
            run_id: "run".to_owned(),
            verdict: wire::Verdict::Succeeded.into(),
            started_at_us: i64::MAX,
            finished_at_us: i64::MIN,
            outputs_json: Some(outputs.to_owned()),
            ..Default::default()
        };
        let (node_id, session_id) = (uuid(node().0), uuid(session().0));
        let report =
            wire::ReportRequest { node_id, session_id, finished: vec![finished], ..Default::default() };
        client.report(report).await.unwrap();
        let received = host.received.lock().unwrap().pop().unwrap();
        assert!(received.contains("verdict: Failed") && received.contains(expected), "{received}");
    }
}

#[tokio::test]
async fn nobody_there_is_unavailable_and_says_where() {
    let Err(Fault::Unavailable(why)) = Client::connect("127.0.0.1:1").await else {
        panic!("somebody is there")
    };
    assert!(why.starts_with("cannot connect to `127.0.0.1:1`: "), "{why}");
    assert!(matches!(Client::connect("not an address").await, Err(Fault::Rejected(_))));
}

#[tokio::test]
async fn a_port_that_is_not_for_agents_is_named_with_the_one_that_is() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let http1 = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let http1_address = http1.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = http1.accept().await {
            let _ = stream.read(&mut [0; 1024]).await;
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n").await;
        }
    });
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let http2_address = incoming.local_addr().unwrap();
    let without_agents = tonic::service::Routes::default();
    tokio::spawn(
        tonic::transport::Server::builder().add_routes(without_agents).serve_with_incoming(incoming),
    );

    let hello = Hello { cluster: "default".to_owned(), version: "0.1.0".to_owned(), protocol: 1 };
    for (address, what) in [
        (http1_address, "closed the connection during hello"),
        (http2_address, "does not support the agent protocol"),
    ] {
        let client = Client::connect(&address.to_string()).await.unwrap();
        let fault = client.hello(hello.clone()).await.unwrap_err();
        let Fault::Unavailable(text) = &fault else { panic!("{fault}") };
        assert!(text.starts_with(&format!("`{address}` {what}")), "{text}");
        let hint = "is this the REST port? agents connect to the gRPC port, by default 4681";
        assert!(text.ends_with(hint), "{text}");
    }
}
