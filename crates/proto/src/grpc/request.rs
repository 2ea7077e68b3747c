//! Owns the conversions of whole requests and responses. `convert` converts their parts.

use std::time::Duration;

use downbeat_core::ids::{ClusterId, NodeId, SessionId};
use downbeat_core::limits;
use downbeat_core::node::{BadDescription, Description, bounded_problems, check_json_bytes};

use super::convert::{
    assignment_from_wire, assignment_to_wire, bytes, chunk_from_wire, chunk_to_wire, finished_from_wire,
    finished_to_wire, free_from_wire, free_to_wire, held_from_wire, held_to_wire, millis, rejected,
    started_from_wire, started_to_wire, uuid,
};
use super::generated as wire;
use crate::message::{
    Fault, Heartbeat, HeartbeatAnswer, Hello, InstanceId, Output, Poll, PollAnswer, Receipt, Register,
    Report, ReportAnswer, Welcome,
};

/// The longest wait of a poll: with a longer one, a broken connection would stay open unnoticed for too long.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

fn node(id: &[u8]) -> Result<NodeId, Fault> {
    uuid("node_id", id).map(NodeId)
}

fn session(id: &[u8]) -> Result<SessionId, Fault> {
    uuid("session_id", id).map(SessionId)
}

/// Limits a list to the most that an agent sends.
fn listed(field: &str, found: usize, most: usize) -> Result<(), Fault> {
    if found > most {
        return Err(rejected(field, format_args!("lists {found}, more than {most}")));
    }
    Ok(())
}

fn name(field: &str, text: &str) -> Result<(), Fault> {
    if text.is_empty() || text.len() > limits::NAME_BYTES {
        return Err(rejected(
            field,
            format_args!("is {} bytes, not 1 to {}", text.len(), limits::NAME_BYTES),
        ));
    }
    Ok(())
}

pub(super) fn hello_from_wire(hello: wire::HelloRequest) -> Result<Hello, Fault> {
    name("cluster", &hello.cluster)?;
    if hello.version.len() > limits::NAME_BYTES {
        return Err(rejected("version", format_args!("is longer than {} bytes", limits::NAME_BYTES)));
    }
    Ok(Hello { cluster: hello.cluster, version: hello.version, protocol: hello.protocol })
}

pub fn hello_to_wire(hello: Hello) -> wire::HelloRequest {
    wire::HelloRequest { cluster: hello.cluster, version: hello.version, protocol: hello.protocol }
}

pub fn welcome_from_wire(welcome: wire::HelloResponse) -> Result<Welcome, Fault> {
    Ok(Welcome {
        cluster: ClusterId(uuid("cluster_id", &welcome.cluster_id)?),
        server_name: welcome.server_name,
        version: welcome.version,
        heartbeat_interval: Duration::from_millis(welcome.heartbeat_interval_ms),
        lease_ttl: Duration::from_millis(welcome.lease_ttl_ms),
        output_max_bytes: welcome.output_max_bytes,
        protocol: welcome.protocol,
        keeps_undelivered: welcome.keeps_undelivered,
    })
}

pub(super) fn welcome_to_wire(welcome: Welcome) -> wire::HelloResponse {
    wire::HelloResponse {
        cluster_id: bytes(welcome.cluster.0),
        server_name: welcome.server_name,
        version: welcome.version,
        heartbeat_interval_ms: millis(welcome.heartbeat_interval),
        lease_ttl_ms: millis(welcome.lease_ttl),
        output_max_bytes: welcome.output_max_bytes,
        protocol: welcome.protocol,
        keeps_undelivered: welcome.keeps_undelivered,
    }
}

