//! Owns the output of a whole run: the output of its executions in one stream, each chunk with its execution.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::io;
use std::ops::ControlFlow;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use downbeat_api::{End, Names, RunChunk};
use downbeat_core::execution::Execution;
use downbeat_core::ids::{ExecutionId, RunId};
use downbeat_core::limits;
use downbeat_core::run::{RunRecord, RunStatus};
use downbeat_store::{ExecutionFilter, Page, Position};
use futures_util::{TryStreamExt, stream};
use serde::Deserialize;
use utoipa::IntoParams;

use super::docs::StreamedRunChunk;
use super::executions::Part;
use super::extract::{Api, Flag, Id, Query};
use super::live::{Ready, Source, live, sse};
use super::output::{Format, READ_AT_ONCE, TEXT, chunk_view};
use super::problem::{Failure, HttpResult};
use super::wake::{Look, Wake};
use crate::service::Service;

/// How many executions are read at once.
const PAGE: u32 = limits::PAGE_MOST;

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
    /// `text` returns the output as a text to download, with a line before the output of each execution.
    #[serde(default)]
    #[param(inline)]
    format: Format,
}

/// Streams the output of a run's executions (SSE)
///
/// Starts with the existing output, in the order of the executions. With `follow=1` it continues until the
/// run has ended. The last event is `end`, with the run's status.
#[utoipa::path(
    get, operation_id = "followRunOutput", path = "/runs/{id}/output", tag = "runs",
    params(("id" = String, Path, description = "The run's id"), RunOutputQuery),
    responses((status = 200, description = "Chunks of output", content(
        (StreamedRunChunk = "text/event-stream"), (String = "text/plain"),
    )))
)]
pub(super) async fn show(api: Api, id: Id, query: Query<RunOutputQuery>) -> HttpResult<Response> {
    let Api(service, caller) = &api;
    if query.format == Format::Text && query.follow.is_on() {
        return Err(Failure::bad_query("the query is wrong: follow: it cannot be used with `format=text`"));
    }
    // Before the first read, so that no signal is missed.
    let wake = Wake::new(service);
    let run = service.run(caller, &id.run()).await?;
    let part = Part::of(&api, &run, query.node.as_deref(), query.step, query.item).await?;
    let names = service.names(&run, []).await?;
    let merged = Merged {
        service: service.clone(),
        id: run.id.clone(),
        status: run.state().status(),
        over: run.state().is_terminal(),
        tasks: run.definition.steps().map(|task| task.label()).collect(),
        run,
        names,
        part,
        listing: Some(None),
        cursors: BTreeMap::new(),
        drained: HashSet::new(),
        todo: VecDeque::new(),
    };
    if query.format == Format::Text {
        return Ok(([(header::CONTENT_TYPE, TEXT)], Body::from_stream(text(merged))).into_response());
    }
    Ok(live(service, Stream { merged, wake, follow: query.follow }))
}

/// Returns the existing output as parts of a text. Each execution has a line of its own before its output.
fn text(merged: Merged) -> impl futures_util::Stream<Item = io::Result<String>> {
    let parts = stream::try_unfold((merged, None), |(mut merged, mut last)| async move {
        loop {
            if let Some(id) = merged.todo.pop_front() {
                let mut text = String::new();
                for chunk in merged.read(id).await? {
                    if last.replace(id) != Some(id) {
                        text.push_str(&title(&chunk));
                    }
                    text.push_str(&chunk.chunk.text);
                }
                if !text.is_empty() {
                    return Ok(Some((text, (merged, last))));
                }
            } else if let Some(after) = merged.listing {
                merged.list(after).await?;
            } else {
                return HttpResult::Ok(None);
            }
        }
    });
    // The response has started: the client notices that it is cut off.
    parts.map_err(|failure| io::Error::other(format!("{failure:?}")))
}

/// `--- step 0 (fetch) on web-01, attempt 1 ---`.
fn title(chunk: &RunChunk) -> String {
    let RunChunk { step, task, item, node, attempt, .. } = chunk;
    let item = item.map(|item| format!("[{item}]")).unwrap_or_default();
    format!("--- step {step} ({task}{item}) on {node}, attempt {attempt} ---\n")
}

/// The output of a run's executions. Executions are listed once, page by page; after that only those are read that
/// have changed or grown.
struct Merged {
    service: Service,
    id: RunId,
    /// The run as it was at first: only its fixed part is used.
    run: RunRecord,
    tasks: Vec<String>,
    names: Names,
    part: Part,
    status: RunStatus,
    /// The run has ended, and its executions were read after that.
    over: bool,
    /// The last listed execution, while executions are being listed.
    listing: Option<Option<ExecutionId>>,
    /// Executions whose output was not read to its end.
    cursors: BTreeMap<ExecutionId, Cursor>,
    /// Executions whose output was read to its end.
    drained: HashSet<ExecutionId>,
    /// Executions that may have new output.
    todo: VecDeque<ExecutionId>,
}

