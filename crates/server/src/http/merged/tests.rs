//! Output of a run with more executions than are merged at once.

use std::sync::Arc;

use downbeat_core::execution::{State, Verdict};
use downbeat_core::run::RunState;
use downbeat_store::conformance::make;
use downbeat_store::{MemoryStore, Store};

use super::*;
use crate::testing::{placed, registered};
use crate::{Caller, Server, Settings, Surroundings, start_within};

/// Starts a server with a run in its store: `open` of its items are not finished, and `chunks` is its output.
async fn server(items: u32, open: u32, chunks: &[OutputChunk]) -> Server {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let execution = |item: u32| {
        let state = match item < open {
            true => make::leased(item, 1),
            false => State::Succeeded {
                lease: Some(make::lease(item, 1)),
                outcome: make::outcome(Verdict::Succeeded),
            },
        };
        Execution { of: make::origin(1, 0, Some(item)), ..make::execution(item, 1, state) }
    };
    let changes = [
        registered(1, make::at(1)),
        make::created_as(placed(1, 1, items)),
        make::moved(1, &[RunState::Starting, RunState::Running], 5),
        make::added(1, (0..items).map(execution).collect()),
    ];
    make::apply(&store, &changes).await;
    store.append_output(chunks, limits::OUTPUT_BYTES as u64).await.unwrap();
    let settings = Settings { name: "one".to_owned(), ..Settings::default() };
    start_within(settings, store, Surroundings::default()).await.unwrap()
}

async fn merged(server: &Server, pieces: Pieces, after: Option<ExecutionId>) -> Merged {
    let service = server.service();
    let run = service.run(&Caller::API, &make::run_id(1)).await.unwrap();
    Merged::new(service, run, Part::default(), pieces, after).await.unwrap()
}

/// Returns all output that exists.
async fn rest(merged: &mut Merged) -> Vec<String> {
    let mut texts = Vec::new();
    loop {
        let pieces = merged.next().await.unwrap();
        if pieces.is_empty() {
            return texts;
        }
        texts.extend(pieces.into_iter().map(|piece| piece.chunk.text));
    }
}

fn line(item: u32) -> OutputChunk {
    make::chunk(item, 0, &format!("line {item}\n"))
}

#[tokio::test]
async fn executions_after_a_page_that_ends_with_an_unfinished_line_are_read() {
    let unfinished = OutputChunk { at: make::at(40), ..make::chunk(0, 0, "unfinished") };
    let server = server(PAGE + 1, 1, &[unfinished, line(1), line(PAGE)]).await;
    let mut merged = merged(&server, Pieces::Lines, None).await;
    assert_eq!(rest(&mut merged).await, ["line 1\n", &format!("line {PAGE}\n")]);
    let unfinished = merged.unfinished_lines();
    assert_eq!(unfinished.iter().map(|line| line.chunk.text.as_str()).collect::<Vec<_>>(), ["unfinished"]);
    server.stop().await;
}

#[tokio::test]
async fn after_missed_signals_only_output_after_the_start_is_read_again() {
    let server = server(4, 0, &[line(0), line(1), line(2), line(3)]).await;
    let mut merged = merged(&server, Pieces::Chunks, Some(make::execution_id(1))).await;
    assert_eq!(rest(&mut merged).await, ["line 2\n", "line 3\n"]);
    merged.look(Look::AtAll).await.unwrap();
    assert!(rest(&mut merged).await.is_empty(), "the client has it");
    server.stop().await;
}

#[tokio::test]
async fn unfinished_lines_of_many_executions_are_bounded_together() {
    let text = "x".repeat(limits::OUTPUT_CHUNK_BYTES - 1);
    let parts = |item| [0, 1].map(|part| make::chunk(item, part * text.len() as u64, &text));
    let chunks: Vec<OutputChunk> = (0..PAGE).flat_map(parts).collect();
    let server = server(PAGE, PAGE, &chunks).await;
    let mut merged = merged(&server, Pieces::Lines, None).await;
    let bytes = |texts: &[String]| texts.iter().map(String::len).sum::<usize>();
    let divided = bytes(&rest(&mut merged).await);
    let kept: Vec<String> = merged.unfinished_lines().into_iter().map(|line| line.chunk.text).collect();
    assert!(bytes(&kept) <= AHEAD_BYTES, "{} bytes", bytes(&kept));
    assert_eq!(divided + bytes(&kept), chunks.len() * text.len(), "nothing is lost");
    server.stop().await;
}
