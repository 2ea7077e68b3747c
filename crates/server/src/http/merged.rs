//! Owns the output of a run's executions, merged by time, each chunk with its execution.
//!
//! Executions are listed once, page by page, and the existing output of one page is merged. After that, only executions
//! that have changed or grown are read. Chunks have the agents' times, which serve for nothing but this order.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

use downbeat_api::{Names, RunChunk};
use downbeat_core::Timestamp;
use downbeat_core::execution::Execution;
use downbeat_core::ids::ExecutionId;
use downbeat_core::limits;
use downbeat_core::run::{RunRecord, RunStatus};
use downbeat_store::{ExecutionFilter, OutputChunk, Page, Position};
use uuid::Uuid;

use super::executions::{Labels, Part};
use super::output::{Lines, READ_AT_ONCE, chunk_view};
use super::problem::HttpResult;
use super::wake::Look;
use crate::service::Service;

/// How many executions are read, and whose existing output is merged, at once.
const PAGE: u32 = limits::PAGE_MOST;

/// What is read ahead of all executions together; each has at least one chunk.
const AHEAD_BYTES: usize = limits::OUTPUT_CHUNK_BYTES * PAGE as usize;

pub(super) struct Merged {
    service: Service,
    /// The run as it was at first: only its fixed part is used.
    run: RunRecord,
    labels: Labels,
    names: Names,
    part: Part,
    pieces: Pieces,
    pub(super) status: RunStatus,
    /// The run has ended, and its executions were read after that.
    is_over: bool,
    /// The run does not exist any more: its cluster was deleted.
    is_gone: bool,
    /// The position of the request: the client has the output of all executions up to it.
    start: Option<ExecutionId>,
    /// The last listed execution, while executions are being listed.
    listing: Option<Option<ExecutionId>>,
    /// The last execution that is known.
    last: Option<ExecutionId>,
    /// Executions without a lease. Their output is still to come.
    waiting: BTreeSet<ExecutionId>,
    /// Executions whose output was not returned to its end.
    cursors: BTreeMap<ExecutionId, Cursor>,
    /// Executions whose output was returned to its end.
    drained: HashSet<ExecutionId>,
    /// Executions that may have output that was not read.
    unread: VecDeque<ExecutionId>,
    /// Executions with output that was read and not returned, by the time of its first chunk.
    read: BTreeSet<(Timestamp, ExecutionId)>,
}

/// The pieces in which output is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pieces {
    Chunks,
    Lines,
}

struct Cursor {
    step: u32,
    item: Option<u32>,
    node: String,
    attempt: u32,
    leased_at: Timestamp,
    /// The end of what was read.
    next: u64,
    /// Output that was read and not returned.
    ahead: VecDeque<OutputChunk>,
    lines: Lines,
    /// The store had more output than was read.
    has_more: bool,
    /// It had ended before its output was read: no output follows after the current end.
    is_closed: bool,
}

impl Cursor {
    fn of(execution: &Execution, names: &Names) -> Option<Self> {
        // Only executions that were leased can have output.
        let lease = execution.state.lease()?;
        Some(Self {
            step: execution.step(),
            item: execution.item(),
            node: execution.node().map(|node| names.get(node)).unwrap_or_default(),
            attempt: execution.attempt,
            leased_at: lease.granted_at,
            next: 0,
            ahead: VecDeque::new(),
            lines: Lines::default(),
            has_more: false,
            is_closed: false,
        })
    }

    /// Returns the time of the first chunk that was read ahead. An agent whose clock is behind wrote nothing before its
    /// lease.
    fn time(&self) -> Option<Timestamp> {
        self.ahead.front().map(|chunk| chunk.at.max(self.leased_at))
    }
}

impl Merged {
    /// `after`: a [position](Self::position) at which an earlier stream was cut off.
    pub(super) async fn new(
        service: &Service,
        run: RunRecord,
        part: Part,
        pieces: Pieces,
        after: Option<ExecutionId>,
    ) -> HttpResult<Self> {
        Ok(Self {
            service: service.clone(),
            names: service.names(&run, []).await?,
            labels: Labels::of(&run.definition),
            part,
            pieces,
            status: run.state().status(),
            is_over: run.state().is_terminal(),
            is_gone: false,
            run,
            start: after,
            listing: Some(after),
            last: after,
            waiting: BTreeSet::new(),
            cursors: BTreeMap::new(),
            drained: HashSet::new(),
            unread: VecDeque::new(),
            read: BTreeSet::new(),
        })
    }

