//! Calls and responses of the agent protocol as bytes, for nodes that cost less than any gRPC client.

use downbeat_proto::grpc::generated as wire;
use downbeat_proto::grpc::request::{
    heartbeat_answer_from_wire, heartbeat_to_wire, hello_to_wire, poll_answer_from_wire, poll_to_wire,
    register_to_wire, report_answer_from_wire, report_to_wire, welcome_from_wire,
};
use downbeat_proto::message::{
    Fault, Heartbeat, HeartbeatAnswer, Hello, Poll, PollAnswer, Register, Report, ReportAnswer, Welcome,
};
use prost::Message;

/// The kinds of call of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Hello,
    Register,
    Heartbeat,
    Poll,
    Report,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Call {
    Hello(Hello),
    Register(Box<Register>),
    Heartbeat(Heartbeat),
    Poll(Poll),
    Report(Report),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer {
    Hello(Welcome),
    Register,
    Heartbeat(HeartbeatAnswer),
    Poll(PollAnswer),
    Report(ReportAnswer),
}

impl Kind {
    /// Returns the path that it is posted to.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Kind::Hello => "/downbeat.agent.v1.Agent/Hello",
            Kind::Register => "/downbeat.agent.v1.Agent/Register",
            Kind::Heartbeat => "/downbeat.agent.v1.Agent/Heartbeat",
            Kind::Poll => "/downbeat.agent.v1.Agent/Poll",
            Kind::Report => "/downbeat.agent.v1.Agent/Report",
        }
    }
}

/// Returns the message of a call, without gRPC's five bytes before it.
pub(crate) fn call_to_bytes(call: Call) -> Result<(Kind, Vec<u8>), Fault> {
    Ok(match call {
        Call::Hello(hello) => (Kind::Hello, hello_to_wire(hello).encode_to_vec()),
        Call::Register(register) => (Kind::Register, register_to_wire(&register)?.encode_to_vec()),
        Call::Heartbeat(heartbeat) => (Kind::Heartbeat, heartbeat_to_wire(heartbeat).encode_to_vec()),
        Call::Poll(poll) => (Kind::Poll, poll_to_wire(poll).encode_to_vec()),
        Call::Report(report) => (Kind::Report, report_to_wire(report).encode_to_vec()),
    })
}
pub(crate) fn answer_from_bytes(kind: Kind, bytes: &[u8]) -> Result<Answer, Fault> {
    Ok(match kind {
        Kind::Hello => Answer::Hello(welcome_from_wire(decode(bytes)?)?),
        Kind::Register => decode(bytes).map(|wire::RegisterResponse {}| Answer::Register)?,
        Kind::Heartbeat => Answer::Heartbeat(heartbeat_answer_from_wire(decode(bytes)?)?),
        Kind::Poll => Answer::Poll(poll_answer_from_wire(decode(bytes)?)?),
        Kind::Report => Answer::Report(report_answer_from_wire(&decode(bytes)?)?),
    })
}

fn decode<M: Message + Default>(bytes: &[u8]) -> Result<M, Fault> {
    M::decode(bytes).map_err(|error| Fault::Rejected(format!("`answer` {error}")))
}
