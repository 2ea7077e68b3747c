//! Owns the conversions of the protocol's parts: ids, times, leases, output, results, work. `request` converts whole
//! requests and responses. Malformed or too large parts are `Fault::Rejected`.
//!
//! An agent stores results in the format in which it sends them, so that a newer agent reads those of an older one.

use std::sync::Arc;
use std::time::Duration;

use downbeat_core::backend::Params;
use downbeat_core::execution::{Outcome, Stream, Verdict, cut_reason, outputs_too_large};
use downbeat_core::ids::{ExecutionId, LeaseToken, RunId};
use downbeat_core::limits;
use downbeat_core::work::{Origin, Parent};
use jiff::Timestamp;
use prost::Message;
use uuid::Uuid;

use super::generated as wire;
use crate::message::{Assignment, Fault, Finished, Free, LeaseRef, OutputChunk, Started, WorkKind};

/// A run's id: at most a job's name, a colon and a time.
const RUN_ID_BYTES: usize = limits::NAME_BYTES + 64;

pub(super) fn rejected(field: &str, what: impl std::fmt::Display) -> Fault {
    Fault::Rejected(format!("`{field}` {what}"))
}

pub(super) fn uuid(field: &str, bytes: &[u8]) -> Result<Uuid, Fault> {
    Uuid::from_slice(bytes)
        .map_err(|_| rejected(field, format_args!("is {} bytes, not a UUID of 16", bytes.len())))
}