pub(super) fn register_from_wire(register: &wire::RegisterRequest) -> Result<Register, Fault> {
    let json = &register.description_json;
    let bad = |bad: BadDescription| Fault::Rejected(bad.to_string());
    check_json_bytes(json.len()).map_err(bad)?;
    let description: Description =
        serde_json::from_str(json).map_err(|error| rejected("description_json", error))?;
    description.check().map_err(bad)?;
    // Earlier runs may have left more than one session's results.
    listed("undelivered", register.undelivered.len(), limits::CHUNKS_PER_MESSAGE)?;
    if register.instance_id.len() > limits::INSTANCE_BYTES {
        let (found, most) = (register.instance_id.len(), limits::INSTANCE_BYTES);
        return Err(rejected("instance_id", format_args!("is {found} bytes, more than {most}")));
    }
    Ok(Register {
        cluster: ClusterId(uuid("cluster_id", &register.cluster_id)?),
        node: node(&register.node_id)?,
        session: session(&register.session_id)?,
        description,
        instance: InstanceId(register.instance_id.clone()),
        undelivered: held_from_wire(register.undelivered.clone())?,
        life: register.life,
    })
}

pub fn register_to_wire(register: &Register) -> Result<wire::RegisterRequest, Fault> {
    Ok(wire::RegisterRequest {
        cluster_id: bytes(register.cluster.0),
        node_id: bytes(register.node.0),
        session_id: bytes(register.session.0),
        description_json: serde_json::to_string(&register.description)
            .map_err(|error| rejected("description", error))?,
        instance_id: register.instance.0.clone(),
        undelivered: held_to_wire(register.undelivered.clone()),
        life: register.life,
    })
}

pub(super) fn heartbeat_from_wire(heartbeat: wire::HeartbeatRequest) -> Result<Heartbeat, Fault> {
    listed("held", heartbeat.held.len(), limits::HELD_PER_MESSAGE)?;
    Ok(Heartbeat {
        node: node(&heartbeat.node_id)?,
        session: session(&heartbeat.session_id)?,
        held: held_from_wire(heartbeat.held)?,
        leaving: heartbeat.leaving,
        problems: bounded_problems(heartbeat.problems),
    })
}

pub fn heartbeat_to_wire(heartbeat: Heartbeat) -> wire::HeartbeatRequest {
    wire::HeartbeatRequest {
        node_id: bytes(heartbeat.node.0),
        session_id: bytes(heartbeat.session.0),
        held: held_to_wire(heartbeat.held),
        leaving: heartbeat.leaving,
        problems: heartbeat.problems,
    }
}

pub(super) fn heartbeat_answer_from_wire(answer: wire::HeartbeatResponse) -> Result<HeartbeatAnswer, Fault> {
    Ok(HeartbeatAnswer {
        refused: held_from_wire(answer.refused)?,
        stop: held_from_wire(answer.stop)?,
        unheard: held_from_wire(answer.unheard)?,
    })
}

pub(super) fn heartbeat_answer_to_wire(answer: HeartbeatAnswer) -> wire::HeartbeatResponse {
    wire::HeartbeatResponse {
        refused: held_to_wire(answer.refused),
        stop: held_to_wire(answer.stop),
        unheard: held_to_wire(answer.unheard),
    }
}

pub(super) fn poll_from_wire(poll: wire::PollRequest) -> Result<Poll, Fault> {
    listed("held", poll.held.len(), limits::HELD_PER_MESSAGE)?;
    let held = held_from_wire(poll.held)?;
    Ok(Poll {
        node: node(&poll.node_id)?,
        session: session(&poll.session_id)?,
        free: free_from_wire(poll.free),
        poll: poll.poll,
        resync: poll.resync.then_some(held),
        wait: Duration::from_millis(poll.wait_ms).min(LONGEST_WAIT),
    })
}

pub fn poll_to_wire(poll: Poll) -> wire::PollRequest {
    wire::PollRequest {
        node_id: bytes(poll.node.0),
        session_id: bytes(poll.session.0),
        free: free_to_wire(poll.free),
        poll: poll.poll,
        resync: poll.resync.is_some(),
        held: held_to_wire(poll.resync.unwrap_or_default()),
        wait_ms: millis(poll.wait),
    }
}

