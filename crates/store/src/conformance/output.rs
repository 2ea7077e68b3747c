//! Cases about output.

use std::sync::Arc;

use super::make::*;
use crate::port::{OutputChunk, Store};
use downbeat_core::execution::Stream;

const PLENTY: u64 = 1024 * 1024;

async fn prepare(store: &Arc<dyn Store>) {
    apply(store, &[created(1), added(1, vec![execution(1, 1, pending()), execution(2, 1, pending())])]).await;
}

async fn texts(store: &Arc<dyn Store>, of: u32, from: u64) -> Vec<(u64, String)> {
    let chunks = store.output(execution_id(of), from, 100).await.unwrap();
    chunks.into_iter().map(|chunk| (chunk.offset, chunk.text)).collect()
}

fn listed(expected: &[(u64, &str)]) -> Vec<(u64, String)> {
    expected.iter().map(|(offset, text)| (*offset, (*text).to_owned())).collect()
}

pub async fn output_is_read_back_in_order_from_an_offset(store: Arc<dyn Store>) {
    prepare(&store).await;
    assert_eq!(texts(&store, 1, 0).await, []);
    let second = OutputChunk { stream: Stream::Stdout, at: at(31), ..chunk(1, 3, "defg") };
    let chunks = [chunk(1, 0, "abc"), second, chunk(2, 0, "other"), chunk(1, 7, "hi")];
    store.append_output(&chunks, PLENTY).await.unwrap();
    let read = store.output(execution_id(1), 0, 100).await.unwrap();
    assert_eq!(read, [chunks[0].clone(), chunks[1].clone(), chunks[3].clone()]);
    assert_eq!(texts(&store, 2, 0).await, listed(&[(0, "other")]));
    // From the chunk that contains the offset on.
    assert_eq!(texts(&store, 1, 2).await, listed(&[(0, "abc"), (3, "defg"), (7, "hi")]));
    assert_eq!(texts(&store, 1, 3).await, listed(&[(3, "defg"), (7, "hi")]));
    assert_eq!(texts(&store, 1, 6).await, listed(&[(3, "defg"), (7, "hi")]));
    assert_eq!(texts(&store, 1, 7).await, listed(&[(7, "hi")]));
    assert_eq!(texts(&store, 1, 9).await, []);
    assert_eq!(texts(&store, 1, u64::MAX).await, []);
    assert_eq!(store.output(execution_id(1), 3, 1).await.unwrap(), [chunks[1].clone()]);
}

pub async fn a_chunk_that_was_sent_before_is_dropped(store: Arc<dyn Store>) {
    prepare(&store).await;
    store.append_output(&[chunk(1, 0, "abc"), chunk(1, 0, "xyz"), chunk(1, 3, "")], PLENTY).await.unwrap();
    store.append_output(&[chunk(1, 0, "abc"), chunk(1, 2, "x"), chunk(1, 3, "def")], PLENTY).await.unwrap();
    store.append_output(&[chunk(1, 3, "def"), chunk(1, 6, "")], PLENTY).await.unwrap();
    // Lost output leaves a gap, and the following output is kept.
    store.append_output(&[chunk(1, 10, "k"), chunk(1, 8, "ij")], PLENTY).await.unwrap();
    assert_eq!(texts(&store, 1, 0).await, listed(&[(0, "abc"), (3, "def"), (10, "k")]));
    assert_eq!(texts(&store, 1, 7).await, listed(&[(10, "k")]));
}

pub async fn output_of_an_unknown_execution_is_dropped(store: Arc<dyn Store>) {
    prepare(&store).await;
    store.append_output(&[chunk(7, 0, "lost"), chunk(1, 0, "kept")], PLENTY).await.unwrap();
    store.append_output(&[], PLENTY).await.unwrap();
    assert_eq!(texts(&store, 7, 0).await, []);
    assert_eq!(texts(&store, 1, 0).await, listed(&[(0, "kept")]));
}

pub async fn the_tail_of_output_is_kept(store: Arc<dyn Store>) {
    prepare(&store).await;
    for (offset, text) in [(0, "aaaa"), (4, "bbbb"), (8, "cccc")] {
        store.append_output(&[chunk(1, offset, text)], 10).await.unwrap();
    }
    assert_eq!(texts(&store, 1, 0).await, listed(&[(4, "bbbb"), (8, "cccc")]));
    // Appending everything at once has the same result, for each execution separately.
    let all: Vec<_> =
        [(0, "aaaa"), (4, "bbbb"), (8, "cccc")].map(|(offset, text)| chunk(2, offset, text)).into();
    store.append_output(&all, 10).await.unwrap();
    assert_eq!(texts(&store, 2, 0).await, listed(&[(4, "bbbb"), (8, "cccc")]));
    // The last chunk always stays, because it marks the end of the output.
    store.append_output(&[chunk(1, 12, "dddddddddddd")], 3).await.unwrap();
    assert_eq!(texts(&store, 1, 0).await, listed(&[(12, "dddddddddddd")]));
    store.append_output(&[chunk(1, 0, "aaaa"), chunk(1, 20, "x")], 0).await.unwrap();
    assert_eq!(texts(&store, 1, 0).await, listed(&[(12, "dddddddddddd")]));
}

pub async fn the_last_chunks_are_read_in_order(store: Arc<dyn Store>) {
    prepare(&store).await;
    assert_eq!(store.output_tail(execution_id(1), 2).await.unwrap(), []);
    let chunks = [chunk(1, 0, "abc"), chunk(2, 0, "other"), chunk(1, 3, "d"), chunk(1, 4, "ef")];
    store.append_output(&chunks, PLENTY).await.unwrap();
    let tail = |limit| store.output_tail(execution_id(1), limit);
    assert_eq!(tail(2).await.unwrap(), [chunks[2].clone(), chunks[3].clone()]);
    assert_eq!(tail(9).await.unwrap(), [chunks[0].clone(), chunks[2].clone(), chunks[3].clone()]);
    assert_eq!(store.output_tail(execution_id(7), 2).await.unwrap(), []);
}

pub async fn output_may_hold_any_text(store: Arc<dyn Store>) {
    prepare(&store).await;
    // Offsets count bytes: the first chunk has seven.
    let chunks = [chunk(1, 0, "grü\0\u{1}\u{7f}"), chunk(1, 7, "\u{1f980}")];
    store.append_output(&chunks, PLENTY).await.unwrap();
    assert_eq!(store.output(execution_id(1), 0, 100).await.unwrap(), chunks);
    assert_eq!(texts(&store, 1, 7).await, listed(&[(7, "\u{1f980}")]));
}
