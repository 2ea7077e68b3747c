//! Owns `Link`: the protocol as calls. An agent holds one to reach a server, a server is one to its agents. What
//! carries the calls in between is not said here.

use async_trait::async_trait;

use crate::message::{
    Fault, Heartbeat, HeartbeatAnswer, Hello, Output, Poll, PollAnswer, Register, Report, ReportAnswer,
    Welcome,
};

/// What an agent asks of a server. Both sides implement it: the server itself, and whatever reaches it from afar.
#[async_trait]
pub trait Link: Send + Sync + std::fmt::Debug + 'static {
    async fn hello(&self, hello: Hello) -> Result<Welcome, Fault>;
    async fn register(&self, register: Register) -> Result<(), Fault>;
    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatAnswer, Fault>;
    /// Parks until there is work, something to stop, or the wait is over.
    async fn poll(&self, poll: Poll) -> Result<PollAnswer, Fault>;
    async fn report(&self, report: Report) -> Result<ReportAnswer, Fault>;
    async fn output(&self, output: Output) -> Result<(), Fault>;
}
