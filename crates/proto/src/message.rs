//! Owns the protocol's messages as the agent and the server use them: no gRPC type outside of this crate's `grpc`.

use downbeat_core::backend::{Params, params_bytes};
use downbeat_core::execution::Outcome;
pub use downbeat_core::execution::OutputChunk;
use downbeat_core::ids::{ClusterId, ExecutionId, LeaseToken, NodeId, SessionId};
use downbeat_core::node::Description;
use downbeat_core::work::{Attempt, Origin, Parent, Work};
use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;

/// The newest protocol number that this program supports.
///
/// Messages only grow, and new parts may be ignored: a program that does not know a field or a call works as before, so
/// agents and servers of neighbouring releases need no new number. The number increases when something cannot be
/// ignored (a new value of a closed set, another meaning), and such features are used only with a peer that agreed to
/// it. A session outlives the server that it started with: the release that introduces a number understands it, the
/// next one uses it.
pub const PROTOCOL: u32 = 1;

/// The oldest number that this program supports: at least that of the previous release.
pub const OLDEST_PROTOCOL: u32 = 1;

/// Returns the newest protocol number that both sides support; `None` if there is none.
pub fn agreed_protocol(theirs: u32) -> Option<u32> {
    let common = theirs.min(PROTOCOL);
    (common >= OLDEST_PROTOCOL).then_some(common)
}

/// Introduces an agent, and asks which cluster a name means.
#[derive(Clone, Debug, PartialEq)]
pub struct Hello {
    pub cluster: String,
    pub version: String,
    pub protocol: u32,
}

/// The server's response to a hello.
#[derive(Clone, Debug, PartialEq)]
pub struct Welcome {
    pub cluster: ClusterId,
    pub server_name: String,
    pub version: String,
    pub heartbeat_interval: Duration,
    pub lease_ttl: Duration,
    pub output_max_bytes: u64,
    pub protocol: u32,
    /// Leases of results that a registration announces are kept. Older servers do not keep them.
    pub keeps_undelivered: bool,
}

/// A new session of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Register {
    pub cluster: ClusterId,
    pub node: NodeId,
    pub session: SessionId,
    pub description: Description,
    pub instance: InstanceId,
    /// Results of earlier sessions that the agent still has.
    pub undelivered: Vec<LeaseRef>,
    /// Increases with each start of the installation.
    pub life: u64,
}

/// The response to a registration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registered {
    /// The node was registered before, and starts the standing tasks of its cluster over.
    pub reset: bool,
}

/// Proves that an agent is the installation that had the node before. It is a secret and never logged.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct InstanceId(pub Vec<u8>);

impl std::fmt::Debug for InstanceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "InstanceId({} bytes)", self.0.len())
    }
}

/// An execution that an agent holds, with the token of its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseRef {
    pub execution: ExecutionId,
    pub token: LeaseToken,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Heartbeat {
    pub node: NodeId,
    pub session: SessionId,
    pub held: Vec<LeaseRef>,
    /// The last one of this session: the agent stops, and gives up the leases that it does not list.
    pub leaving: bool,
    /// The problems of the host, for users.
    pub problems: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeartbeatAnswer {
    /// No longer the agent's: kill the work, drop its result.
    pub refused: Vec<LeaseRef>,
    /// Stop the work and report it as cancelled.
    pub stop: Vec<LeaseRef>,
    /// The store does not know these. Neither refused nor renewed: another store may have granted them.
    pub unheard: Vec<LeaseRef>,
}

/// The work that a node could accept now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Free {
    pub fleet: u32,
    pub placed: u32,
    /// How many debug commands may start. `None`: the agent is of an older release and runs them as fleet work.
    pub debug: Option<u32>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Poll {
    pub node: NodeId,
    pub session: SessionId,
    pub free: Free,
    /// Numbers the polls of a session.
    pub poll: u64,
    /// After a poll whose response may not have arrived: all leases that did arrive and are not yet acknowledged.
    pub resync: Option<Vec<LeaseRef>>,
    pub wait: Duration,
}

/// Which work it runs besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkKind {
    /// One at a time, in order.
    Fleet,
    /// One in each slot.
    Placed,
    /// A debug command: besides all other work.
    Debug,
}

