//! Which output is kept, in which chunks, and when a buffer closes.

use downbeat_backends::Stream;
use downbeat_core::ids::{ExecutionId, LeaseToken};
use jiff::Timestamp;
use uuid::Uuid;

use super::*;

const MESSAGE_BYTES: usize = 1024 * 1024;

fn write(buffer: &Arc<Buffer>, offset: u64, text: &str) {
    write_to(buffer, Stream::Stdout, offset, text);
}

fn write_to(buffer: &Arc<Buffer>, stream: Stream, offset: u64, text: &str) {
    Tap(buffer.clone()).piece(Piece { offset, stream, text: text.to_owned(), at: Timestamp::UNIX_EPOCH });
}

fn seen(chunks: &[OutputChunk]) -> Vec<(u64, &str)> {
    chunks.iter().map(|chunk| (chunk.offset, chunk.text.as_str())).collect()
}

fn opened(bound: u64) -> (Arc<Outputs>, Arc<Buffer>) {
    let outputs = Outputs::new(bound);
    let buffer = outputs
        .open(LeaseRef { execution: ExecutionId(Uuid::from_u128(1)), token: LeaseToken(Uuid::from_u128(2)) });
    (outputs, buffer)
}

#[tokio::test]
async fn lines_are_gathered_and_what_was_sent_once_keeps_its_shape() {
    let (outputs, buffer) = opened(1024);
    write(&buffer, 0, "a");
    write(&buffer, 1, "b");
    let mut taken = outputs.take(MESSAGE_BYTES);
    assert_eq!(seen(&taken[0].chunks), [(0, "ab")]);
    write(&buffer, 2, "c");
    taken.remove(0).put_back();
    write(&buffer, 3, "d");
    assert_eq!(seen(&buffer.close().await), [(0, "ab"), (2, "cd")]);
    assert!(outputs.take(MESSAGE_BYTES).is_empty());
}

#[tokio::test]
async fn the_tail_is_kept_and_the_gap_shows() {
    let (_outputs, buffer) = opened(4);
    let big = "x".repeat(OUTPUT_CHUNK_BYTES);
    write(&buffer, 0, &big);
    write(&buffer, big.len() as u64, "tail");
    assert_eq!(seen(&buffer.close().await), [(big.len() as u64, "tail")]);
}

#[tokio::test]
async fn what_comes_back_from_before_a_gap_is_dropped_with_it() {
    let (outputs, buffer) = opened(OUTPUT_CHUNK_BYTES as u64);
    write(&buffer, 0, "early");
    let mut taken = outputs.take(MESSAGE_BYTES);
    let big = "x".repeat(OUTPUT_CHUNK_BYTES);
    write(&buffer, 5, &big);
    write(&buffer, 5 + big.len() as u64, "late");
    taken.remove(0).put_back();
    assert_eq!(seen(&buffer.close().await), [(5 + big.len() as u64, "late")]);
}

#[tokio::test]
async fn the_end_waits_for_chunks_in_flight() {
    let (outputs, buffer) = opened(1024);
    write(&buffer, 0, "first");
    let mut taken = outputs.take(MESSAGE_BYTES);
    write(&buffer, 5, "second");
    let close = buffer.close();
    tokio::pin!(close);
    assert!(futures_util::poll!(close.as_mut()).is_pending());
    taken.remove(0).done();
    assert_eq!(seen(&close.await), [(5, "second")]);
}

#[tokio::test]
async fn pieces_are_counted_with_what_they_cost_and_not_by_their_text_alone() {
    let (outputs, buffer) = opened(OUTPUT_BYTES as u64);
    let alternate = |from: u64| {
        for offset in from..from + 100_000 {
            let stream = if offset % 2 == 0 { Stream::Stdout } else { Stream::Stderr };
            write_to(&buffer, stream, offset, "x");
        }
    };
    alternate(0);
    let mut taken = outputs.take(MESSAGE_BYTES);
    assert!(taken[0].chunks.len() <= MESSAGE_BYTES / 64);
    alternate(100_000);
    taken.remove(0).put_back();
    let rest = buffer.close().await;
    assert!(rest.len() <= OUTPUT_BYTES / 64, "{} chunks", rest.len());
    assert_eq!(rest.last().map(|chunk| chunk.offset), Some(199_999));
}

#[tokio::test]
async fn output_of_exactly_the_maximum_is_kept_however_it_was_read() {
    for (read_bytes, unit) in [(4_096, "x"), (9_000, "x"), (12_288, "x"), (9_000, "€"), (16_383, "a€🦀")]
    {
        let (_outputs, buffer) = opened(OUTPUT_BYTES as u64);
        let mut text = unit.repeat(OUTPUT_BYTES / unit.len());
        text.push_str(&"y".repeat(OUTPUT_BYTES - text.len()));
        let mut offset = 0;
        while offset < text.len() {
            let end = text.floor_char_boundary((offset + read_bytes).min(text.len()));
            write(&buffer, offset as u64, &text[offset..end]);
            offset = end;
        }
        let chunks = buffer.close().await;
        assert!(chunks.iter().all(|chunk| chunk.text.len() <= OUTPUT_CHUNK_BYTES));
        let kept: String = chunks.iter().map(|chunk| chunk.text.as_str()).collect();
        assert!(kept == text, "{read_bytes} {unit}: {} of {} bytes", kept.len(), text.len());
    }
}
