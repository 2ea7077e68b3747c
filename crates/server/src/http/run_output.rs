//! Owns the output of a whole run: a stream, or a text to download.

use std::collections::VecDeque;
use std::io;
use std::ops::ControlFlow;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use downbeat_api::{End, RunChunk};
use downbeat_core::execution::Stream as Standard;
use downbeat_core::ids::ExecutionId;
use downbeat_core::limits;
use futures_util::{TryStreamExt, stream};
use serde::Deserialize;
use utoipa::IntoParams;

use super::docs::StreamedRunChunk;
use super::executions::Part;
use super::extract::{Api, Flag, Id, Query};
use super::live::{Ready, Source, last_event_id, live, sse};
use super::merged::{Merged, Pieces};
use super::output::{Format, TEXT};
use super::problem::{Failure, HttpResult};
use super::wake::Wake;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RunOutputQuery {
    /// Only output of this node, by hostname or id.
    node: Option<String>,
    /// Only output of this step.
    step: Option<u32>,
    /// Only output of this item of `for_each`, from 0.
    item: Option<u32>,
    /// `1` streams until the run has ended; otherwise the stream ends after the existing output.
    #[serde(default)]
    #[param(value_type = Option<Flag>, inline)]
    follow: Flag,
    /// `text` returns the output as a text to download: a line for each line, with its time, task and node.
    #[serde(default)]
    #[param(inline)]
    format: Format,
    /// Only lines that contain this text; `matches` in `end` counts them.
    grep: Option<String>,
    /// Only the last lines, this many, at most 1,000 and about 1 MiB.
    #[param(minimum = 1, maximum = 1000)]
    tail: Option<u32>,
    /// The `id` of the last event that the client received; the header `Last-Event-ID` overrides it.
    #[param(value_type = Option<uuid::Uuid>)]
    cursor: Option<String>,
}

impl RunOutputQuery {
    fn check(&self) -> HttpResult<()> {
        if self.follow.is_on() {
            let others = [
                ("format=text", self.format == Format::Text),
                ("grep", self.grep.is_some()),
                ("tail", self.tail.is_some()),
            ];
            if let Some((other, _)) = others.into_iter().find(|(_, is_used)| *is_used) {
                let detail = format!("the query is wrong: follow: it cannot be used with `{other}`");
                return Err(Failure::bad_query(detail));
            }
        }
        match self.tail {
            Some(tail) if !(1..=limits::PAGE_MOST).contains(&tail) => {
                let most = limits::PAGE_MOST;
                let detail = format!("the query is wrong: tail: `{tail}` is not a number from 1 to {most}");
                Err(Failure::bad_query(detail))
            }
            _ => Ok(()),
        }
    }

    fn pieces(&self) -> Pieces {
        if self.format == Format::Text || self.grep.is_some() || self.tail.is_some() {
            Pieces::Lines
        } else {
            Pieces::Chunks
        }
    }
}

/// Streams the output of a run's executions (SSE)
///
/// Starts with the existing output, sorted by the time at which agents read it; that of a run with more than 1,000
/// executions comes in groups of 1,000. With `format=text`, `grep` or `tail`, a line has the time of its first piece and
/// the place of its last one. With `follow=1` the stream continues with new output as it arrives, until the run has ended.
/// The last event is `end`, with the run's status. After `Last-Event-ID` the stream repeats output of executions that had
/// not ended: `execution` and `offset` identify a chunk.
#[utoipa::path(
    get, operation_id = "followRunOutput", path = "/runs/{id}/output", tag = "runs",
    params(("id" = String, Path, description = "The run's id"), RunOutputQuery),
    responses((status = 200, description = "Chunks of output", content(
        (StreamedRunChunk = "text/event-stream"), (String = "text/plain"),
    )))
)]
pub(super) async fn show(
    api: Api,
    id: Id,
    query: Query<RunOutputQuery>,
    headers: HeaderMap,
) -> HttpResult<Response> {
    query.check()?;
    let Api(service, caller) = &api;
    // Before the first read, so that no signal is missed.
    let wake = Wake::new(service);
    let run = service.run(caller, &id.run()).await?;
    let part = Part::of(&api, &run, query.node.as_deref(), query.step, query.item).await?;
    let after = position(&headers, query.cursor.as_deref())?;
    let merged = Merged::new(service, run, part, query.pieces(), after).await?;
    let selection = Selection::new(query.grep.clone(), query.tail);
    if query.format == Format::Text {
        return Ok(
            ([(header::CONTENT_TYPE, TEXT)], Body::from_stream(text(merged, selection))).into_response()
        );
    }
    Ok(live(service, Stream { merged, selection, wake, follow: query.follow }))
}

/// What the ids of events of this stream are.
const POSITION: &str = "the `id` of an event of such a stream, a UUID";

