//! Owns the output of one execution: as JSON, as text, or as a live stream.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::Json;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::sse::Event as SseEvent;
use axum::response::{IntoResponse, Response};
use downbeat_api::{Chunk, End, Output, code};
use downbeat_core::execution::Execution as Record;
use downbeat_core::ids::ExecutionId;
use downbeat_store::{self as store, OutputChunk, Store};
use futures_util::stream;
use serde::Deserialize;
use utoipa::IntoParams;

use super::events::{live, sse};
use super::extract::{Api, Flag, Id, Query};
use super::problem::{Failure, HttpResult};
use super::wake::Wake;
use crate::service::Service;

/// Chunks that are read from the store at once: at most 1 MiB, which bounds the memory of a slow client.
pub(super) const READ_AT_ONCE: u32 = 64;

pub(super) fn chunk_view(chunk: OutputChunk) -> Chunk {
    let OutputChunk { offset, stream, text, at, execution: _ } = chunk;
    Chunk { offset, stream, text, at }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct OutputQuery {
    /// Where to start, as a byte offset into all output of the execution.
    #[serde(default)]
    #[param(value_type = Option<u64>)]
    offset: u64,
    /// `1` returns a stream (SSE) of chunks that sends `end` when the execution has ended.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    follow: Flag,
    #[serde(default)]
    #[param(inline)]
    format: Format,
}

/// The format of output without `follow`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
enum Format {
    #[default]
    Json,
    Text,
}

/// Shows the output of an execution, or streams it with `follow=1`
///
/// The tail is kept: `truncated` says that earlier output was dropped. In the stream, `id` is the offset
/// after the chunk; the stream continues after `Last-Event-ID`.
#[utoipa::path(
    get, operation_id = "showExecutionOutput", path = "/executions/{id}/output", tag = "executions",
    params(("id" = String, Path, description = "The execution's id"), OutputQuery),
    responses((status = 200, description = "Its output", content(
        (Output = "application/json"), (String = "text/plain"), (Chunk = "text/event-stream"),
    )))
)]
pub(super) async fn show(
    Api(service, caller): Api,
    Id(id): Id,
    Query(query): Query<OutputQuery>,
    headers: HeaderMap,
) -> HttpResult<Response> {
    let execution = service.execution(&caller, &id).await?;
    if query.follow.is_on() {
        let from = last_offset(&headers)?.unwrap_or(query.offset);
        return Ok(streamed(&service, execution.id, from));
    }
    let output = whole(service.store().as_ref(), &execution, query.offset).await?;
    Ok(match query.format {
        Format::Json => Json(output).into_response(),
        Format::Text => ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], output.text).into_response(),
    })
}

fn last_offset(headers: &HeaderMap) -> HttpResult<Option<u64>> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let offset = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    offset.map(Some).ok_or_else(|| {
        let detail = "the header Last-Event-ID is not an offset into the output";
        Failure::new(StatusCode::BAD_REQUEST, code::BAD_LAST_EVENT_ID, detail)
    })
}

/// Returns the execution that wrote the output: a reused result has its output in another run.
fn written_by(execution: &Record) -> ExecutionId {
    execution.reused.unwrap_or(execution.id)
}

/// Reads all output from an offset on. The store bounds the output of one execution.
async fn whole(store: &dyn Store, execution: &Record, from: u64) -> HttpResult<Output> {
    let mut chunks: Vec<Chunk> = Vec::new();
    let mut next = from;
    loop {
        let read = store.output(written_by(execution), next, READ_AT_ONCE).await?;
        let more = read.len() == READ_AT_ONCE as usize;
        for chunk in read {
            next = chunk.offset + chunk.text.len() as u64;
            chunks.push(chunk_view(chunk));
        }
        if !more {
            break;
        }
    }
    let offset = chunks.first().map_or(from, |chunk| chunk.offset);
    Ok(Output {
        execution: execution.id,
        offset,
        next,
        truncated: offset > from,
        complete: !execution.state.status().is_open(),
        text: chunks.iter().map(|chunk| chunk.text.as_str()).collect(),
        chunks,
    })
}

struct Tail {
    store: Arc<dyn Store>,
    execution: ExecutionId,
    next: u64,
    ready: VecDeque<SseEvent>,
    wake: Wake,
    ended: bool,
}

fn streamed(service: &Service, execution: ExecutionId, from: u64) -> Response {
    let tail = Tail {
        store: service.store().clone(),
        execution,
        next: from,
        ready: VecDeque::new(),
        wake: Wake::new(service),
        ended: false,
    };
    let events = stream::unfold(tail, |mut tail| async move {
        match tail.next().await {
            Ok(event) => event.map(|event| (event, tail)),
            Err(error) => {
                tracing::warn!(%error, "an output stream ends early; the client has to reconnect");
                None
            }
        }
    });
    live(service, events)
}

impl Tail {
    async fn next(&mut self) -> Result<Option<SseEvent>, store::Error> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            if self.ended {
                return Ok(None);
            }
            // The state is read first: an execution that has ended has all its output in the store.
            let Some(record) = self.store.execution(self.execution).await? else { return Ok(None) };
            let read = self.store.output(written_by(&record), self.next, READ_AT_ONCE).await?;
            let drained = read.len() < READ_AT_ONCE as usize;
            for chunk in read {
                self.next = chunk.offset + chunk.text.len() as u64;
                self.ready.push_back(sse("output", &chunk_view(chunk)).id(self.next.to_string()));
            }
            let status = record.state.status();
            if drained && !status.is_open() {
                let end =
                    End { run: record.run().clone(), execution: Some(record.id), status: status.to_string() };
                self.ready.push_back(sse("end", &end));
                self.ended = true;
            } else if self.ready.is_empty() {
                self.wake.execution(self.execution).await;
            }
        }
    }
}
