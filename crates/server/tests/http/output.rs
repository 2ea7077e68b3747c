//! Output: of one execution and of a run, whole and while it grows.

use downbeat_core::Timestamp;
use downbeat_core::ids::LeaseToken;
use downbeat_proto::message::LeaseRef;
use downbeat_testbed::in_process::{Setup, noop, send};
use reqwest::{Method, StatusCode};
use serde_json::json;

#[tokio::test]
async fn output_is_shown_as_json_and_as_text_from_an_offset_on() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let id = setup.submit(&noop()).await;
    let work = agent.take().await;
    agent.write(&work, 0, "hello\n").await;
    let path = format!("/executions/{}/output", work.execution);
    let open = setup.ok(&path).await;
    assert_eq!((&open["text"], &open["complete"]), (&json!("hello\n"), &json!(false)));
    agent.finish_with(&work, 0, Some((6, "wörld\n"))).await;
    setup.ended(&id).await;
    let whole = setup.ok(&path).await;
    assert_eq!(whole["text"], "hello\nwörld\n");
    assert_eq!((&whole["offset"], &whole["next"]), (&json!(0), &json!(13)));
    assert_eq!((&whole["truncated"], &whole["complete"]), (&json!(false), &json!(true)));
    assert_eq!((&whole["chunks"][1]["offset"], &whole["chunks"][1]["stream"]), (&json!(6), &json!("stdout")));
    let later = setup.ok(&format!("{path}?offset=6")).await;
    assert_eq!(later["text"], "wörld\n");
    let text = setup.get(&format!("{path}?format=text")).await;
    assert_eq!(text.content_type, "text/plain; charset=utf-8");
    assert_eq!(text.body, "hello\nwörld\n");
}

