//! Output on its way to the server.

use downbeat_core::execution::Stream;
use downbeat_core::limits::{OUTPUT_BYTES, OUTPUT_CHUNK_BYTES};

use crate::fake::{Server, held, shell, start, text_of, unique};

#[tokio::test]
async fn output_arrives_while_the_work_runs_and_the_rest_with_its_result() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let agent = start(&server, data.path());
    let number = unique();
    let go = data.path().join("go");
    let script = format!(
        "echo first; echo warning >&2; while [ ! -e {} ]; do sleep 0.01; done; echo last",
        go.display()
    );
    server.give([shell(number, &script)]);
    server
        .until("the first line", |state| state.chunks.iter().find(|c| c.text.contains("first")).cloned())
        .await;
    {
        let state = server.state.lock().unwrap();
        assert!(state.finished.is_empty());
        assert_eq!(state.speaking.iter().collect::<Vec<_>>(), [&held(number)], "output names its lease");
    }
    std::fs::write(go, "").unwrap();
    let chunks = server.output_of(number).await;
    let side = |stream| text_of(&chunks.iter().filter(|c| c.stream == stream).cloned().collect::<Vec<_>>());
    assert_eq!(
        (side(Stream::Stdout).as_str(), side(Stream::Stderr).as_str()),
        ("first\nlast\n", "warning\n")
    );
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn bytes_that_are_not_utf8_arrive_marked() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let agent = start(&server, data.path());
    let number = unique();
    server.give([shell(number, r"printf 'a\xffb\xe2\x82'; sleep 0.05; printf '\xacc\xe2'")]);
    assert_eq!(text_of(&server.output_of(number).await), "a\u{fffd}b€c\u{fffd}");
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn of_much_output_the_tail_is_kept_and_offsets_show_the_gap() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let agent = start(&server, data.path());
    server.until("registered", |state| state.registered.last().cloned()).await;
    let number = unique();
    server.change(|state| state.deaf_to_output = true);
    // 10 MiB in 64-byte lines, written while no server accepts output.
    server.give([shell(number, "head -c 10485760 /dev/zero | tr '\\0' x | fold -w 63; echo; echo the end")]);
    server.until("the work is taken", |state| state.work.is_empty().then_some(())).await;
    server.change(|state| state.down = true);
    let outbox = data.path().join("outbox");
    crate::fake::eventually("it ended", || {
        std::fs::read_dir(&outbox).unwrap().flatten().any(|entry| entry.metadata().unwrap().len() > 0)
    })
    .await;
    server.change(|state| {
        state.down = false;
        state.deaf_to_output = false;
    });
    let chunks = server.output_of(number).await;
    let kept: usize = chunks.iter().map(|chunk| chunk.text.len()).sum();
    assert!(kept <= OUTPUT_BYTES && kept > OUTPUT_BYTES - 2 * OUTPUT_CHUNK_BYTES, "{kept}");
    assert!(text_of(&chunks).ends_with("the end\n"));
    let last = chunks.last().unwrap();
    let total = last.offset + last.text.len() as u64;
    assert!(total > 10 * 1024 * 1024, "{total}");
    for pair in chunks.windows(2) {
        assert_eq!(pair[1].offset, pair[0].offset + pair[0].text.len() as u64);
    }
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn chunks_of_a_message_are_small_and_in_order() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let agent = start(&server, data.path());
    let number = unique();
    server.give([shell(number, "for i in $(seq 1 20000); do echo line $i; done")]);
    let chunks = server.output_of(number).await;
    assert!(chunks.iter().all(|chunk| chunk.text.len() <= OUTPUT_CHUNK_BYTES));
    assert!(chunks.iter().all(|chunk| chunk.execution == held(number).execution));
    assert!(chunks.windows(2).all(|pair| pair[0].offset < pair[1].offset));
    let expected: String = (1..=20000).map(|i| format!("line {i}\n")).collect();
    assert_eq!(text_of(&chunks), expected);
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn work_whose_output_was_in_flight_when_the_server_went_away_ends_and_its_result_is_kept() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let agent = start(&server, data.path());
    let number = unique();
    let go = data.path().join("go");
    server.change(|state| state.slow_for_output = true);
    server
        .give([shell(number, &format!("echo first; while [ ! -e {} ]; do sleep 0.01; done", go.display()))]);
    server.until("output is in flight", |state| (!state.messages.is_empty()).then_some(())).await;
    server.change(|state| (state.down, state.unreachable) = (true, true));
    std::fs::write(go, "").unwrap();
    let outbox = data.path().join("outbox");
    crate::fake::eventually("its result is on disk", || {
        std::fs::read_dir(&outbox).unwrap().flatten().any(|entry| entry.metadata().unwrap().len() > 0)
    })
    .await;
    server.change(|state| (state.down, state.unreachable, state.slow_for_output) = (false, false, false));
    assert_eq!(text_of(&server.output_of(number).await), "first\n");
    agent.drain_and_stop().await.unwrap();
}
