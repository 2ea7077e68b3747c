//! Owns output between a backend and a server: a bounded buffer per execution, and what of them is under way. The
//! sending is `session::output`'s.

pub(crate) mod pace;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use downbeat_backends::{Piece, Receive, Stream};
use downbeat_core::collections::HashMap;
use downbeat_core::limits::{OUTPUT_BYTES, OUTPUT_CHUNK_BYTES};
use downbeat_proto::message::{Chunk, LeaseRef};
use tokio::sync::Notify;

/// With this much waiting, waiting for more gains nothing.
const HURRY_BYTES: usize = 256 * 1024;

/// What a chunk costs beyond its text, in a message and about the same in memory: a program that writes byte by byte
/// to two streams in turn makes messages that consist of little else.
const CHUNK_OVERHEAD_BYTES: usize = 64;

/// What chunks cost in a message.
pub(crate) fn cost_bytes(chunks: &[Chunk]) -> usize {
    chunks.iter().map(cost).sum()
}

fn cost(chunk: &Chunk) -> usize {
    chunk.text.len() + CHUNK_OVERHEAD_BYTES
}

/// The output of all executions that wrote something and have not ended.
#[derive(Debug)]
pub(crate) struct Outputs {
    /// Of each execution at most chunks of this cost are kept, the tail.
    bound_bytes: usize,
    buffers: Mutex<HashMap<LeaseRef, Arc<Buffer>>>,
    turn: AtomicUsize,
    pub(crate) written: Notify,
    pub(crate) hurry: Notify,
}

/// One execution's output that was not sent yet.
#[derive(Debug)]
pub(crate) struct Buffer {
    held: LeaseRef,
    outputs: Arc<Outputs>,
    state: Mutex<State>,
    settled: Notify,
}

#[derive(Debug, Default)]
struct State {
    chunks: VecDeque<Chunk>,
    /// What the chunks cost.
    bytes: usize,
    /// So many chunks at the front were sent once, and perhaps arrived: they must be sent again as they were, or a
    /// server that has them could not tell.
    sealed: usize,
    under_way: bool,
    listed: bool,
}

/// What is being sent of one buffer.
#[derive(Debug)]
pub(crate) struct Taken {
    buffer: Arc<Buffer>,
    chunks: Vec<Chunk>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Outputs {
    pub(crate) fn new(output_max_bytes: u64) -> Arc<Self> {
        let text_bytes = usize::try_from(output_max_bytes).unwrap_or(usize::MAX).min(OUTPUT_BYTES);
        Arc::new(Self {
            // So that full chunks come to the whole of it.
            bound_bytes: text_bytes + text_bytes.div_ceil(OUTPUT_CHUNK_BYTES) * CHUNK_OVERHEAD_BYTES,
            buffers: Mutex::default(),
            turn: AtomicUsize::new(0),
            written: Notify::new(),
            hurry: Notify::new(),
        })
    }

    /// A buffer for a new execution. One that nothing is written to costs nobody anything.
    pub(crate) fn open(self: &Arc<Self>, held: LeaseRef) -> Arc<Buffer> {
        Arc::new(Buffer { held, outputs: self.clone(), state: Mutex::default(), settled: Notify::new() })
    }

    /// About how much waits to be sent; counts no further than to `most`.
    pub(crate) fn waiting_bytes(&self, most: usize) -> usize {
        let mut bytes = 0;
        for buffer in self.listed() {
            if bytes > most {
                break;
            }
            bytes += lock(&buffer.state).bytes;
        }
        bytes
    }

    /// Who holds a buffer's state may lock the list, so nobody locks them the other way round.
    fn listed(&self) -> Vec<Arc<Buffer>> {
        lock(&self.buffers).values().cloned().collect()
    }

    /// Takes chunks of this cost at most; each of what is taken has to be settled.
    pub(crate) fn take(&self, message_bytes: usize) -> Vec<Taken> {
        let mut buffers = self.listed();
        // Small messages of a slow line are not all of the one execution that happens to come first.
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % buffers.len().max(1);
        buffers.rotate_left(turn);
        let mut room = message_bytes;
        let mut taken = Vec::new();
        for buffer in buffers {
            let chunks = buffer.take(room);
            room -= cost_bytes(&chunks).min(room);
            if !chunks.is_empty() {
                taken.push(Taken { buffer, chunks });
            }
        }
        taken
    }
}

/// The end that a backend's sink writes to.
#[derive(Debug)]
pub(crate) struct Tap(pub(crate) Arc<Buffer>);

impl Receive for Tap {
    fn piece(&self, piece: Piece) {
        let buffer = &self.0;
        let mut state = lock(&buffer.state);
        let before = state.bytes;
        state.push(buffer.held, piece);
        while state.bytes > buffer.outputs.bound_bytes {
            state.drop_oldest();
        }
        if !state.listed {
            state.listed = true;
            lock(&buffer.outputs.buffers).insert(buffer.held, buffer.clone());
        }
        if before == 0 {
            buffer.outputs.written.notify_one();
        }
        if before < HURRY_BYTES && state.bytes >= HURRY_BYTES {
            buffer.outputs.hurry.notify_one();
        }
    }
}

impl State {
    fn push(&mut self, held: LeaseRef, piece: Piece) {
        self.bytes += piece.text.len();
        let stderr = piece.stream == Stream::Stderr;
        // A program that writes line by line would else cost a chunk per line.
        if self.chunks.len() > self.sealed
            && let Some(last) = self.chunks.back_mut()
            && last.stderr == stderr
            && last.offset + last.text.len() as u64 == piece.offset
            && last.text.len() + piece.text.len() <= OUTPUT_CHUNK_BYTES
        {
            last.text.push_str(&piece.text);
            return;
        }
        self.bytes += CHUNK_OVERHEAD_BYTES;
        self.chunks.push_back(Chunk {
            execution: held.execution,
            offset: piece.offset,
            stderr,
            text: piece.text,
            at: piece.at,
        });
    }

