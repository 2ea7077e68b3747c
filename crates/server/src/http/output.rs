//! Owns the output of one execution: as JSON, as text, or as a live stream.

use std::ops::ControlFlow;
use std::sync::Arc;

use axum::Json;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use downbeat_api::{Chunk, End, Output};
use downbeat_core::execution::{Execution as Record, Stream};
use downbeat_core::ids::ExecutionId;
use downbeat_core::limits;
use downbeat_store::{OutputChunk, Store};
use serde::Deserialize;
use utoipa::IntoParams;

use super::docs::StreamedChunk;
use super::extract::{Api, Flag, Id, Query};
use super::live::{Ready, Source, last_event_id, live, sse};
use super::problem::{Failure, HttpResult};
use super::wake::Wake;
use crate::service::Service;

/// Chunks that are read from the store at once: at most 1 MiB, which bounds the memory of a slow client.
pub(super) const READ_AT_ONCE: u32 = 64;

/// The media type of output as text.
pub(super) const TEXT: &str = "text/plain; charset=utf-8";

pub(super) fn chunk_view(chunk: OutputChunk) -> Chunk {
    let OutputChunk { offset, stream, text, at, execution: _ } = chunk;
    Chunk { offset, stream, text, at }
}

/// Returns the last line of an execution on standard error that is not empty.
pub(super) async fn last_stderr_line(
    service: &Service,
    execution: ExecutionId,
) -> HttpResult<Option<String>> {
    let tail = service.views().output_tail(execution, limits::LAST_LINE_CHUNKS).await?;
    let errors = tail.iter().filter(|chunk| chunk.stream == Stream::Stderr);
    let text: String = errors.map(|chunk| chunk.text.as_str()).collect();
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty());
    Ok(line.map(|line| line.chars().take(limits::LAST_LINE_CHARS).collect()))
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
    #[param(value_type = Option<Flag>, inline)]
    follow: Flag,
    #[serde(default)]
    #[param(inline)]
    format: Format,
    /// Only whole lines that end at or before this byte offset: the `offset` of a page leads to the page before it.
    before: Option<u64>,
    /// Only lines that contain this text; `matches` counts them.
    grep: Option<String>,
    /// Only the last lines, this many.
    tail: Option<u32>,
}

impl OutputQuery {
    fn selects_lines(&self) -> bool {
        self.before.is_some() || self.grep.is_some() || self.tail.is_some()
    }
}

/// The format of output without `follow`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Format {
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
        (Output = "application/json"), (String = "text/plain"), (StreamedChunk = "text/event-stream"),
    )))
)]
pub(super) async fn show(
    Api(service, caller): Api,
    id: Id,
    query: Query<OutputQuery>,
    headers: HeaderMap,
) -> HttpResult<Response> {
    let execution = service.execution(&caller, &id).await?;
    if query.follow.is_on() {
        if query.selects_lines() {
            let detail = "the query is wrong: follow: it cannot be used with `before`, `grep` or `tail`";
            return Err(Failure::bad_query(detail));
        }
        let next = last_event_id(&headers, "an offset into the output")?.unwrap_or(query.offset);
        let (store, wake) = (service.views().clone(), Wake::new(&service));
        return Ok(live(&service, Tail { store, execution: execution.id, next, wake }));
    }
    let mut output = whole(service.views().as_ref(), &execution, query.offset).await?;
    if query.selects_lines() {
        output = select(&output, &query);
    }
    Ok(match query.format {
        Format::Json => Json(output).into_response(),
        Format::Text => ([(header::CONTENT_TYPE, TEXT)], output.text).into_response(),
    })
}

/// Keeps the lines that a query selects: each becomes a chunk.
fn select(output: &Output, query: &OutputQuery) -> Output {
    let mut lines = lines(&output.chunks);
    if let Some(before) = query.before {
        lines.retain(|line| line.offset + line.text.len() as u64 <= before);
    }
    let mut matches = None;
    if let Some(text) = &query.grep {
        lines.retain(|line| line.text.contains(text.as_str()));
        matches = Some(lines.len() as u64);
    }
    if let Some(tail) = query.tail {
        lines.drain(..lines.len().saturating_sub(tail as usize));
    }
    Output {
        offset: lines.first().map_or(output.offset, |line| line.offset),
        next: lines.last().map_or(output.next, |line| line.offset + line.text.len() as u64),
        text: lines.iter().map(|line| line.text.as_str()).collect(),
        chunks: lines,
        matches,
        ..*output
    }
}

/// Divides chunks of one execution into lines with their ends. A line consists of chunks of one stream that follow each
/// other.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The last line, which has no end yet.
    open: Option<Chunk>,
}

