//! Owns output between a backend and a server: one bounded buffer per execution, and the chunks that are being sent.
//! `session::output` sends them.

pub(crate) mod pace;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use downbeat_backends::{Piece, Receive};
use downbeat_core::collections::HashMap;
use downbeat_core::limits::{OUTPUT_BYTES, OUTPUT_CHUNK_BYTES};
use downbeat_proto::message::{LeaseRef, OutputChunk};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// With this much output pending, waiting for more has no benefit.
const HURRY_BYTES: usize = 256 * 1024;

/// The cost of a chunk beyond its text, in a message and about the same in memory: a program that writes byte by byte
/// to two streams alternately creates messages that consist mostly of this.
const CHUNK_OVERHEAD_BYTES: usize = 64;

/// Returns the cost of chunks in a message.
pub(crate) fn cost_bytes(chunks: &[OutputChunk]) -> usize {
    chunks.iter().map(cost).sum()
}

fn cost(chunk: &OutputChunk) -> usize {
    chunk.text.len() + CHUNK_OVERHEAD_BYTES
}

/// Returns how many chunks this much text of one stream has at most. A chunk that ends before a character that does not fit
/// is up to 3 bytes shorter than the others.
fn chunks_of(text_bytes: usize) -> usize {
    text_bytes.div_ceil(OUTPUT_CHUNK_BYTES - 3)
}

/// The output of all executions that wrote something and have not ended.
#[derive(Debug)]
pub(crate) struct Outputs {
    /// The cost of chunks kept per execution. Older ones are dropped.
    bound_bytes: usize,
    buffers: Mutex<HashMap<LeaseRef, Arc<Buffer>>>,
    turn: AtomicUsize,
    pub(crate) written: Notify,
    pub(crate) hurry: Notify,
}

/// The unsent output of one execution.
#[derive(Debug)]
pub(crate) struct Buffer {
    held: LeaseRef,
    outputs: Arc<Outputs>,
    state: Mutex<State>,
    sent: Notify,
}

#[derive(Debug, Default)]
struct State {
    chunks: VecDeque<OutputChunk>,
    bytes: usize,
    /// The number of chunks at the front that were sent once and may have arrived. They must be sent again unchanged,
    /// or a server could not recognize them.
    sealed: usize,
    in_flight: bool,
    listed: bool,
}

/// Chunks of one buffer that are being sent.
#[derive(Debug)]
pub(crate) struct InFlight {
    buffer: Arc<Buffer>,
    pub(crate) chunks: Vec<OutputChunk>,
}

impl Outputs {
    pub(crate) fn new(output_max_bytes: u64) -> Arc<Self> {
        let text_bytes = usize::try_from(output_max_bytes).unwrap_or(usize::MAX).min(OUTPUT_BYTES);
        Arc::new(Self {
            bound_bytes: text_bytes + chunks_of(text_bytes) * CHUNK_OVERHEAD_BYTES,
            buffers: Mutex::default(),
            turn: AtomicUsize::new(0),
            written: Notify::new(),
            hurry: Notify::new(),
        })
    }

    /// Returns a buffer for a new execution. It is listed when something is written to it.
    pub(crate) fn open(self: &Arc<Self>, held: LeaseRef) -> Arc<Buffer> {
        Arc::new(Buffer { held, outputs: self.clone(), state: Mutex::default(), sent: Notify::new() })
    }

    /// Returns about how much is pending, counting up to `most`.
    pub(crate) fn waiting_bytes(&self, most: usize) -> usize {
        let mut bytes = 0;
        for buffer in self.listed() {
            if bytes > most {
                break;
            }
            bytes += buffer.state.lock().bytes;
        }
        bytes
    }

    /// Holders of a buffer's state may lock the list, so never lock them in the other order.
    fn listed(&self) -> Vec<Arc<Buffer>> {
        self.buffers.lock().values().cloned().collect()
    }

    /// Takes chunks of at most this cost. The caller ends each with `done` or `put_back`.
    pub(crate) fn take(&self, message_bytes: usize) -> Vec<InFlight> {
        let mut buffers = self.listed();
        // On a slow network the small messages must not all belong to the first execution.
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % buffers.len().max(1);
        buffers.rotate_left(turn);
        let mut room = message_bytes;
        let mut taken = Vec::new();
        for buffer in buffers {
            let chunks = buffer.take(room);
            room -= cost_bytes(&chunks).min(room);
            if !chunks.is_empty() {
                taken.push(InFlight { buffer, chunks });
            }
        }
        taken
    }
}

/// The receiver of a backend's output.
#[derive(Debug)]
pub(crate) struct Tap(pub(crate) Arc<Buffer>);

impl Receive for Tap {
    fn piece(&self, piece: Piece) {
        let buffer = &self.0;
        let mut state = buffer.state.lock();
        let before = state.bytes;
        state.push(buffer.held, piece);
        while state.bytes > buffer.outputs.bound_bytes {
            state.drop_oldest();
        }
        if !state.listed {
            state.listed = true;
            buffer.outputs.buffers.lock().insert(buffer.held, buffer.clone());
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
        let Piece { mut offset, stream, mut text, at } = piece;
        // Otherwise a program that writes line by line would cost a chunk per line. Chunks are filled, so that their overhead
        // does not depend on how the text was read: output of exactly the maximum is kept.
        if self.chunks.len() > self.sealed
            && let Some(last) = self.chunks.back_mut()
            && last.stream == stream
            && last.offset + last.text.len() as u64 == offset
        {
            let rest = text.split_off(text.floor_char_boundary(OUTPUT_CHUNK_BYTES - last.text.len()));
            last.text.push_str(&text);
            offset += text.len() as u64;
            text = rest;
        }
        if !text.is_empty() {
            self.bytes += CHUNK_OVERHEAD_BYTES;
            self.chunks.push_back(OutputChunk { execution: held.execution, offset, stream, text, at });
        }
    }

    /// The offsets show the gap.
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
    fn take(&self, room: usize) -> Vec<OutputChunk> {
        let mut state = self.state.lock();
        let mut left = room;
        let mut count = 0;
        for chunk in &state.chunks {
            if cost(chunk) > left {
                break;
            }
            left -= cost(chunk);
            count += 1;
        }
        if state.in_flight || count == 0 {
            return Vec::new();
        }
        state.in_flight = true;
        state.bytes -= room - left;
        state.sealed = state.sealed.saturating_sub(count);
        state.chunks.drain(..count).collect()
    }

    /// Closes the buffer and returns its unsent output. Waits for chunks that are being sent: the rest must not
    /// overtake them, since a server drops output below the offset that it has.
    pub(crate) async fn close(&self) -> Vec<OutputChunk> {
        loop {
            let sent = self.sent.notified();
            {
                let mut state = self.state.lock();
                if !state.in_flight {
                    if state.listed {
                        self.outputs.buffers.lock().remove(&self.held);
                    }
                    state.bytes = 0;
                    return std::mem::take(&mut state.chunks).into();
                }
            }
            sent.await;
        }
    }
}

impl InFlight {
    pub(crate) fn held(&self) -> LeaseRef {
        self.buffer.held
    }

    /// The chunks arrived, or never will.
    pub(crate) fn done(self) {
        self.buffer.state.lock().in_flight = false;
        self.buffer.sent.notify_waiters();
    }

    /// Puts chunks that may not have arrived back, unchanged. If later output was dropped since, drops them too: of too
    /// much output only the tail is kept.
    pub(crate) fn put_back(self) {
        {
            let mut state = self.buffer.state.lock();
            state.in_flight = false;
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
        self.buffer.sent.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