    /// The gap shows in the offsets.
    fn drop_oldest(&mut self) {
        if let Some(oldest) = self.chunks.pop_front() {
            self.bytes -= cost(&oldest);
            self.sealed = self.sealed.saturating_sub(1);
        } else {
            self.bytes = 0;
        }
    }
}

impl Buffer {
    fn take(&self, room: usize) -> Vec<Chunk> {
        let mut state = lock(&self.state);
        let mut left = room;
        let mut count = 0;
        for chunk in &state.chunks {
            if cost(chunk) > left {
                break;
            }
            left -= cost(chunk);
            count += 1;
        }
        if state.under_way || count == 0 {
            return Vec::new();
        }
        state.under_way = true;
        state.bytes -= room - left;
        state.sealed = state.sealed.saturating_sub(count);
        state.chunks.drain(..count).collect()
    }

    /// Ends the buffer and answers what was not sent. Waits for what is under way: the rest must not overtake it,
    /// since a server drops what begins below what it has.
    pub(crate) async fn close(&self) -> Vec<Chunk> {
        loop {
            let settled = self.settled.notified();
            {
                let mut state = lock(&self.state);
                if !state.under_way {
                    if state.listed {
                        lock(&self.outputs.buffers).remove(&self.held);
                    }
                    state.bytes = 0;
                    return std::mem::take(&mut state.chunks).into();
                }
            }
            settled.await;
        }
    }
}

impl Taken {
    pub(crate) fn held(&self) -> LeaseRef {
        self.buffer.held
    }

    pub(crate) fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// It arrived, or never will.
    pub(crate) fn done(self) {
        lock(&self.buffer.state).under_way = false;
        self.buffer.settled.notify_waiters();
    }

    /// It may not have arrived: back to the front, as it was. Unless what came after it had to be dropped meanwhile:
    /// of too much output the tail is kept, not scraps from before a gap.
    pub(crate) fn put_back(self) {
        {
            let mut state = lock(&self.buffer.state);
            state.under_way = false;
            let end = self.chunks.last().map_or(0, |chunk| chunk.offset + chunk.text.len() as u64);
            if state.chunks.front().is_none_or(|next| next.offset == end) {
                state.sealed += self.chunks.len();
                state.bytes += cost_bytes(&self.chunks);
                for chunk in self.chunks.into_iter().rev() {
                    state.chunks.push_front(chunk);
                }
            }
            while state.bytes > self.buffer.outputs.bound_bytes {
                state.drop_oldest();
            }
        }
        self.buffer.settled.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
