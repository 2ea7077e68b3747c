//! An agent without a machine: it gets work and sends the reports that a test requests.

use std::sync::Arc;
use std::time::Duration;

use downbeat_core::Timestamp;
use downbeat_core::backend::{BackendSchema, Catalogue};
use downbeat_core::execution::{Outcome, Stream, Verdict};
use downbeat_core::ids::{ClusterId, NodeId, SessionId};
use downbeat_core::node::Description;
use downbeat_proto::Link;
use downbeat_proto::grpc::Client;
use downbeat_proto::message::{
    Assignment, Fault, Finished, Free, Heartbeat, HeartbeatAnswer, InstanceId, LeaseRef, Output, OutputChunk,
    Poll, Register, Report, Started,
};
use downbeat_server::Server;
use serde_json::json;

use crate::wait::DEADLINE;

/// An agent that reports work when the test calls it.
#[derive(Debug)]
pub struct Agent {
    link: Client,
    pub node: NodeId,
    session: SessionId,
    poll: u64,
    /// The slots that it offers with each poll.
    pub free: Free,
}

impl Agent {
    pub(super) async fn register(server: &Server, hostname: &str, groups: &[&str]) -> Self {
        Self::register_in(server, ClusterId::DEFAULT, hostname, groups, &[]).await
    }

    /// Registers a node of a cluster, which offers some backends besides the built-in ones.
    pub(super) async fn register_in(
        server: &Server,
        cluster: ClusterId,
        hostname: &str,
        groups: &[&str],
        extra: &[BackendSchema],
    ) -> Self {
        let link = Client::connect(&server.grpc_addr().to_string()).await.unwrap();
        let node = NodeId::derive(cluster, hostname);
        let session = SessionId(uuid::Uuid::new_v4());
        let mut backends = Catalogue::builtin().backends().to_vec();
        backends.extend(extra.iter().cloned().map(Arc::new));
        let description = Description {
            hostname: hostname.to_owned(),
            groups: groups.iter().map(|&group| group.to_owned()).collect(),
            labels: [("disk".to_owned(), "ssd".to_owned())].into(),
            capabilities: [("cpu".to_owned(), json!(4))].into(),
            backends,
            slots: 2,
            version: "0.0.0-test".to_owned(),
        };
        let (instance, undelivered, life) = (InstanceId::default(), Vec::new(), 0);
        let register = Register { cluster, node, session, description, instance, undelivered, life };
        link.register(register).await.unwrap();
        Self { link, node, session, poll: 0, free: Free { fleet: 1, placed: 1, debug: None } }
    }

    pub fn session(&self) -> SessionId {
        self.session
    }

    pub async fn take(&mut self) -> Assignment {
        let wait = async {
            loop {
                if let Some(work) = self.poll(Duration::from_secs(5)).await.into_iter().next() {
                    return work;
                }
            }
        };
        tokio::time::timeout(DEADLINE, wait).await.expect("there is work")
    }

    /// Returns the work that arrives within a short time.
    pub async fn take_soon(&mut self) -> Vec<Assignment> {
        self.poll(Duration::from_millis(100)).await
    }

    async fn poll(&mut self, wait: Duration) -> Vec<Assignment> {
        self.poll += 1;
        let (node, session, poll) = (self.node, self.session, self.poll);
        let free = self.free;
        self.link.poll(Poll { node, session, free, poll, resync: None, wait }).await.unwrap().assignments
    }

    /// Sends a heartbeat for this work.
    pub async fn beat(&self, work: &[Assignment]) -> Result<HeartbeatAnswer, Fault> {
        let (held, leaving, problems) = (work.iter().map(held).collect(), false, Vec::new());
        let (node, session) = (self.node, self.session);
        self.link.heartbeat(Heartbeat { node, session, held, leaving, problems }).await
    }

    pub async fn start(&self, work: &Assignment) {
        let started = Started { held: held(work), of: work.of.parent(), at: Timestamp::now() };
        self.report(vec![started], Vec::new()).await;
    }

    pub async fn write(&self, work: &Assignment, offset: u64, text: &str) {
        self.write_as(held(work), work, offset, text).await;
    }