#[tokio::test]
async fn lines_of_output_are_selected_from_its_end_before_an_offset_and_by_a_text() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let id = setup.submit(&noop()).await;
    let work = agent.take().await;
    agent.write(&work, 0, "one\ntwo\nth").await;
    agent.finish_with(&work, 0, Some((10, "ree\nfour\n"))).await;
    setup.ended(&id).await;
    let path = format!("/executions/{}/output", work.execution);
    let last = setup.ok(&format!("{path}?tail=2")).await;
    assert_eq!(
        (&last["text"], &last["offset"], &last["next"]),
        (&json!("three\nfour\n"), &json!(8), &json!(19))
    );
    let before = setup.ok(&format!("{path}?tail=1&before={}", last["offset"])).await;
    assert_eq!((&before["text"], &before["offset"]), (&json!("two\n"), &json!(4)));
    let found = setup.ok(&format!("{path}?grep=o&tail=1")).await;
    assert_eq!((&found["text"], &found["matches"]), (&json!("four\n"), &json!(3)));
    let none = setup.ok(&format!("{path}?grep=five")).await;
    assert_eq!((&none["text"], &none["matches"]), (&json!(""), &json!(0)));
    assert_eq!(setup.get(&format!("{path}?follow=1&tail=1")).await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn the_output_of_a_run_is_ordered_by_time_and_selected_by_line() {
    let setup = Setup::new().await;
    let mut one = setup.agent("web-01", &[]).await;
    let mut two = setup.agent("web-02", &[]).await;
    let id = setup.submit(&json!({"target": "all", "tasks": [{"backend": "test", "action": "noop"}]})).await;
    let (first, other) = (one.take().await, two.take().await);
    let after = |seconds: i64| Timestamp::from_second(4_000_000_000 + seconds).unwrap();
    one.write_at(&first, 0, "a one\nb", after(1)).await;
    one.write_at(&first, 7, " three\nc five", after(3)).await;
    two.write_at(&other, 0, "d two\n", after(2)).await;
    two.write_at(&other, 6, "e four\n", after(4)).await;
    one.finish(&first, 0).await;
    two.finish(&other, 0).await;
    setup.ended(&id).await;

    let path = format!("/runs/{id}/output");
    assert_eq!(streamed(&setup, &path).await, ["a one\nb", "d two\n", " three\nc five", "e four\n"]);
    let text = setup.get(&format!("{path}?format=text")).await;
    assert_eq!(text.content_type, "text/plain; charset=utf-8");
    assert_eq!(
        text.body,
        "2096-10-02T07:06:41.000Z test noop web-01 | a one\n\
         2096-10-02T07:06:42.000Z test noop web-02 | d two\n\
         2096-10-02T07:06:41.000Z test noop web-01 | b three\n\
         2096-10-02T07:06:43.000Z test noop web-01 | c five\n\
         2096-10-02T07:06:44.000Z test noop web-02 | e four\n"
    );
    assert_eq!(streamed(&setup, &format!("{path}?tail=2")).await, ["c five", "e four\n"]);
    let found = setup.follow(&format!("{path}?grep=o&tail=1")).await.rest().await;
    assert_eq!((&found[0].data["text"], &found[1].data["matches"]), (&json!("e four\n"), &json!(3)));
    for wrong in
        ["follow=1&format=text", "follow=1&grep=x", "follow=1&tail=1", "tail=0", "tail=1001", "cursor=7"]
    {
        assert_eq!(setup.get(&format!("{path}?{wrong}")).await.status, StatusCode::BAD_REQUEST, "{wrong}");
    }
}

#[tokio::test]
async fn the_output_of_a_run_continues_after_the_executions_that_were_sent_to_their_end() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let task = json!({"backend": "test", "action": "noop"});
    let id = setup.submit(&json!({"target": "all", "tasks": [task, task, task]})).await;
    for text in ["one\n", "two\n"] {
        let work = agent.take().await;
        agent.finish_with(&work, 0, Some((0, text))).await;
    }
    let open = agent.take().await;
    agent.write(&open, 0, "three\n").await;
    let path = format!("/runs/{id}/output?follow=1");
    let mut stream = setup.follow(&path).await;
    let mut ids = Vec::new();
    for expected in ["one\n", "two\n", "three\n"] {
        let sent = stream.next().await.unwrap();
        assert_eq!(sent.data["text"], expected);
        ids.push(sent.id);
    }
    agent.finish_with(&open, 0, Some((6, "four\n"))).await;
    setup.ended(&id).await;
    // Output of an execution that had not ended is repeated: a chunk is known by its execution and offset.
    let expected = [&["two\n", "three\n", "four\n"][..], &["three\n", "four\n"], &["three\n", "four\n"]];
    for (last, expected) in ids.iter().zip(expected) {
        let last = last.as_deref().unwrap();
        let request = setup.request(Method::GET, &path).header("Last-Event-ID", last);
        let resumed = setup.stream(request).await.rest().await;
        let texts: Vec<_> = resumed.iter().filter_map(|sent| sent.data["text"].as_str()).collect();
        assert_eq!(texts, expected);
        assert_eq!(streamed(&setup, &format!("/runs/{id}/output?cursor={last}")).await, expected);
    }
    let wrong = send(setup.request(Method::GET, &path).header("Last-Event-ID", "7")).await;
    assert_eq!((wrong.status, &wrong.body["code"]), (StatusCode::BAD_REQUEST, &json!("bad_last_event_id")));
    assert_eq!(
        wrong.body["detail"],
        "the header Last-Event-ID is wrong: it is not the `id` of an event of such a stream, a UUID"
    );
    let wrong = setup.get(&format!("{path}&cursor=7")).await;
    assert_eq!((wrong.status, &wrong.body["code"]), (StatusCode::BAD_REQUEST, &json!("bad_query")));
    assert_eq!(
        wrong.body["detail"],
        "the query is wrong: cursor: `7` is not the `id` of an event of such a stream, a UUID"
    );
}

#[tokio::test]
async fn output_that_was_cut_says_so() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    setup.submit(&noop()).await;
    let work = agent.take().await;
    let piece = "x".repeat(16 * 1024);
    for index in 0..80 {
        agent.write(&work, index * 16 * 1024, &piece).await;
    }
    let output = setup.ok(&format!("/executions/{}/output", work.execution)).await;
    assert_eq!(output["truncated"], true);
    assert!(output["offset"].as_u64().unwrap() > 0);
    assert_eq!(output["next"], 80 * 16 * 1024);
    let kept = output["text"].as_str().unwrap().len() as u64;
    assert_eq!(output["offset"].as_u64().unwrap() + kept, 80 * 16 * 1024);
}