pub(super) fn bytes(id: Uuid) -> Vec<u8> {
    id.as_bytes().to_vec()
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Converts a time of the agent's clock, which may be anything: out of range, it becomes the first or last timestamp. A
/// result must not be lost because of it, and nothing is decided by it.
fn timestamp(micros: i64) -> Timestamp {
    let end = if micros < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::from_microsecond(micros).unwrap_or(end)
}

pub(super) fn run_id(id: String) -> Result<RunId, Fault> {
    if id.is_empty() || id.len() > RUN_ID_BYTES {
        return Err(rejected("run_id", format_args!("is {} bytes, not 1 to {RUN_ID_BYTES}", id.len())));
    }
    Ok(RunId::from(id))
}

fn run_id_to_wire(of: &Parent) -> String {
    match of {
        Parent::Run(run) => run.to_string(),
    }
}

fn held_pair(execution: &[u8], token: &[u8]) -> Result<LeaseRef, Fault> {
    Ok(LeaseRef {
        execution: ExecutionId(uuid("execution_id", execution)?),
        token: LeaseToken(uuid("token", token)?),
    })
}

pub(super) fn held_from_wire(held: Vec<wire::Held>) -> Result<Vec<LeaseRef>, Fault> {
    held.into_iter().map(|held| held_pair(&held.execution_id, &held.token)).collect()
}

pub(super) fn held_to_wire(held: Vec<LeaseRef>) -> Vec<wire::Held> {
    held.into_iter()
        .map(|held| wire::Held { execution_id: bytes(held.execution.0), token: bytes(held.token.0) })
        .collect()
}

pub(super) fn free_from_wire(free: Option<wire::Free>) -> Free {
    free.map(|free| Free { fleet: free.fleet, placed: free.placed, debug: free.debug }).unwrap_or_default()
}

pub(super) fn free_to_wire(free: Free) -> Option<wire::Free> {
    Some(wire::Free { fleet: free.fleet, placed: free.placed, debug: free.debug })
}

pub(super) fn chunk_from_wire(chunk: wire::Chunk) -> Result<OutputChunk, Fault> {
    if chunk.text.len() > limits::OUTPUT_CHUNK_BYTES {
        let (found, most) = (chunk.text.len(), limits::OUTPUT_CHUNK_BYTES);
        return Err(rejected("text", format_args!("of a chunk is {found} bytes, more than {most}")));
    }
    Ok(OutputChunk {
        execution: ExecutionId(uuid("execution_id", &chunk.execution_id)?),
        offset: chunk.offset,
        stream: if chunk.stderr { Stream::Stderr } else { Stream::Stdout },
        text: chunk.text,
        at: timestamp(chunk.at_us),
    })
}

pub(super) fn chunk_to_wire(chunk: OutputChunk) -> wire::Chunk {
    wire::Chunk {
        execution_id: bytes(chunk.execution.0),
        offset: chunk.offset,
        stderr: chunk.stream == Stream::Stderr,
        text: chunk.text,
        at_us: chunk.at.as_microsecond(),
    }
}

pub(super) fn started_from_wire(started: wire::Started) -> Result<Started, Fault> {
    Ok(Started {
        held: held_pair(&started.execution_id, &started.token)?,
        of: Parent::Run(run_id(started.run_id)?),
        at: timestamp(started.at_us),
    })
}

pub(super) fn started_to_wire(started: &Started) -> wire::Started {
    wire::Started {
        execution_id: bytes(started.held.execution.0),
        token: bytes(started.held.token.0),
        run_id: run_id_to_wire(&started.of),
        at_us: started.at.as_microsecond(),
    }
}

pub(super) fn finished_from_wire(finished: wire::Finished) -> Result<Finished, Fault> {
    let held = held_pair(&finished.execution_id, &finished.token)?;
    let verdict = match finished.verdict() {
        wire::Verdict::Succeeded => Verdict::Succeeded,
        wire::Verdict::Failed => Verdict::Failed,
        wire::Verdict::Cancelled => Verdict::Cancelled,
        wire::Verdict::Unspecified => return Err(rejected("verdict", "is not one that this server knows")),
    };
    let outcome = Outcome {
        verdict,
        exit_code: finished.exit_code,
        // Cut, not refused: a result must not be lost because its error is long.
        error: finished.error.map(cut_reason),
        started_at: timestamp(finished.started_at_us),
        finished_at: timestamp(finished.finished_at_us),
        outputs: Params::new(),
        received_at: None,
    };
    // A result with outputs that cannot be stored has failed. If it were refused, its agent would send it forever.
    let outcome = match outputs_from_wire(finished.outputs_json) {
        Ok(outputs) => Outcome { outputs, ..outcome },
        Err(error) => outcome.failed_for(error),
    };
    Ok(Finished {
        held,
        of: Parent::Run(run_id(finished.run_id)?),
        outcome,
        output: finished.output.into_iter().map(chunk_from_wire).collect::<Result<_, _>>()?,
    })
}

pub(super) fn finished_to_wire(finished: Finished) -> wire::Finished {
    let verdict = match finished.outcome.verdict {
        Verdict::Succeeded => wire::Verdict::Succeeded,
        Verdict::Failed => wire::Verdict::Failed,
        Verdict::Cancelled => wire::Verdict::Cancelled,
    };
    wire::Finished {
        execution_id: bytes(finished.held.execution.0),
        token: bytes(finished.held.token.0),
        run_id: run_id_to_wire(&finished.of),
        verdict: verdict.into(),
        exit_code: finished.outcome.exit_code,
        error: finished.outcome.error,
        started_at_us: finished.outcome.started_at.as_microsecond(),
        finished_at_us: finished.outcome.finished_at.as_microsecond(),
        output: finished.output.into_iter().map(chunk_to_wire).collect(),
        outputs_json: outputs_to_wire(&finished.outcome.outputs),
    }
}

pub fn finished_to_bytes(finished: Finished) -> Vec<u8> {
    finished_to_wire(finished).encode_to_vec()
}

pub fn finished_from_bytes(bytes: &[u8]) -> Result<Finished, Fault> {
    finished_from_wire(wire::Finished::decode(bytes).map_err(|error| rejected("finished", error))?)
}

fn outputs_from_wire(json: Option<String>) -> Result<Params, String> {
    let Some(json) = json else { return Ok(Params::new()) };
    // An escaped byte takes six.
    if json.len() > 8 * limits::VALUES_BYTES {
        return Err(outputs_too_large());
    }
    serde_json::from_str(&json)
        .map_err(|error| format!("its agent sent outputs that cannot be read: {error}"))
}

fn outputs_to_wire(outputs: &Params) -> Option<String> {
    let json = || serde_json::to_string(outputs).expect("JSON values with text for keys are JSON");
    (!outputs.is_empty()).then(json)
}

pub(super) fn assignment_from_wire(assignment: wire::Assignment) -> Result<Assignment, Fault> {
    let held = held_pair(&assignment.execution_id, &assignment.token)?;
    Ok(Assignment {
        execution: held.execution,
        token: held.token,
        // The wire does not carry the item: agents do not need it.
        of: Origin::Step { run: run_id(assignment.run_id)?, step: assignment.step, item: None },
        attempt: assignment.attempt,
        kind: match (assignment.placed, assignment.debug) {
            (true, _) => WorkKind::Placed,
            (false, true) => WorkKind::Debug,
            (false, false) => WorkKind::Fleet,
        },
        backend: assignment.backend,
        action: assignment.action,
        params: serde_json::from_str(&assignment.params_json)
            .map(Arc::new)
            .map_err(|error| rejected("params_json", error))?,
        timeout: Duration::from_millis(assignment.timeout_ms),
        stop_on_disconnect: assignment.stop_on_disconnect,
        outputs: assignment.outputs,
    })
}

pub(super) fn assignment_to_wire(assignment: Assignment) -> Result<wire::Assignment, Fault> {
    let Origin::Step { run, step, item: _ } = assignment.of;
    Ok(wire::Assignment {
        execution_id: bytes(assignment.execution.0),
        token: bytes(assignment.token.0),
        run_id: run.to_string(),
        step,
        attempt: assignment.attempt,
        placed: assignment.kind == WorkKind::Placed,
        debug: assignment.kind == WorkKind::Debug,
        backend: assignment.backend,
        action: assignment.action,
        params_json: serde_json::to_string(&*assignment.params).map_err(|error| rejected("params", error))?,
        timeout_ms: millis(assignment.timeout),
        stop_on_disconnect: assignment.stop_on_disconnect,
        outputs: assignment.outputs,
    })
}