impl WorkKind {
    pub fn of(work: &Work) -> Self {
        match (work.is_placed, work.is_debug) {
            (true, _) => Self::Placed,
            (false, true) => Self::Debug,
            (false, false) => Self::Fleet,
        }
    }
}

/// Work for a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Assignment {
    pub execution: ExecutionId,
    pub token: LeaseToken,
    pub of: Origin,
    pub attempt: u32,
    pub kind: WorkKind,
    pub backend: String,
    pub action: String,
    pub params: Arc<Params>,
    pub timeout: Duration,
    pub stop_on_disconnect: bool,
    /// Outputs that it has to set when it succeeds.
    pub outputs: Vec<String>,
}

impl Assignment {
    /// Returns the message for an attempt that is leased to a node.
    pub fn new(work: &Work, attempt: &Attempt, token: LeaseToken) -> Self {
        Self {
            execution: attempt.execution,
            token,
            of: attempt.of.clone(),
            attempt: attempt.number,
            kind: WorkKind::of(work),
            backend: work.backend.clone(),
            action: work.action.clone(),
            params: Arc::clone(attempt.params.as_ref().unwrap_or(&work.params)),
            timeout: work.timeout,
            stop_on_disconnect: work.stop_on_disconnect,
            outputs: work.outputs.clone(),
        }
    }

    pub fn lease(&self) -> LeaseRef {
        LeaseRef { execution: self.execution, token: self.token }
    }

    /// Returns about how many bytes it takes on the wire.
    pub fn wire_bytes(&self) -> usize {
        256 + self.backend.len() + self.action.len() + params_bytes(&self.params)
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PollAnswer {
    pub assignments: Vec<Assignment>,
    pub stop: Vec<LeaseRef>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Started {
    pub held: LeaseRef,
    pub of: Parent,
    pub at: Timestamp,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    pub held: LeaseRef,
    pub of: Parent,
    pub outcome: Outcome,
    /// Output that was not sent before.
    pub output: Vec<OutputChunk>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    pub node: NodeId,
    pub session: SessionId,
    pub started: Vec<Started>,
    pub finished: Vec<Finished>,
    pub free: Free,
    /// The poll that was pending when `free` was counted.
    pub poll: u64,
    /// The response may have assignments.
    pub takes_work: bool,
}

/// The result of one reported fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receipt {
    /// Durable, now or before.
    Recorded,
    /// The lease was not the current one: nothing was recorded, and nothing will be.
    Refused,
}

/// For each of `started`, then for each of `finished`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReportAnswer {
    pub receipts: Vec<Receipt>,
    pub assignments: Vec<Assignment>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    pub node: NodeId,
    pub session: SessionId,
    /// The leases that the chunks belong to; output without a current one is dropped.
    pub held: Vec<LeaseRef>,
    pub chunks: Vec<OutputChunk>,
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The node was deleted on purpose while it had this session. The agent ends.
    #[error("not found: {0}")]
    NotFound(String),
    /// The cluster that the agent names does not exist. The agent ends, unless it has work: then it first tries again for as
    /// long as its leases may last.
    #[error("not found: {0}")]
    NoCluster(String),
    /// A newer session of this installation has the node. The agent ends.
    #[error("superseded: {0}")]
    Superseded(String),
    /// The server does not know the node. The agent registers again and keeps its work.
    #[error("unknown: {0}")]
    Unknown(String),
    /// The node is online as another installation. The agent tries again, with a growing pause.
    #[error("occupied: {0}")]
    Occupied(String),
    /// The request is invalid. A retry does not help.
    #[error("rejected: {0}")]
    Rejected(String),
    /// Retry, here or at another server.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// No response in time: the network is slow, or the server is gone. Retry with smaller messages. Set by the
    /// caller's side; no server returns it.
    #[error("timed out: {0}")]
    TimedOut(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_releases_agree_on_the_newest_protocol_that_both_know() {
        assert_eq!(agreed_protocol(PROTOCOL), Some(PROTOCOL));
        assert_eq!(agreed_protocol(PROTOCOL + 1), Some(PROTOCOL), "the newer side steps down");
        assert_eq!(agreed_protocol(OLDEST_PROTOCOL), Some(OLDEST_PROTOCOL), "this side steps down");
        assert_eq!(agreed_protocol(OLDEST_PROTOCOL - 1), None);
    }
}