struct Cursor {
    step: u32,
    item: Option<u32>,
    node: String,
    attempt: u32,
    next: u64,
    /// It had ended before its output was read: no output follows after the current end.
    closed: bool,
}

impl Merged {
    /// Lists the next page of executions.
    async fn list(&mut self, after: Option<ExecutionId>) -> HttpResult<()> {
        let filter = ExecutionFilter { run: Some(self.id.clone()), ..ExecutionFilter::default() };
        let start = Position { after, skip: 0 };
        let page = self.service.views().executions(&filter, &Page { limit: PAGE, start }).await?;
        self.listing = page.next.map(|next| next.after);
        self.note(page.rows).await
    }

    /// Notes the state of executions, and queues them to be read.
    async fn note(&mut self, mut executions: Vec<Execution>) -> HttpResult<()> {
        // Only executions that were leased can have output.
        executions.retain(|execution| {
            execution.state.lease().is_some()
                && self.part.selects(execution)
                && !self.drained.contains(&execution.id)
        });
        if executions.iter().filter_map(Execution::node).any(|node| !self.names.has(node)) {
            self.names = self.service.names(&self.run, &executions).await?;
        }
        for execution in executions {
            let closed = !execution.state.status().is_open();
            let names = &self.names;
            let cursor = self.cursors.entry(execution.id).or_insert_with(|| Cursor {
                step: execution.step(),
                item: execution.item(),
                node: execution.node().map(|node| names.get(node)).unwrap_or_default(),
                attempt: execution.attempt,
                next: 0,
                closed,
            });
            cursor.closed = closed;
            self.todo.push_back(execution.id);
        }
        Ok(())
    }

    /// Reads more output of one execution, and queues it again if there is more.
    async fn read(&mut self, id: ExecutionId) -> HttpResult<Vec<RunChunk>> {
        let Some(cursor) = self.cursors.get_mut(&id) else { return Ok(Vec::new()) };
        let read = self.service.views().output(id, cursor.next, READ_AT_ONCE).await?;
        let more = read.len() == READ_AT_ONCE as usize;
        let task = self.tasks.get(cursor.step as usize).cloned().unwrap_or_default();
        let mut chunks = Vec::with_capacity(read.len());
        for chunk in read {
            cursor.next = chunk.offset + chunk.text.len() as u64;
            chunks.push(RunChunk {
                execution: id,
                step: cursor.step,
                task: task.clone(),
                item: cursor.item,
                node: cursor.node.clone(),
                attempt: cursor.attempt,
                chunk: chunk_view(chunk),
            });
        }
        if more {
            self.todo.push_front(id);
        } else if cursor.closed {
            self.cursors.remove(&id);
            self.drained.insert(id);
        }
        Ok(chunks)
    }

    /// Reads executions again that were changed, and whether the run has ended.
    async fn look(&mut self, executions: Vec<ExecutionId>, moved: bool) -> HttpResult<()> {
        if moved && let Some(run) = self.service.views().run(&self.id).await? {
            self.status = run.state().status();
            self.over = run.state().is_terminal();
        }
        for part in executions.chunks(PAGE as usize) {
            let read = self.service.views().executions_by_id(part).await?;
            self.note(read).await?;
        }
        Ok(())
    }
}

/// The stream: reads existing output, then waits for more.
struct Stream {
    merged: Merged,
    wake: Wake,
    follow: Flag,
}

impl Source for Stream {
    async fn read(&mut self, ready: &mut Ready) -> HttpResult<ControlFlow<()>> {
        let merged = &mut self.merged;
        if let Some(id) = merged.todo.pop_front() {
            ready.extend(merged.read(id).await?.iter().map(|chunk| sse("output", chunk)));
        } else if let Some(after) = merged.listing {
            merged.list(after).await?;
        } else if merged.over || !self.follow.is_on() {
            let status = merged.status.to_string();
            let end = End { run: merged.id.clone(), execution: None, status };
            ready.push_back(sse("end", &end));
            return Ok(ControlFlow::Break(()));
        } else {
            self.wait().await?;
        }
        Ok(ControlFlow::Continue(()))
    }
}

impl Stream {
    async fn wait(&mut self) -> HttpResult<()> {
        let merged = &mut self.merged;
        match self.wake.run(&merged.id).await {
            Look::At(executions) => {
                let known = executions.into_iter().filter(|id| merged.cursors.contains_key(id));
                merged.todo.extend(known);
            }
            Look::Changed { executions, moved } => {
                // The end of the run may be known before the ends of its last executions were noted.
                let open = merged.cursors.keys().filter(|_| moved).copied();
                let executions: BTreeSet<ExecutionId> = executions.into_iter().chain(open).collect();
                merged.look(executions.into_iter().collect(), moved).await?;
            }
            Look::AtOpen => merged.look(merged.cursors.keys().copied().collect(), false).await?,
            Look::AtAll => {
                merged.look(Vec::new(), true).await?;
                merged.listing = Some(None);
            }
        }
        Ok(())
    }
}
