//! Owns `Link`: the protocol as calls, and `Ready`: whether a server can handle them. An agent uses one to reach a server; a server implements it for its agents. The
//! transport is not defined here.

use async_trait::async_trait;

use crate::message::{
    Fault, Heartbeat, HeartbeatAnswer, Hello, Output, Poll, PollAnswer, Register, Registered, Report,
    ReportAnswer, Welcome,
};

/// The calls of an agent to a server. The server implements it, and so does each transport.
#[async_trait]
pub trait Link: Send + Sync + std::fmt::Debug + 'static {
    async fn hello(&self, hello: Hello) -> Result<Welcome, Fault>;
    async fn register(&self, register: Register) -> Result<Registered, Fault>;
    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatAnswer, Fault>;
    /// Waits until there is work, work to stop, or `wait` is over.
    async fn poll(&self, poll: Poll) -> Result<PollAnswer, Fault>;
    async fn report(&self, report: Report) -> Result<ReportAnswer, Fault>;
    async fn output(&self, output: Output) -> Result<(), Fault>;
}

/// Whether a server can handle calls. The health service asks it.
#[async_trait]
pub trait Ready: Send + Sync + std::fmt::Debug + 'static {
    async fn is_ready(&self) -> bool;
    /// Waits until the server stops.
    async fn stops(&self);
}