    pub(super) fn run(&self) -> &RunRecord {
        &self.run
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    pub(super) fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Returns a position to continue at: the output of all executions up to it was returned to its end.
    pub(super) fn position(&self) -> Option<ExecutionId> {
        let first = [self.cursors.keys().next(), self.waiting.first()].into_iter().flatten().min();
        match first {
            Some(first) => Some(ExecutionId(Uuid::from_u128(first.0.as_u128().saturating_sub(1)))),
            None => self.last,
        }
    }

    /// Returns the next output; nothing if everything that exists was returned.
    pub(super) async fn next(&mut self) -> HttpResult<Vec<RunChunk>> {
        loop {
            let mut pieces = Vec::new();
            while let Some(id) = self.unread.pop_front() {
                pieces.extend(self.read(id).await?);
            }
            if let Some((_, id)) = self.read.pop_first() {
                pieces.extend(self.take(id));
            }
            if !pieces.is_empty() {
                return Ok(pieces);
            }
            // There may be more even if nothing was returned: the taken output may be the start of a line.
            if self.unread.is_empty() && self.read.is_empty() {
                match self.listing {
                    Some(after) => self.list(after).await?,
                    None => return Ok(pieces),
                }
            }
        }
    }

    /// Returns the lines without an end of executions that have not ended.
    pub(super) fn unfinished_lines(&mut self) -> Vec<RunChunk> {
        let open: Vec<ExecutionId> = self.cursors.keys().copied().collect();
        open.into_iter().flat_map(|id| self.unfinished_line(id)).collect()
    }

    fn unfinished_line(&mut self, id: ExecutionId) -> Option<RunChunk> {
        let line = self.cursors.get_mut(&id)?.lines.finish()?;
        self.piece(id, line)
    }

    fn piece(&self, id: ExecutionId, chunk: downbeat_api::Chunk) -> Option<RunChunk> {
        let cursor = self.cursors.get(&id)?;
        Some(RunChunk {
            execution: id,
            step: cursor.step,
            task: self.labels.get(cursor.step),
            item: cursor.item,
            node: cursor.node.clone(),
            attempt: cursor.attempt,
            chunk,
        })
    }

    /// Lists the next page of executions.
    async fn list(&mut self, after: Option<ExecutionId>) -> HttpResult<()> {
        let filter = ExecutionFilter { run: Some(self.run.id.clone()), ..ExecutionFilter::default() };
        let start = Position { after, skip: 0 };
        let page = self.service.views().bare_executions(&filter, &Page { limit: PAGE, start }).await?;
        self.listing = page.next.map(|next| next.after);
        self.note(page.rows).await
    }

    /// Notes the state of executions, and queues them to be read.
    async fn note(&mut self, mut executions: Vec<Execution>) -> HttpResult<()> {
        self.last = executions.iter().map(|execution| execution.id).chain(self.last).max();
        for execution in &executions {
            self.waiting.remove(&execution.id);
        }
        executions.retain(|execution| !self.drained.contains(&execution.id));
        let is_waiting =
            |execution: &&Execution| execution.state.lease().is_none() && execution.state.status().is_open();
        self.waiting.extend(executions.iter().filter(is_waiting).map(|execution| execution.id));
        executions.retain(|execution| self.part.selects(execution));
        if executions.iter().filter_map(Execution::node).any(|node| !self.names.has(node)) {
            self.names = self.service.names(&self.run, &executions).await?;
        }
        for execution in executions {
            let Some(cursor) = Cursor::of(&execution, &self.names) else { continue };
            let cursor = self.cursors.entry(execution.id).or_insert(cursor);
            cursor.is_closed = !execution.state.status().is_open();
            self.unread.push_back(execution.id);
        }
        Ok(())
    }

    /// Reads output of one execution ahead. Returns its last line if that has no end and no output follows.
    async fn read(&mut self, id: ExecutionId) -> HttpResult<Option<RunChunk>> {
        let most = self.part_of_ahead();
        let Some(cursor) = self.cursors.get_mut(&id) else { return Ok(None) };
        if !cursor.ahead.is_empty() {
            cursor.has_more = true;
            return Ok(None);
        }
        let found = self.service.views().output(id, cursor.next, READ_AT_ONCE).await?;
        cursor.has_more = found.len() == READ_AT_ONCE as usize;
        let mut bytes = 0;
        for chunk in found {
            bytes += chunk.text.len();
            if bytes > most && !cursor.ahead.is_empty() {
                cursor.has_more = true;
                break;
            }
            cursor.next = chunk.offset + chunk.text.len() as u64;
            cursor.ahead.push_back(chunk);
        }
        match cursor.time() {
            Some(time) => {
                self.read.insert((time, id));
                Ok(None)
            }
            None => Ok(self.drain(id)),
        }
    }

    /// Returns the part of one execution in what is read ahead of all.
    fn part_of_ahead(&self) -> usize {
        AHEAD_BYTES / self.cursors.len().max(1)
    }

    /// Takes the output of one execution that precedes the output of all others.
    fn take(&mut self, id: ExecutionId) -> Vec<RunChunk> {
        let other = self.read.first().copied();
        // Lines without an end are kept for all executions at once: together they have the bound of what is read ahead.
        let longest_bytes = self.part_of_ahead().max(limits::MERGED_LINE_LEAST_BYTES);
        let mut pieces = Vec::new();
        while let Some(cursor) = self.cursors.get_mut(&id)
            && let Some(time) = cursor.time()
            && other.is_none_or(|other| (time, id) < other || pieces.is_empty())
            && let Some(chunk) = cursor.ahead.pop_front()
        {
            let chunk = chunk_view(chunk);
            let chunks = match self.pieces {
                Pieces::Chunks => vec![chunk],
                Pieces::Lines => cursor.lines.push(&chunk, longest_bytes),
            };
            pieces.extend(chunks.into_iter().filter_map(|chunk| self.piece(id, chunk)));
        }
        match self.cursors.get(&id) {
            Some(cursor) if cursor.time().is_some() => self.read.extend(cursor.time().map(|time| (time, id))),
            Some(cursor) if cursor.has_more => self.unread.push_back(id),
            _ => pieces.extend(self.drain(id)),
        }
        pieces
    }

    /// Forgets an execution whose output was returned to its end. Returns its last line if that has no end.
    fn drain(&mut self, id: ExecutionId) -> Option<RunChunk> {
        self.cursors.get(&id).filter(|cursor| cursor.is_closed)?;
        let line = self.unfinished_line(id);
        self.cursors.remove(&id);
        self.drained.insert(id);
        line
    }

    /// Follows a signal that there may be more output.
    pub(super) async fn look(&mut self, look: Look) -> HttpResult<()> {
        match look {
            Look::At(executions) => {
                self.unread.extend(executions.into_iter().filter(|id| self.cursors.contains_key(id)));
                Ok(())
            }
            Look::Changed { executions, waiting, moved } => {
                self.waiting.extend(waiting);
                // The end of the run may be known before the ends of its last executions were noted.
                let open = self.cursors.keys().filter(|_| moved).copied();
                let executions: BTreeSet<ExecutionId> = executions.into_iter().chain(open).collect();
                self.look_at(executions.into_iter().collect(), moved).await
            }
            Look::AtOpen => self.look_at(self.cursors.keys().copied().collect(), false).await,
            Look::AtAll => {
                self.listing = Some(self.start);
                self.look_at(Vec::new(), true).await
            }
        }
    }

    /// Reads executions again, and whether the run has ended.
    async fn look_at(&mut self, executions: Vec<ExecutionId>, moved: bool) -> HttpResult<()> {
        self.is_gone = !self.service.has_cluster(self.run.cluster).await?;
        if moved && !self.is_gone {
            match self.service.views().run(&self.run.id).await? {
                Some(run) => {
                    self.status = run.state().status();
                    self.is_over = run.state().is_terminal();
                }
                // An ended run may have been removed, and anything of a cluster that was deleted since.
                None => self.is_gone = !self.is_over,
            }
        }
        for part in executions.chunks(PAGE as usize) {
            let read = self.service.views().bare_executions_by_id(part).await?;
            self.note(read).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
