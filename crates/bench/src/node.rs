//! Owns a simulated node: the real protocol over its own connection, without any backend. Every execution succeeds at
//! once.

use std::io;
use std::time::Duration;

use downbeat_core::Timestamp;
use downbeat_core::backend::Catalogue;
use downbeat_core::execution::{Outcome, Verdict};
use downbeat_core::ids::{ClusterId, NodeId, SessionId};
use downbeat_core::node::Description;
use downbeat_proto::grpc::generated::RegisterResponse;
use downbeat_proto::grpc::request::{
    heartbeat_to_wire, hello_to_wire, poll_answer_from_wire, poll_to_wire, register_to_wire,
    report_answer_from_wire, report_to_wire, welcome_from_wire,
};
use downbeat_proto::message::{
    Assignment, Finished, Free, Heartbeat, Hello, InstanceId, PROTOCOL, Poll, Register, Report,
};
use prost::Message;
use tokio::time::{Instant, sleep_until};

use super::http2::{Connection, Kind};

const WAIT: Duration = Duration::from_secs(30);
const IDLE: Free = Free { fleet: 1, placed: 1, debug: None };
const BUSY: Free = Free { fleet: 0, placed: 0, debug: None };

/// One registered node that is about to poll.
#[derive(Debug)]
pub(super) struct Node {
    connection: Connection,
    id: NodeId,
    session: SessionId,
    heartbeat_interval: Duration,
    /// Numbers the polls of the session.
    poll: u64,
}

impl Node {
    pub(super) async fn join(address: &str, hostname: String) -> io::Result<Self> {
        let mut connection = Connection::open(address).await?;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let hello = Hello { cluster: "default".to_owned(), version: version.clone(), protocol: PROTOCOL };
        let welcome = decode(&ask(&mut connection, Kind::Hello, &hello_to_wire(hello)).await?)?;
        let welcome = welcome_from_wire(welcome).map_err(io::Error::other)?;
        let id = NodeId::derive(welcome.cluster, &hostname);
        let session = SessionId(uuid::Uuid::new_v4());
        let register = registration(welcome.cluster, id, session, hostname, version);
        let register = register_to_wire(&register).map_err(io::Error::other)?;
        let RegisterResponse { .. } = decode(&ask(&mut connection, Kind::Register, &register).await?)?;
        Ok(Self { connection, id, session, heartbeat_interval: welcome.heartbeat_interval, poll: 0 })
    }

    pub(super) fn heartbeat_interval(&self) -> Duration {
        self.heartbeat_interval
    }

    /// Serves until the connection fails. Calls `on_heartbeat` for each heartbeat with the time from when it was due to
    /// its response.
    pub(super) async fn serve(mut self, on_heartbeat: impl Fn(Duration)) -> io::Result<()> {
        // Real machines do not send their heartbeats at the same time.
        let phase = f64::from(self.id.0.as_u128() as u16) / f64::from(u16::MAX);
        let beat = sleep_until(Instant::now() + self.heartbeat_interval.mul_f64(phase));
        tokio::pin!(beat);
        // When the oldest heartbeat without a response was due.
        let mut due = None;
        self.ask_for_work(IDLE)?;
        loop {
            self.connection.send().await?;
            tokio::select! {
                biased;
                received = self.connection.receive() => {
                    let (kind, message) = received?;
                    match kind {
                        Kind::Poll => {
                            let answer = poll_answer_from_wire(decode(&message)?).map_err(io::Error::other)?;
                            self.polled(&answer.assignments)?;
                        }
                        Kind::Report => {
                            let answer = report_answer_from_wire(decode(&message)?).map_err(io::Error::other)?;
                            self.report(&answer.assignments)?;
                        }
                        Kind::Heartbeat => {
                            if let Some(due) = due.take() {
                                on_heartbeat(Instant::now().duration_since(due));
                            }
                        }
                        Kind::Hello | Kind::Register => {}
                    }
                }
                () = &mut beat => {
                    due.get_or_insert(beat.deadline());
                    beat.as_mut().reset(Instant::now() + self.heartbeat_interval);
                    let (node, session) = (self.id, self.session);
                    let (held, leaving, problems) = (Vec::new(), false, Vec::new());
                    let heartbeat = Heartbeat { node, session, held, leaving, problems };
                    self.connection.say(Kind::Heartbeat, &heartbeat_to_wire(heartbeat).encode_to_vec())?;
                }
            }
        }
    }

    /// As in an agent, the next poll is sent before the work is done, and the report announces free slots.
    fn polled(&mut self, assignments: &[Assignment]) -> io::Result<()> {
        if assignments.is_empty() {
            return self.ask_for_work(IDLE);
        }
        self.ask_for_work(BUSY)?;
        self.report(assignments)
    }

    fn report(&mut self, assignments: &[Assignment]) -> io::Result<()> {
        if assignments.is_empty() {
            return Ok(());
        }
        let finished = assignments.iter().map(done).collect();
        let (node, session, poll) = (self.id, self.session, self.poll);
        let (started, takes_work) = (Vec::new(), true);
        let report = Report { node, session, started, finished, free: IDLE, poll, takes_work };
        self.connection.say(Kind::Report, &report_to_wire(report).encode_to_vec())
    }

    fn ask_for_work(&mut self, free: Free) -> io::Result<()> {
        self.poll += 1;
        let (node, session, poll) = (self.id, self.session, self.poll);
        let poll = Poll { node, session, free, poll, resync: None, wait: WAIT };
        self.connection.say(Kind::Poll, &poll_to_wire(poll).encode_to_vec())
    }
}

fn decode<M: Message + Default>(bytes: &[u8]) -> io::Result<M> {
    M::decode(bytes).map_err(|error| io::Error::other(format!("`answer` {error}")))
}

async fn ask(connection: &mut Connection, kind: Kind, request: &impl Message) -> io::Result<Vec<u8>> {
    connection.say(kind, &request.encode_to_vec())?;
    connection.send().await?;
    match connection.receive().await? {
        (answered, message) if answered == kind => Ok(message),
        _ => Err(io::Error::other("an answer to something else")),
    }
}

fn registration(
    cluster: ClusterId,
    node: NodeId,
    session: SessionId,
    hostname: String,
    version: String,
) -> Register {
    let description = Description {
        hostname,
        groups: vec!["bench".to_owned()],
        labels: std::collections::BTreeMap::new(),
        capabilities: std::collections::BTreeMap::new(),
        backends: Catalogue::builtin().backends().to_vec(),
        slots: 1,
        version,
    };
    let (instance, undelivered, life) = (InstanceId::default(), Vec::new(), 0);
    Register { cluster, node, session, description, instance, undelivered, life }
}

fn done(assignment: &Assignment) -> Finished {
    let (of, outcome) = (assignment.of.parent(), succeeded(Timestamp::now()));
    Finished { held: assignment.lease(), of, outcome, output: Vec::new() }
}

/// Returns the outcome of an attempt without work.
pub(super) fn succeeded(now: Timestamp) -> Outcome {
    Outcome {
        verdict: Verdict::Succeeded,
        exit_code: Some(0),
        error: None,
        started_at: now,
        finished_at: now,
        outputs: Default::default(),
        received_at: None,
    }
}
