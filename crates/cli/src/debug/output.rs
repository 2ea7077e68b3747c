//! Prints the output of a debug command while it runs: standard output to standard output, standard error to standard
//! error.

use downbeat_api::RunChunk;
use downbeat_core::execution::Stream;

use crate::exit::Result;
use crate::out::Out;
use crate::run::{Colour, Lines, Prefix};

/// On how many nodes the command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nodes {
    One,
    Many,
}

/// The output that was printed.
#[derive(Debug)]
pub(super) enum Shown {
    /// Of one node, byte for byte: so many bytes of it.
    Bytes(u64),
    /// Of several nodes, each line with its node.
    Lines(Lines),
}

impl Shown {
    pub(super) fn new(nodes: Nodes) -> Self {
        match nodes {
            Nodes::One => Self::Bytes(0),
            Nodes::Many => Self::Lines(Lines::new(Prefix::Node, Colour::Off)),
        }
    }

    /// Prints a chunk. A resumed stream starts from the beginning again: the offsets show which chunks were printed.
    pub(super) fn print(&mut self, chunk: &RunChunk, out: Out) -> Result {
        let stream = chunk.chunk.stream;
        match self {
            Self::Bytes(next) => {
                let offset = chunk.chunk.offset;
                if offset < *next {
                    return Ok(());
                }
                if offset > *next {
                    out.note(&format!("… {} bytes are no longer kept …", offset - *next));
                }
                *next = offset + chunk.chunk.text.len() as u64;
                write(stream, &chunk.chunk.text, out)
            }
            Self::Lines(lines) if lines.is_new(chunk) => write(stream, &lines.push(chunk), out),
            Self::Lines(_) => Ok(()),
        }
    }

    /// Prints lines that never got a line end.
    pub(super) fn finish(&mut self, out: Out) -> Result {
        let Self::Lines(lines) = self else { return Ok(()) };
        for stream in [Stream::Stdout, Stream::Stderr] {
            write(stream, &lines.finish_stream(stream), out)?;
        }
        Ok(())
    }
}

fn write(stream: Stream, text: &str, out: Out) -> Result {
    match stream {
        Stream::Stdout => out.raw(text),
        Stream::Stderr => {
            out.raw_error(text);
            Ok(())
        }
    }
}
