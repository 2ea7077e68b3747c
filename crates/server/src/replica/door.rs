//! Owns the door for agents, which a replica keeps closed: each call is told where agents belong. Unavailable, not
//! rejected: an agent that knows several servers goes on to the next.

use async_trait::async_trait;
use downbeat_proto::Link;
use downbeat_proto::message::{
    Fault, Heartbeat, HeartbeatAnswer, Hello, Output, Poll, PollAnswer, Register, Report, ReportAnswer,
    Welcome,
};

use super::Following;
use crate::parts::Parts;

/// See the module.
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
        let at = if doors.is_empty() {
            String::new()
        } else {
            format!(", which takes agents at {}", doors.join(", "))
        };
        let primary = self.following.primary();
        Err(Fault::Unavailable(format!("this is a read replica, and agents belong to {primary}{at}")))
    }
}

#[async_trait]
impl Link for Door {
    async fn hello(&self, _: Hello) -> Result<Welcome, Fault> {
        self.closed().await
    }

    async fn register(&self, _: Register) -> Result<(), Fault> {
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