    /// Writes output of an execution with a given lease.
    pub async fn write_as(&self, held: LeaseRef, work: &Assignment, offset: u64, text: &str) {
        let chunks = vec![chunk(work, offset, text)];
        let output = Output { node: self.node, session: self.session, held: vec![held], chunks };
        self.link.output(output).await.unwrap();
    }

    /// Writes output with a given time.
    pub async fn write_at(&self, work: &Assignment, offset: u64, text: &str, at: Timestamp) {
        let chunks = vec![OutputChunk { at, ..chunk(work, offset, text) }];
        let output = Output { node: self.node, session: self.session, held: vec![held(work)], chunks };
        self.link.output(output).await.unwrap();
    }

    pub async fn finish(&self, work: &Assignment, exit_code: i32) {
        self.finish_with(work, exit_code, None).await;
    }

    pub async fn finish_with(&self, work: &Assignment, exit_code: i32, output: Option<(u64, &str)>) {
        let output = output.into_iter().map(|(offset, text)| chunk(work, offset, text)).collect();
        self.report_end(work, outcome(exit_code), output).await;
    }

    /// Reports an end after one line on standard error.
    pub async fn finish_with_stderr(&self, work: &Assignment, exit_code: i32, line: &str) {
        let output = vec![OutputChunk { stream: Stream::Stderr, ..chunk(work, 0, line) }];
        self.report_end(work, outcome(exit_code), output).await;
    }

    /// Reports a given result.
    pub async fn finish_as(&self, work: &Assignment, outcome: Outcome) {
        self.report_end(work, outcome, Vec::new()).await;
    }

    /// Reports an end when a poll waits, which `parked` makes sure of. Returns the work in the response to the report.
    pub async fn finish_and_take(
        &mut self,
        work: &Assignment,
        exit_code: i32,
        parked: impl Future<Output = ()>,
    ) -> Vec<Assignment> {
        self.poll += 1;
        let (node, session, poll, wait) = (self.node, self.session, self.poll, DEADLINE);
        let busy = Poll { node, session, free: Free::default(), poll, resync: None, wait };
        let (of, outcome) = (work.of.parent(), outcome(exit_code));
        let finished = vec![Finished { held: held(work), of, outcome, output: Vec::new() }];
        let (started, free, takes_work) = (Vec::new(), self.free, true);
        let report = Report { node, session, started, finished, free, poll, takes_work };
        let reported = async {
            parked.await;
            self.link.report(report).await.unwrap().assignments
        };
        tokio::select! {
            biased;
            assignments = reported => assignments,
            answer = self.link.poll(busy) => panic!("the poll got a response: {answer:?}"),
        }
    }

    async fn report_end(&self, work: &Assignment, outcome: Outcome, output: Vec<OutputChunk>) {
        let finished = Finished { held: held(work), of: work.of.parent(), outcome, output };
        self.report(Vec::new(), vec![finished]).await;
    }

    async fn report(&self, started: Vec<Started>, finished: Vec<Finished>) {
        let (node, session) = (self.node, self.session);
        let (free, poll, takes_work) = (Free::default(), 0, false);
        let report = Report { node, session, started, finished, free, poll, takes_work };
        self.link.report(report).await.unwrap();
    }
}

/// Returns the outcome of an attempt that took a microsecond: shorter than any lease.
pub fn outcome(exit_code: i32) -> Outcome {
    let now = Timestamp::now();
    Outcome {
        verdict: if exit_code == 0 { Verdict::Succeeded } else { Verdict::Failed },
        exit_code: Some(exit_code),
        error: (exit_code != 0).then(|| format!("exit code {exit_code}")),
        started_at: now - Duration::from_micros(1),
        finished_at: now,
        outputs: Default::default(),
        received_at: None,
    }
}

fn held(work: &Assignment) -> LeaseRef {
    LeaseRef { execution: work.execution, token: work.token }
}

fn chunk(work: &Assignment, offset: u64, text: &str) -> OutputChunk {
    OutputChunk {
        execution: work.execution,
        offset,
        stream: Stream::Stdout,
        text: text.to_owned(),
        at: Timestamp::now(),
    }
}
