//! Owns a simulated node: the real protocol over its own connection, without any backend. Every execution succeeds at
//! once.

use std::io;
use std::time::Duration;

use crate::bare::{Answer, Call, answer_from_bytes, call_to_bytes};
use downbeat_core::Timestamp;
use downbeat_core::backend::Catalogue;
use downbeat_core::execution::{Outcome, Verdict};
use downbeat_core::ids::{ClusterId, NodeId, SessionId};
use downbeat_core::node::Description;
use downbeat_proto::message::{
    Assignment, Finished, Free, Heartbeat, Hello, InstanceId, PROTOCOL, Poll, Register, Report,
};
use tokio::time::{Instant, sleep_until};

use super::http2::Connection;

const WAIT: Duration = Duration::from_secs(30);
const IDLE: Free = Free { fleet: 1, placed: 1 };
const BUSY: Free = Free { fleet: 0, placed: 0 };

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
        let Answer::Hello(welcome) = ask(&mut connection, Call::Hello(hello)).await? else {
            return Err(unexpected());
        };
        let id = NodeId::derive(welcome.cluster, &hostname);
        let session = SessionId(uuid::Uuid::new_v4());
        let register =
            Call::Register(Box::new(registration(welcome.cluster, id, session, hostname, version)));
        let Answer::Register = ask(&mut connection, register).await? else { return Err(unexpected()) };
        Ok(Self { connection, id, session, heartbeat_interval: welcome.heartbeat_interval, poll: 0 })
    }

    /// Serves until the connection fails.
    pub(super) async fn serve(mut self) -> io::Result<()> {
        // Real machines do not send their heartbeats at the same time.
        let phase = f64::from(self.id.0.as_u128() as u16) / f64::from(u16::MAX);
        let beat = sleep_until(Instant::now() + self.heartbeat_interval.mul_f64(phase));
        tokio::pin!(beat);
        self.ask_for_work(IDLE)?;
        loop {
            self.connection.send().await?;
            tokio::select! {
                biased;
                received = self.connection.receive() => {
                    let (kind, message) = received?;
                    if let Answer::Poll(answer) = answer_from_bytes(kind, &message).map_err(io::Error::other)? {
                        self.work(&answer.assignments)?;
                    }
                }
                () = &mut beat => {
                    beat.as_mut().reset(Instant::now() + self.heartbeat_interval);
                    let (node, session) = (self.id, self.session);
                    let (held, leaving, problems) = (Vec::new(), false, Vec::new());
                    self.say(Call::Heartbeat(Heartbeat { node, session, held, leaving, problems }))?;
                }
            }
        }
    }

    /// As in an agent, the next poll is sent before the work is done, and the report announces free slots.
    fn work(&mut self, assignments: &[Assignment]) -> io::Result<()> {
        if assignments.is_empty() {
            return self.ask_for_work(IDLE);
        }
        self.ask_for_work(BUSY)?;
        let finished = assignments.iter().map(done).collect();
        let (node, session, poll) = (self.id, self.session, self.poll);
        self.say(Call::Report(Report { node, session, started: Vec::new(), finished, free: IDLE, poll }))
    }

    fn ask_for_work(&mut self, free: Free) -> io::Result<()> {
        self.poll += 1;
        let (node, session, poll) = (self.id, self.session, self.poll);
        self.say(Call::Poll(Poll { node, session, free, poll, resync: None, wait: WAIT }))
    }

    fn say(&mut self, call: Call) -> io::Result<()> {
        say(&mut self.connection, call)
    }
}

fn say(connection: &mut Connection, call: Call) -> io::Result<()> {
    let (kind, message) = call_to_bytes(call).map_err(io::Error::other)?;
    connection.say(kind, &message)
}

async fn ask(connection: &mut Connection, call: Call) -> io::Result<Answer> {
    say(connection, call)?;
    connection.send().await?;
    let (kind, message) = connection.receive().await?;
    answer_from_bytes(kind, &message).map_err(io::Error::other)
}

fn unexpected() -> io::Error {
    io::Error::other("an answer to something else")
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