pub fn poll_answer_from_wire(answer: wire::PollResponse) -> Result<PollAnswer, Fault> {
    Ok(PollAnswer {
        assignments: answer.assignments.into_iter().map(assignment_from_wire).collect::<Result<_, _>>()?,
        stop: held_from_wire(answer.stop)?,
    })
}

pub(super) fn poll_answer_to_wire(answer: PollAnswer) -> Result<wire::PollResponse, Fault> {
    Ok(wire::PollResponse {
        assignments: answer.assignments.into_iter().map(assignment_to_wire).collect::<Result<_, _>>()?,
        stop: held_to_wire(answer.stop),
    })
}

pub(super) fn report_from_wire(report: wire::ReportRequest) -> Result<Report, Fault> {
    listed("started", report.started.len(), limits::LISTED_PER_MESSAGE)?;
    listed("finished", report.finished.len(), limits::LISTED_PER_MESSAGE)?;
    let chunks = report.finished.iter().map(|finished| finished.output.len()).sum();
    listed("output", chunks, limits::CHUNKS_PER_MESSAGE)?;
    Ok(Report {
        node: node(&report.node_id)?,
        session: session(&report.session_id)?,
        started: report.started.into_iter().map(started_from_wire).collect::<Result<_, _>>()?,
        finished: report.finished.into_iter().map(finished_from_wire).collect::<Result<_, _>>()?,
        free: free_from_wire(report.free),
        poll: report.poll,
        takes_work: report.takes_work,
    })
}

pub fn report_to_wire(report: Report) -> wire::ReportRequest {
    wire::ReportRequest {
        node_id: bytes(report.node.0),
        session_id: bytes(report.session.0),
        started: report.started.iter().map(started_to_wire).collect(),
        finished: report.finished.into_iter().map(finished_to_wire).collect(),
        free: free_to_wire(report.free),
        poll: report.poll,
        takes_work: report.takes_work,
    }
}

pub fn report_answer_from_wire(answer: wire::ReportResponse) -> Result<ReportAnswer, Fault> {
    let receipts = answer.receipts().map(|receipt| match receipt {
        wire::Receipt::Recorded => Ok(Receipt::Recorded),
        wire::Receipt::Refused => Ok(Receipt::Refused),
        wire::Receipt::Unspecified => Err(rejected("receipts", "hold one that this agent does not know")),
    });
    Ok(ReportAnswer {
        receipts: receipts.collect::<Result<_, _>>()?,
        assignments: answer.assignments.into_iter().map(assignment_from_wire).collect::<Result<_, _>>()?,
    })
}

pub(super) fn report_answer_to_wire(answer: ReportAnswer) -> Result<wire::ReportResponse, Fault> {
    let receipts = answer.receipts.iter().map(|receipt| match receipt {
        Receipt::Recorded => wire::Receipt::Recorded.into(),
        Receipt::Refused => wire::Receipt::Refused.into(),
    });
    Ok(wire::ReportResponse {
        receipts: receipts.collect(),
        assignments: answer.assignments.into_iter().map(assignment_to_wire).collect::<Result<_, _>>()?,
    })
}

pub(super) fn output_from_wire(output: wire::OutputRequest) -> Result<Output, Fault> {
    listed("held", output.held.len(), limits::HELD_PER_MESSAGE)?;
    listed("chunks", output.chunks.len(), limits::CHUNKS_PER_MESSAGE)?;
    Ok(Output {
        node: node(&output.node_id)?,
        session: session(&output.session_id)?,
        held: held_from_wire(output.held)?,
        chunks: output.chunks.into_iter().map(chunk_from_wire).collect::<Result<_, _>>()?,
    })
}

pub(super) fn output_to_wire(output: Output) -> wire::OutputRequest {
    wire::OutputRequest {
        node_id: bytes(output.node.0),
        session_id: bytes(output.session.0),
        chunks: output.chunks.into_iter().map(chunk_to_wire).collect(),
        held: held_to_wire(output.held),
    }
}
