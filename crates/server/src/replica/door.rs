//! Refuses agents on a replica: each call returns where agents have to connect. The fault is `Unavailable`,
//! not a rejection, so that an agent with several servers tries the next one.

use async_trait::async_trait;
use downbeat_proto::Link;
use downbeat_proto::message::{
    Fault, Heartbeat, HeartbeatAnswer, Hello, Output, Poll, PollAnswer, Register, Registered, Report,
    ReportAnswer, Welcome,
};

use super::Following;
use crate::parts::Parts;

#[derive(Clone, Debug)]
pub(crate) struct Door {
    parts: Parts,
    following: Following,
}

impl Door {
    pub(crate) fn new(parts: Parts, following: Following) -> Self {
        Self { parts, following }
    }

    async fn closed<T>(&self) -> Result<T, Fault> {
        let servers = self.parts.store.servers().await.unwrap_or_default();
        let doors: Vec<String> = servers.into_iter().map(|server| server.grpc).collect();
        let at = if doors.is_empty() { String::new() } else { format!(" at {}", doors.join(", ")) };
        let primary = self.following.primary();
        Err(Fault::Unavailable(format!(
            "this is a read replica; connect agents to its primary {primary}{at}"
        )))
    }
}

#[async_trait]
impl Link for Door {
    async fn hello(&self, _: Hello) -> Result<Welcome, Fault> {
        self.closed().await
    }

    async fn register(&self, _: Register) -> Result<Registered, Fault> {
        self.closed().await
    }

    async fn heartbeat(&self, _: Heartbeat) -> Result<HeartbeatAnswer, Fault> {
        self.closed().await
    }

    async fn poll(&self, _: Poll) -> Result<PollAnswer, Fault> {
        self.closed().await
    }

    async fn report(&self, _: Report) -> Result<ReportAnswer, Fault> {
        self.closed().await
    }

    async fn output(&self, _: Output) -> Result<(), Fault> {
        self.closed().await
    }
}