#[tokio::test]
async fn output_is_streamed_as_it_grows_until_the_execution_ends() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    setup.submit(&noop()).await;
    let work = agent.take().await;
    agent.write(&work, 0, "one\n").await;
    let path = format!("/executions/{}/output?follow=1", work.execution);
    let mut stream = setup.follow(&path).await;
    let first = stream.next().await.unwrap();
    assert_eq!((first.name.as_str(), &first.data["text"]), ("output", &json!("one\n")));
    assert_eq!(first.id.as_deref(), Some("4"));
    agent.write(&work, 4, "two\n").await;
    assert_eq!(stream.next().await.unwrap().data["text"], "two\n");
    agent.finish_with(&work, 0, Some((8, "three\n"))).await;
    let rest = stream.rest().await;
    let sent: Vec<_> = rest.iter().map(|sent| (sent.name.as_str(), sent.data["text"].as_str())).collect();
    assert_eq!(sent, [("output", Some("three\n")), ("end", None)]);
    assert_eq!(rest[1].data["status"], "succeeded");
    let resumed =
        setup.stream(setup.request(Method::GET, &path).header("Last-Event-ID", "4")).await.rest().await;
    assert_eq!(
        resumed.iter().filter_map(|sent| sent.data["text"].as_str()).collect::<String>(),
        "two\nthree\n"
    );
}

#[tokio::test]
async fn a_runs_output_is_merged_and_ends_with_the_run() {
    let setup = Setup::new().await;
    let mut one = setup.agent("web-01", &[]).await;
    let mut two = setup.agent("web-02", &[]).await;
    let definition = json!({"target": "all", "tasks": [
        {"name": "first", "backend": "test", "action": "noop"}, {"backend": "test", "action": "noop"},
    ]});
    let id = setup.submit(&definition).await;
    let mut stream = setup.follow(&format!("/runs/{id}/output?follow=1")).await;
    let (first, other) = (one.take().await, two.take().await);
    one.write(&first, 0, "a\n").await;
    let sent = stream.next().await.unwrap();
    let whose = (&sent.data["node"], &sent.data["step"], &sent.data["task"], &sent.data["text"]);
    assert_eq!(whose, (&json!("web-01"), &json!(0), &json!("first"), &json!("a\n")));
    two.finish_with(&other, 0, Some((0, "b\n"))).await;
    assert_eq!(stream.next().await.unwrap().data["node"], "web-02");
    one.finish(&first, 0).await;
    let (first, other) = (one.take().await, two.take().await);
    one.finish_with(&first, 0, Some((0, "c\n"))).await;
    two.finish_with(&other, 0, Some((0, "d\n"))).await;
    let rest = stream.rest().await;
    let (end, pieces) = rest.split_last().unwrap();
    let mut texts: Vec<_> = pieces.iter().map(|sent| sent.data["text"].as_str().unwrap()).collect();
    texts.sort_unstable();
    assert_eq!(texts, ["c\n", "d\n"]);
    assert_eq!((end.name.as_str(), &end.data), ("end", &json!({"run": id, "status": "completed"})));
    assert_eq!(streamed(&setup, &format!("/runs/{id}/output?node=web-02")).await, ["b\n", "d\n"]);
    assert_eq!(streamed(&setup, &format!("/runs/{id}/output?step=1&node=web-01")).await, ["c\n"]);
}

async fn streamed(setup: &Setup, path: &str) -> Vec<String> {
    let sent = setup.follow(path).await.rest().await;
    sent.iter().filter_map(|sent| sent.data["text"].as_str().map(str::to_owned)).collect()
}

#[tokio::test]
async fn without_follow_a_runs_output_is_what_there_is_now() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let id = setup.submit(&noop()).await;
    let work = agent.take().await;
    agent.write(&work, 0, "so far\n").await;
    let sent = setup.follow(&format!("/runs/{id}/output")).await.rest().await;
    assert_eq!(sent.iter().map(|sent| sent.name.as_str()).collect::<Vec<_>>(), ["output", "end"]);
    assert_eq!(sent[1].data["status"], "running");
    assert_eq!(send(setup.request(Method::GET, &format!("/runs/{id}"))).await.body["status"], "running");
}

#[tokio::test]
async fn output_without_the_current_lease_is_dropped() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let id = setup.submit(&noop()).await;
    let work = agent.take().await;
    agent.write(&work, 0, "mine\n").await;
    let forged = LeaseRef { execution: work.execution, token: LeaseToken(uuid::Uuid::nil()) };
    agent.write_as(forged, &work, 5, "forged\n").await;
    agent.finish(&work, 0).await;
    setup.ended(&id).await;
    agent.write(&work, 5, "after the end\n").await;
    let shown = setup.ok(&format!("/executions/{}/output", work.execution)).await;
    assert_eq!(shown["text"], "mine\n");
}
