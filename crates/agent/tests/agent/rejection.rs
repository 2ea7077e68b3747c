//! Results that a server rejects: none is dropped, and none delays another.

use downbeat_core::execution::Verdict;

use crate::delivery::{died_with_results, outbox_bytes};
use crate::fake::{Server, eventually, held, last_held, noop, shell, start, unique};

#[tokio::test]
async fn a_result_that_is_rejected_with_its_output_is_sent_without_it_and_says_so() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    server.change(|state| {
        state.deaf_to_output = true;
        state.reject_output = true;
    });
    let agent = start(&server, data.path());
    let (loud, quiet) = (unique(), unique());
    server.give([shell(loud, "echo much; exit 3"), noop(quiet)]);
    let finished = server.result(loud).await;
    assert_eq!((finished.outcome.verdict, finished.outcome.exit_code), (Verdict::Failed, Some(3)));
    assert_eq!(finished.output, []);
    assert_eq!(
        finished.outcome.error.unwrap(),
        "exited with code 3; its output was dropped because the server rejected it: it is too long"
    );
    server.result(quiet).await;
    eventually("the outbox is empty", || outbox_bytes(data.path()) == 0).await;
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn a_result_whose_output_is_rejected_after_some_arrived_says_that_the_rest_was_dropped() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    server.change(|state| state.deaf_to_output = true);
    let agent = start(&server, data.path());
    let number = unique();
    server.give([shell(number, "head -c 600000 /dev/zero | tr '\\0' x | fold -w 99")]);
    eventually("the result is on disk", || outbox_bytes(data.path()) > 0).await;
    server.change(|state| {
        state.deaf_to_output = false;
        state.messages_until_rejected = Some(1);
    });
    let finished = server.result(number).await;
    assert_eq!(finished.outcome.verdict, Verdict::Succeeded);
    assert_eq!(
        finished.outcome.error.unwrap(),
        "the rest of its output was dropped because the server rejected it: it is too long"
    );
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn a_result_that_is_rejected_all_the_same_is_held_and_sent_until_it_is_taken() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let (wrong, right) = (unique(), unique());
    server.change(|state| state.reject.push(held(wrong)));
    let agent = start(&server, data.path());
    server.give([noop(wrong), noop(right)]);
    server.result(right).await;
    server
        .until("it is sent again", |state| {
            let alone = state.rejected.iter().filter(|results| **results == [held(wrong)]).count();
            (alone >= 3 && last_held(state).contains(&held(wrong))).then_some(())
        })
        .await;
    assert!(outbox_bytes(data.path()) > 0);
    server.change(|state| state.reject.clear());
    assert_eq!(server.result(wrong).await.outcome.verdict, Verdict::Succeeded);
    server.until("it is let go of", |state| last_held(state).is_empty().then_some(())).await;
    eventually("the outbox is empty", || outbox_bytes(data.path()) == 0).await;
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn one_rejected_result_of_a_former_life_does_not_cost_the_others_and_is_kept() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let numbers = [unique(), unique(), unique(), unique(), unique()];
    died_with_results(&server, data.path(), &numbers).await;
    server.change(|state| state.reject.push(held(numbers[2])));
    let agent = start(&server, data.path());
    for number in [numbers[0], numbers[1], numbers[3], numbers[4]] {
        server.result(number).await;
    }
    let tries = server.state.lock().unwrap().rejected.len();
    server.until("it is sent again", |state| (state.rejected.len() > tries).then_some(())).await;
    assert!(outbox_bytes(data.path()) > 0);
    server.change(|state| state.reject.clear());
    server.result(numbers[2]).await;
    eventually("the outbox is empty", || outbox_bytes(data.path()) == 0).await;
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn results_of_a_former_life_outlast_a_server_that_does_not_know_the_node() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let numbers = [unique(), unique()];
    died_with_results(&server, data.path(), &numbers).await;
    server.change(|state| state.forgetful = true);
    let agent = start(&server, data.path());
    server.until("registered again", |state| (state.registered.len() == 2).then_some(())).await;
    assert!(outbox_bytes(data.path()) > 0);
    server.change(|state| state.forgetful = false);
    for number in numbers {
        server.result(number).await;
    }
    eventually("the outbox is empty", || outbox_bytes(data.path()) == 0).await;
    agent.drain_and_stop().await.unwrap();
}
