//! Owns the output of a backend: bytes of two streams in, pieces of text with their offset out. The receiver keeps and
//! sends them.

use std::fmt;
use std::sync::Arc;

pub use downbeat_core::execution::Stream;
use downbeat_core::limits::OUTPUT_CHUNK_BYTES;
use jiff::Timestamp;
use parking_lot::Mutex;

use crate::utf8::Decoder;

/// A piece of output: valid UTF-8, at most `limits::OUTPUT_CHUNK_BYTES`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it starts in the text of both streams together, in bytes.
    pub offset: u64,
    pub stream: Stream,
    pub text: String,
    pub at: Timestamp,
}

pub type Wall = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Receives pieces, in order and under a lock: must be quick.
pub trait Receive: Send + Sync {
    fn piece(&self, piece: Piece);
}

/// The sink that a backend writes to. Clones write to the same output.
#[derive(Clone)]
pub struct OutputSink {
    shared: Arc<Shared>,
}

struct Shared {
    streams: Mutex<Streams>,
    receiver: Arc<dyn Receive>,
    wall: Wall,
}

#[derive(Default)]
struct Streams {
    offset: u64,
    stdout: Decoder,
    stderr: Decoder,
}

impl OutputSink {
    pub fn new(receiver: Arc<dyn Receive>, wall: Wall) -> Self {
        Self { shared: Arc::new(Shared { streams: Mutex::default(), receiver, wall }) }
    }

    pub fn write(&self, stream: Stream, bytes: &[u8]) {
        let mut streams = self.shared.streams.lock();
        let text = match stream {
            Stream::Stdout => streams.stdout.decode(bytes),
            Stream::Stderr => streams.stderr.decode(bytes),
        };
        self.deliver(&mut streams, stream, &text);
    }

    /// Writes incomplete characters at the end of the work.
    pub fn finish(&self) {
        let mut streams = self.shared.streams.lock();
        let (stdout, stderr) = (streams.stdout.finish(), streams.stderr.finish());
        self.deliver(&mut streams, Stream::Stdout, &stdout);
        self.deliver(&mut streams, Stream::Stderr, &stderr);
    }

    fn deliver(&self, streams: &mut Streams, stream: Stream, mut text: &str) {
        while !text.is_empty() {
            let (piece, rest) = text.split_at(text.floor_char_boundary(OUTPUT_CHUNK_BYTES));
            let offset = streams.offset;
            streams.offset += piece.len() as u64;
            self.shared.receiver.piece(Piece {
                offset,
                stream,
                text: piece.to_owned(),
                at: (self.shared.wall)(),
            });
            text = rest;
        }
    }
}

impl fmt::Debug for OutputSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutputSink").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Kept(Mutex<Vec<Piece>>);

    impl Receive for Kept {
        fn piece(&self, piece: Piece) {
            self.0.lock().push(piece);
        }
    }

    #[test]
    fn offsets_count_the_decoded_text_of_both_streams() {
        let kept = Arc::new(Kept::default());
        let sink = OutputSink::new(kept.clone(), Arc::new(Timestamp::now));
        sink.write(Stream::Stdout, b"a\xff");
        sink.write(Stream::Stderr, b"e\xe2\x82");
        sink.write(Stream::Stdout, b"b");
        sink.finish();
        let pieces = kept.0.lock();
        let seen: Vec<(u64, Stream, &str)> =
            pieces.iter().map(|p| (p.offset, p.stream, p.text.as_str())).collect();
        assert_eq!(
            seen,
            [
                (0, Stream::Stdout, "a\u{fffd}"),
                (4, Stream::Stderr, "e"),
                (5, Stream::Stdout, "b"),
                (6, Stream::Stderr, "\u{fffd}"),
            ]
        );
    }

    #[test]
    fn long_writes_are_cut_between_characters() {
        let kept = Arc::new(Kept::default());
        let sink = OutputSink::new(kept.clone(), Arc::new(Timestamp::now));
        let text = format!("x{}", "€".repeat(OUTPUT_CHUNK_BYTES));
        sink.write(Stream::Stdout, text.as_bytes());
        let pieces = kept.0.lock();
        assert!(pieces.iter().all(|piece| piece.text.len() <= OUTPUT_CHUNK_BYTES));
        assert_eq!(pieces.iter().map(|piece| piece.text.as_str()).collect::<String>(), text);
        let mut offset = 0;
        for piece in pieces.iter() {
            assert_eq!(piece.offset, offset);
            offset += piece.text.len() as u64;
        }
    }
}
