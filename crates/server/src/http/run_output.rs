//! Owns the output of a whole run: the output of its executions in one stream, each chunk with its execution.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use axum::response::Response;
use downbeat_api::{End, RunChunk};
use downbeat_core::ids::{ExecutionId, RunId};
use downbeat_core::run::{RunRecord, RunStatus};
use serde::Deserialize;
use utoipa::IntoParams;

use super::docs::StreamedRunChunk;
use super::executions::{Part, label};
use super::extract::{Api, Flag, Id, Query};
use super::live::{Ready, Source, live, sse};
use super::output::{READ_AT_ONCE, chunk_view};
use super::problem::HttpResult;
use super::wake::{Look, Wake};
use crate::service::Service;

/// The minimum time between two listings of a run's executions: a large run has many.
const RELIST_AFTER: Duration = Duration::from_millis(200);

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
}

/// Streams the output of a run's executions (SSE)
///
/// Starts with the existing output, in the order of the executions. With `follow=1` it continues until the
/// run has ended. The last event is `end`, with the run's status.
#[utoipa::path(
    get, operation_id = "followRunOutput", path = "/runs/{id}/output", tag = "runs",
    params(("id" = String, Path, description = "The run's id"), RunOutputQuery),
    responses((status = 200, description = "Chunks of output", body = StreamedRunChunk, content_type = "text/event-stream"))
)]
pub(super) async fn show(api: Api, id: Id, query: Query<RunOutputQuery>) -> HttpResult<Response> {
    let Api(service, caller) = &api;
    let run = service.run(caller, &id.run()).await?;
    let part = Part::of(&api, &run, query.node.as_deref(), query.step, query.item).await?;
    let merged = Merged {
        service: service.clone(),
        run: run.id.clone(),
        part,
        cursors: BTreeMap::new(),
        todo: VecDeque::new(),
        status: RunStatus::Pending,
        over: false,
    };
    let (wake, follow) = (Wake::new(service), query.follow);
    Ok(live(service, Stream { merged, wake, listed_at: None, relist: true, follow }))
}

struct Merged {
    service: Service,
    run: RunId,
    part: Part,
    cursors: BTreeMap<ExecutionId, Cursor>,
    /// Executions that may have new output.
    todo: VecDeque<ExecutionId>,
    status: RunStatus,
    /// The run has ended, and its executions were listed after that.
    over: bool,
}

struct Cursor {
    step: u32,
    task: String,
    item: Option<u32>,
    node: String,
    attempt: u32,
    next: u64,
    /// It had ended before its output was read: no output follows after the current end.
    closed: bool,
    drained: bool,
}

impl Merged {
    /// Notes new and ended executions. `run` was read before they are listed.
    async fn list(&mut self, run: RunRecord) -> HttpResult<()> {
        let mut executions = self.service.store().executions_of(&self.run).await?;
        // Only executions that were leased can have output.
        executions.retain(|execution| execution.state.lease().is_some() && self.part.selects(execution));
        let names = self.service.names(&run, &executions).await?;
        for execution in executions {
            let closed = !execution.state.status().is_open();
            let cursor = self.cursors.entry(execution.id).or_insert_with(|| Cursor {
                step: execution.step(),
                task: label(&run.definition, execution.step()),
                item: execution.item(),
                node: execution.node().map(|node| names.get(node)).unwrap_or_default(),
                attempt: execution.attempt,
                next: 0,
                closed,
                drained: false,
            });
            cursor.closed = closed;
            if !cursor.drained {
                self.todo.push_back(execution.id);
            }
        }
        self.status = run.state().status();
        self.over = run.state().is_terminal();
        Ok(())
    }

    /// Reads more output of one execution, and queues it again if there is more.
    async fn read(&mut self, id: ExecutionId) -> HttpResult<Vec<RunChunk>> {
        let Some(cursor) = self.cursors.get_mut(&id).filter(|cursor| !cursor.drained) else {
            return Ok(Vec::new());
        };
        let read = self.service.store().output(id, cursor.next, READ_AT_ONCE).await?;
        let more = read.len() == READ_AT_ONCE as usize;
        if more {
            self.todo.push_front(id);
        }
        cursor.drained = cursor.closed && !more;
        let chunks = read.into_iter().map(|chunk| {
            cursor.next = chunk.offset + chunk.text.len() as u64;
            RunChunk {
                execution: id,
                step: cursor.step,
                task: cursor.task.clone(),
                item: cursor.item,
                node: cursor.node.clone(),
                attempt: cursor.attempt,
                chunk: chunk_view(chunk),
            }
        });
        Ok(chunks.collect())
    }
}

/// The stream: reads existing output, then waits for more.
struct Stream {
    merged: Merged,
    wake: Wake,
    listed_at: Option<Instant>,
    /// Whether to list the run's executions again.
    relist: bool,
    follow: Flag,
}

impl Source for Stream {
    async fn read(&mut self, ready: &mut Ready) -> HttpResult<ControlFlow<()>> {
        if let Some(id) = self.merged.todo.pop_front() {
            ready.extend(self.merged.read(id).await?.iter().map(|chunk| sse("output", chunk)));
        } else if self.relist {
            return self.list().await;
        } else if self.merged.over || !self.follow.is_on() {
            let status = self.merged.status.to_string();
            let end = End { run: self.merged.run.clone(), execution: None, status };
            ready.push_back(sse("end", &end));
            return Ok(ControlFlow::Break(()));
        } else {
            self.wait().await;
        }
        Ok(ControlFlow::Continue(()))
    }
}

impl Stream {
    async fn list(&mut self) -> HttpResult<ControlFlow<()>> {
        if let Some(wait) = self.listed_at.and_then(|at| RELIST_AFTER.checked_sub(at.elapsed())) {
            tokio::time::sleep(wait).await;
        }
        self.relist = false;
        self.listed_at = Some(Instant::now());
        let Some(run) = self.merged.service.store().run(&self.merged.run).await? else {
            return Ok(ControlFlow::Break(()));
        };
        self.merged.list(run).await?;
        Ok(ControlFlow::Continue(()))
    }

    async fn wait(&mut self) {
        match self.wake.run(&self.merged.run).await {
            Look::At(executions) => {
                let cursors = &self.merged.cursors;
                self.merged.todo.extend(executions.into_iter().filter(|id| cursors.contains_key(id)));
            }
            Look::AtRun | Look::AtAll => self.relist = true,
        }
    }
}
