//! Owns a simulated node: the real protocol over a connection of its own, with nothing behind it. What it is given
//! succeeds at once.

use std::time::Duration;

use downbeat_core::Timestamp;
use downbeat_core::backend::Catalogue;
use downbeat_core::execution::{Outcome, Verdict};
use downbeat_core::ids::{NodeId, SessionId};
use downbeat_core::node::Description;
use downbeat_proto::Link;
use downbeat_proto::grpc::Client;
use downbeat_proto::message::{
    Assignment, Fault, Finished, Free, Heartbeat, Held, Hello, PROTOCOL, Poll, Register, Report,
};

const WAIT: Duration = Duration::from_secs(30);

/// One node that is registered and about to poll.
#[derive(Debug)]
pub(super) struct Node {
    client: Client,
    id: NodeId,
    session: SessionId,
    heartbeat_interval: Duration,
}

impl Node {
    pub(super) async fn join(address: &str, hostname: String) -> Result<Self, Fault> {
        let client = Client::connect(address).await?;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let hello = Hello { cluster: "default".to_owned(), version: version.clone(), protocol: PROTOCOL };
        let welcome = client.hello(hello).await?;
        let id = NodeId::derive(welcome.cluster, &hostname);
        let session = SessionId(uuid::Uuid::new_v4());
        let description = Description {
            hostname,
            groups: vec!["bench".to_owned()],
            labels: std::collections::BTreeMap::new(),
            capabilities: std::collections::BTreeMap::new(),
            backends: Catalogue::builtin().backends().to_vec(),
            slots: 1,
            version,
        };
        client.register(Register { cluster: welcome.cluster, node: id, session, description }).await?;
        Ok(Self { client, id, session, heartbeat_interval: welcome.heartbeat_interval })
    }

    /// Until the connection fails. Sends its heartbeat between polls' answers, on the same connection.
    pub(super) async fn serve(self) -> Result<(), Fault> {
        let heartbeats = async {
            loop {
                tokio::time::sleep(self.heartbeat_interval).await;
                let beat =
                    Heartbeat { node: self.id, session: self.session, held: Vec::new(), leaving: false };
                self.client.heartbeat(beat).await?;
            }
        };
        tokio::select! {
            ended = heartbeats => ended,
            ended = self.work() => ended,
        }
    }

    async fn work(&self) -> Result<(), Fault> {
        for poll in 1.. {
            let free = Free { fleet: 1, placed: 1 };
            let asked = Poll { node: self.id, session: self.session, free, poll, resync: None, wait: WAIT };
            let answer = self.client.poll(asked).await?;
            if answer.assignments.is_empty() {
                continue;
            }
            let finished = answer.assignments.into_iter().map(done).collect();
            let (node, session) = (self.id, self.session);
            self.client
                .report(Report { node, session, started: Vec::new(), finished, free, poll: 0 })
                .await?;
        }
        Ok(())
    }
}

fn done(assignment: Assignment) -> Finished {
    let now = Timestamp::now();
    Finished {
        held: Held { execution: assignment.execution, token: assignment.token },
        run: assignment.run,
        outcome: Outcome {
            verdict: Verdict::Succeeded,
            exit_code: Some(0),
            error: None,
            started_at: now,
            finished_at: now,
            outputs: Default::default(),
        },
        output: Vec::new(),
    }
}