impl Lines {
    /// Adds a chunk. Returns the lines that are complete. A line is divided when it reaches `longest_bytes`.
    pub(super) fn push(&mut self, chunk: &Chunk, longest_bytes: usize) -> Vec<Chunk> {
        let mut complete = Vec::new();
        let mut offset = chunk.offset;
        for part in chunk.text.split_inclusive('\n') {
            let continues =
                |line: &Chunk| line.stream == chunk.stream && line.offset + line.text.len() as u64 == offset;
            let line = match self.open.take() {
                Some(mut line) if continues(&line) => {
                    line.text.push_str(part);
                    line
                }
                other => {
                    complete.extend(other);
                    Chunk { offset, stream: chunk.stream, text: part.to_owned(), at: chunk.at }
                }
            };
            offset += part.len() as u64;
            if line.text.ends_with('\n') || line.text.len() >= longest_bytes {
                complete.push(line);
            } else {
                self.open = Some(line);
            }
        }
        complete
    }

    /// Returns the last line if it has no end.
    pub(super) fn finish(&mut self) -> Option<Chunk> {
        self.open.take()
    }
}

/// Divides the output of one execution, which is bounded as a whole, into lines.
fn lines(chunks: &[Chunk]) -> Vec<Chunk> {
    let mut open = Lines::default();
    let mut lines: Vec<Chunk> = chunks.iter().flat_map(|chunk| open.push(chunk, usize::MAX)).collect();
    lines.extend(open.finish());
    lines
}

/// Returns the execution that wrote the output: a reused result has its output in another run.
fn written_by(execution: &Record) -> ExecutionId {
    execution.reused.unwrap_or(execution.id)
}

/// Reads all output from an offset on. The store bounds the output of one execution.
pub(super) async fn whole(store: &dyn Store, execution: &Record, from: u64) -> HttpResult<Output> {
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
        matches: None,
    })
}

struct Tail {
    store: Arc<dyn Store>,
    execution: ExecutionId,
    next: u64,
    wake: Wake,
}

impl Source for Tail {
    async fn read(&mut self, ready: &mut Ready) -> HttpResult<ControlFlow<()>> {
        // The state is read first: an execution that has ended has all its output in the store.
        let Some(record) = self.store.execution(self.execution).await? else {
            return Ok(ControlFlow::Break(()));
        };
        let read = self.store.output(written_by(&record), self.next, READ_AT_ONCE).await?;
        let drained = read.len() < READ_AT_ONCE as usize;
        for chunk in read {
            self.next = chunk.offset + chunk.text.len() as u64;
            ready.push_back(sse("output", &chunk_view(chunk)).id(self.next.to_string()));
        }
        let status = record.state.status();
        if drained && !status.is_open() {
            let (run, status) = (record.run().clone(), status.to_string());
            ready.push_back(sse("end", &End { run, execution: Some(record.id), status, matches: None }));
            return Ok(ControlFlow::Break(()));
        }
        if ready.is_empty() {
            self.wake.execution(self.execution).await;
        }
        Ok(ControlFlow::Continue(()))
    }
}

#[cfg(test)]
mod tests {
    use downbeat_core::Timestamp;
    use downbeat_core::execution::Stream;

    use super::*;

    #[test]
    fn a_line_is_put_together_from_chunks_of_its_stream() {
        let mut offset = 0;
        let mut chunk = |stream, text: &str| {
            let at = offset;
            offset += text.len() as u64;
            Chunk { offset: at, stream, text: text.to_owned(), at: Timestamp::UNIX_EPOCH }
        };
        let (out, err) = (Stream::Stdout, Stream::Stderr);
        let chunks = vec![chunk(out, "one\ntw"), chunk(out, "o\nth"), chunk(err, "no\n"), chunk(out, "ree")];
        let found = lines(&chunks);
        let shown: Vec<(u64, &str)> = found.iter().map(|line| (line.offset, line.text.as_str())).collect();
        assert_eq!(shown, [(0, "one\n"), (4, "two\n"), (8, "th"), (10, "no\n"), (13, "ree")]);
    }

    #[test]
    fn a_long_line_is_divided_only_where_lines_of_many_executions_are_kept() {
        let text = "x".repeat(limits::OUTPUT_CHUNK_BYTES);
        let chunk = |offset: usize| Chunk {
            offset: offset as u64,
            stream: Stream::Stdout,
            text: text.clone(),
            at: Timestamp::UNIX_EPOCH,
        };
        let chunks: Vec<Chunk> = (0..limits::OUTPUT_BYTES).step_by(text.len()).map(chunk).collect();
        let mut open = Lines::default();
        let divided = chunks.iter().flat_map(|chunk| open.push(chunk, 2 * text.len()));
        assert_eq!(
            divided.map(|line| line.text.len()).collect::<Vec<_>>(),
            vec![2 * text.len(); chunks.len() / 2]
        );
        assert_eq!(lines(&chunks).len(), 1);
    }
}
