//! Slow networks: small and urgent messages use one link, much output another, and large messages are split.

use downbeat_core::execution::Verdict;

use crate::fake::{Server, State, eventually, held, last_held, noop, shell, start, text_of, unique};

fn print(bytes: usize) -> String {
    format!("head -c {bytes} /dev/zero | tr '\\0' x | fold -w 99")
}

/// A poll that is repeated because its link was given up lists the leases that arrived.
fn polled_again(state: &State) -> bool {
    state.polls.iter().any(|poll| poll.resync.is_some())
}

#[tokio::test]
async fn a_report_that_timed_out_is_sent_in_halves_down_to_single_results() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let agent = start(&server, data.path());
    server.until("registered", |state| state.registered.last().cloned()).await;
    server.change(|state| state.deaf = true);
    let numbers: Vec<u128> = (0..8).map(|_| unique()).collect();
    server.give(numbers.iter().map(|number| noop(*number)));
    server
        .until("all have ended", |state| {
            let held_now = last_held(state);
            numbers.iter().all(|number| held_now.contains(&held(*number))).then_some(())
        })
        .await;
    server.change(|state| {
        state.deaf = false;
        state.slow_beyond = Some(1);
    });
    for number in &numbers {
        assert_eq!(server.result(*number).await.outcome.verdict, Verdict::Succeeded);
    }
    {
        let state = server.state.lock().unwrap();
        assert!(state.timed_out.windows(2).any(|pair| pair[1] <= pair[0] / 2), "{:?}", state.timed_out);
        assert_eq!(state.finished.len(), numbers.len(), "each is recorded once");
    }
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn much_output_goes_over_a_second_connection_in_small_messages_and_its_result_follows() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let agent = start(&server, data.path());
    let number = unique();
    server.give([shell(number, &print(600_000))]);
    let finished = server.result(number).await;
    let with_result: usize = finished.output.iter().map(|chunk| chunk.text.len()).sum();
    assert!(with_result <= 64 * 1024, "{with_result}: what is much was sent ahead");
    let chunks = server.output_of(number).await;
    {
        let state = server.state.lock().unwrap();
        assert_eq!(state.connects.len(), 2, "{:?}", state.connects);
        let ones = text_of(&chunks).bytes().filter(|byte| *byte == b'x').count();
        assert_eq!(ones, 600_000);
        assert!(chunks.windows(2).all(|pair| pair[0].offset < pair[1].offset), "each piece once, in order");
        assert!(state.messages[0] <= 64 * 1024, "{:?}", state.messages);
        assert!(state.messages.len() > 2, "{:?}", state.messages);
    }
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn a_few_lines_of_output_open_no_second_connection() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let agent = start(&server, data.path());
    let number = unique();
    let go = data.path().join("go");
    let script = format!("echo first; while [ ! -e {} ]; do sleep 0.01; done; echo last", go.display());
    server.give([shell(number, &script)]);
    server.until("the first line", |state| (!state.chunks.is_empty()).then_some(())).await;
    std::fs::write(go, "").unwrap();
    server.result(number).await;
    assert_eq!(server.state.lock().unwrap().connects.len(), 1);
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn output_that_is_not_answered_in_time_costs_neither_heartbeats_nor_polls_their_link() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let agent = start(&server, data.path());
    server.change(|state| state.slow_for_output = true);
    let (chatty, quiet) = (unique(), unique());
    server.give([shell(chatty, &format!("{}; sleep 1000", print(600_000)))]);
    server
        .until("output timed out again and again", |state| {
            (state.messages.len() >= 4 && last_held(state).contains(&held(chatty))).then_some(())
        })
        .await;
    server.give([noop(quiet)]);
    assert_eq!(server.result(quiet).await.outcome.verdict, Verdict::Succeeded);
    {
        let state = server.state.lock().unwrap();
        assert!(!polled_again(&state), "the poll's link was never given up");
        assert!(state.messages.last().unwrap() < &(32 * 1024), "messages shrink: {:?}", state.messages);
    }
    server.change(|state| state.slow_for_output = false);
    server.until("it arrives", |state| state.chunks.first().cloned()).await;
    server.change(|state| state.stop.push(held(chatty)));
    assert_eq!(server.result(chatty).await.outcome.verdict, Verdict::Cancelled);
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn a_disk_that_takes_no_results_is_reported_with_heartbeats_until_it_is_mended() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let agent = start(&server, data.path());
    server.until("registered", |state| state.registered.last().cloned()).await;
    let outbox = data.path().join("outbox");
    std::fs::remove_dir_all(&outbox).unwrap();
    std::fs::write(&outbox, "no directory").unwrap();
    let number = unique();
    server.give([noop(number)]);
    server.result(number).await;
    let problem = server
        .until("the problem is reported", |state| {
            state.heartbeats.last().and_then(|beat| beat.problems.first().cloned())
        })
        .await;
    assert!(problem.starts_with("results cannot be written to disk: "), "{problem}");
    assert!(problem.contains(outbox.to_str().unwrap()), "{problem}");
    std::fs::remove_file(&outbox).unwrap();
    server
        .until("the problem is no longer reported", |state| {
            state.heartbeats.last().is_some_and(|beat| beat.problems.is_empty()).then_some(())
        })
        .await;
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn only_the_agents_user_can_read_what_it_keeps() {
    use std::os::unix::fs::PermissionsExt;
    let (server, directory) = (Server::new(), tempfile::tempdir().unwrap());
    let data = directory.path().join("data");
    let agent = start(&server, &data);
    let number = unique();
    let go = directory.path().join("go");
    let mut work = shell(
        number,
        &format!("while [ ! -e {} ]; do sleep 0.01; done; echo v = 1 >$DOWNBEAT_OUTPUT", go.display()),
    );
    work.outputs = vec!["v".to_owned()];
    server.change(|state| state.deaf = true);
    server.give([noop(unique()), work]);
    let modes = || {
        let mut pending = vec![data.clone()];
        let mut found = Vec::new();
        while let Some(path) = pending.pop() {
            let Ok(metadata) = std::fs::metadata(&path) else { continue };
            found.push((path.clone(), metadata.permissions().mode() & 0o777));
            if metadata.is_dir() {
                pending.extend(
                    std::fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()),
                );
            }
        }
        found
    };
    eventually("everything that it keeps is there", || {
        ["outbox/", "running/", "values/", "session", "lock"].iter().all(|name| {
            modes().iter().any(|(path, _)| path.to_str().unwrap().contains(&format!("data/{name}")))
        })
    })
    .await;
    for (path, mode) in modes() {
        assert_eq!(mode & 0o077, 0, "{}: {mode:o}", path.display());
    }
    std::fs::write(go, "").unwrap();
    server.change(|state| state.deaf = false);
    let outputs = server.result(number).await.outcome.outputs;
    assert_eq!(outputs["v"], "1", "spaces around the sign do not belong to the value");
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn a_directory_in_the_place_of_the_values_does_not_stay() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let agent = start(&server, data.path());
    let number = unique();
    let mut work =
        shell(number, "rm $DOWNBEAT_OUTPUT; mkdir -p $DOWNBEAT_OUTPUT/a; ln -s / $DOWNBEAT_OUTPUT/a/root");
    work.outputs = vec!["v".to_owned()];
    server.give([work]);
    let outcome = server.result(number).await.outcome;
    assert_eq!(outcome.verdict, Verdict::Failed);
    assert_eq!(outcome.error.unwrap(), "$DOWNBEAT_OUTPUT is no longer a regular file");
    assert_eq!(std::fs::read_dir(data.path().join("values")).unwrap().count(), 0);
    agent.drain_and_stop().await.unwrap();
}