/// Returns the position after which the stream continues.
fn position(headers: &HeaderMap, cursor: Option<&str>) -> HttpResult<Option<ExecutionId>> {
    if let Some(last) = last_event_id(headers, POSITION)? {
        return Ok(Some(last));
    }
    let wrong = |text| Failure::bad_query(format!("the query is wrong: cursor: `{text}` is not {POSITION}"));
    cursor.map(|text| text.parse().map_err(|_| wrong(text))).transpose()
}

/// Selects lines.
struct Selection {
    grep: Option<String>,
    tail: Option<usize>,
    matches: u64,
    /// The last lines, if only they are wanted.
    last: VecDeque<RunChunk>,
    last_bytes: usize,
}

impl Selection {
    fn new(grep: Option<String>, tail: Option<u32>) -> Self {
        let tail = tail.map(|tail| tail as usize);
        Self { grep, tail, matches: 0, last: VecDeque::new(), last_bytes: 0 }
    }

    /// Returns the selected lines. The last ones are returned at the end.
    fn select(&mut self, mut pieces: Vec<RunChunk>) -> Vec<RunChunk> {
        if let Some(text) = &self.grep {
            pieces.retain(|line| line.chunk.text.contains(text.as_str()));
            self.matches += pieces.len() as u64;
        }
        let Some(tail) = self.tail else { return pieces };
        for line in pieces {
            self.last_bytes += line.chunk.text.len();
            self.last.push_back(line);
            while self.last.len() > tail || (self.last_bytes > limits::OUTPUT_BYTES && self.last.len() > 1) {
                self.last_bytes -= self.last.pop_front().map_or(0, |line| line.chunk.text.len());
            }
        }
        Vec::new()
    }

    fn end(&mut self, unfinished: Vec<RunChunk>) -> Vec<RunChunk> {
        let mut lines = self.select(unfinished);
        lines.extend(self.last.drain(..));
        lines
    }
}

/// Returns the existing output as parts of a text.
fn text(merged: Merged, selection: Selection) -> impl futures_util::Stream<Item = io::Result<String>> {
    let parts = stream::try_unfold(Some((merged, selection)), |state| async move {
        let Some((mut merged, mut selection)) = state else { return HttpResult::Ok(None) };
        loop {
            let pieces = merged.next().await?;
            let is_end = pieces.is_empty();
            let lines = match is_end {
                true => selection.end(merged.unfinished_lines()),
                false => selection.select(pieces),
            };
            let text: String = lines.iter().map(line).collect();
            match (is_end, text.is_empty()) {
                (true, _) => return Ok(Some((text, None))),
                (false, false) => return Ok(Some((text, Some((merged, selection))))),
                (false, true) => {}
            }
        }
    });
    // The response has started: the client notices that it is cut off.
    parts.map_err(|failure| io::Error::other(format!("{failure:?}")))
}

/// `2026-11-16T08:30:54.250Z fetch[3] web-01 | text`; `err|` marks standard error.
fn line(piece: &RunChunk) -> String {
    let RunChunk { task, item, node, attempt, chunk, .. } = piece;
    let item = item.map(|item| format!("[{item}]")).unwrap_or_default();
    let attempt = if *attempt > 1 { format!(" attempt {attempt}") } else { String::new() };
    let bar = match chunk.stream {
        Standard::Stdout => "|",
        Standard::Stderr => "err|",
    };
    let text = chunk.text.strip_suffix('\n').unwrap_or(&chunk.text);
    format!("{:.3} {task}{item} {node}{attempt} {bar} {text}\n", chunk.at)
}

/// The stream: reads existing output, then waits for more.
struct Stream {
    merged: Merged,
    selection: Selection,
    wake: Wake,
    follow: Flag,
}

impl Source for Stream {
    async fn read(&mut self, ready: &mut Ready) -> HttpResult<ControlFlow<()>> {
        let merged = &mut self.merged;
        let before = merged.position();
        let pieces = merged.next().await?;
        if !pieces.is_empty() {
            let pieces = self.selection.select(pieces);
            // Only after the last one is everything sent that was returned.
            let ids = (1..).map(|number| if number == pieces.len() { merged.position() } else { before });
            let events = pieces.iter().zip(ids).map(|(piece, id)| match id {
                Some(id) => sse("output", piece).id(id.to_string()),
                None => sse("output", piece),
            });
            ready.extend(events);
        } else if merged.is_gone() {
            // Without `end`: the client asks again, and learns that there is no such run.
            return Ok(ControlFlow::Break(()));
        } else if merged.is_over() || !self.follow.is_on() {
            let rest = self.selection.end(merged.unfinished_lines());
            ready.extend(rest.iter().map(|piece| sse("output", piece)));
            let matches = self.selection.grep.as_ref().map(|_| self.selection.matches);
            let (run, status) = (merged.run().id.clone(), merged.status.to_string());
            ready.push_back(sse("end", &End { run, execution: None, status, matches }));
            return Ok(ControlFlow::Break(()));
        } else {
            let look = self.wake.run(merged.run()).await;
            merged.look(look).await?;
        }
        Ok(ControlFlow::Continue(()))
    }
}
