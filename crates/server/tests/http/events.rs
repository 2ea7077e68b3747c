//! Events: lists, live streams, and resuming without a gap or a repetition.

use downbeat_testbed::in_process::{Agent, Sent, Setup, noop, send};
use reqwest::{Method, StatusCode};
use serde_json::json;

fn numbers(sent: &[Sent]) -> Vec<u64> {
    sent.iter().filter_map(|sent| sent.id.as_ref()?.parse().ok()).collect()
}

async fn whole_run(setup: &Setup, agent: &mut Agent) -> String {
    let id = setup.submit(&noop()).await;
    let work = agent.take().await;
    agent.start(&work).await;
    agent.finish(&work, 0).await;
    setup.ended(&id).await;
    id
}

#[tokio::test]
async fn events_are_listed_in_order_with_who_what_and_when() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let id = whole_run(&setup, &mut agent).await;
    let list = setup.ok("/events?follow=0&since=0").await;
    let events = list["data"].as_array().unwrap();
    let seqs: Vec<u64> = events.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>(), "gapless, from 1");
    assert_eq!(events[0]["kind"], "node_registered");
    assert_eq!(events[0]["text"], "node web-01 registered");
    let created = events.iter().find(|event| event["kind"] == "run_created").unwrap();
    assert_eq!((&created["run"], &created["by"]), (&json!(id), &json!("api")));
    assert!(created["at"].as_str().unwrap().ends_with('Z'));
    let last = events.last().unwrap();
    assert_eq!((&last["kind"], &last["data"]["status"]), (&json!("run_moved"), &json!("completed")));
    assert!(!list.to_string().contains("token"), "lease tokens stay inside");

    let page = setup.ok("/events?follow=0&since=1&limit=2").await;
    assert_eq!(
        page["pagination"],
        json!({"limit": 2, "offset": 1, "total": null, "has_more": true, "next": 3})
    );
    let latest = setup.ok("/events?follow=0&limit=1").await;
    assert_eq!(&latest["data"][0], last);
    let of_run = setup.ok(&format!("/runs/{id}/events")).await;
    assert!(of_run["data"].as_array().unwrap().iter().all(|event| event["run"] == json!(id)));
    assert_eq!(of_run["pagination"]["total"], seqs.len() as u64 - 1);
    assert_eq!(setup.ok(&format!("/events?follow=0&run={id}")).await["data"], of_run["data"]);
}

#[tokio::test]
async fn a_stream_catches_up_then_goes_on_live_without_gap_or_repetition() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    whole_run(&setup, &mut agent).await;
    let before = setup.server.service().store().last_seq().await.unwrap();
    let mut stream = setup.follow("/events?since=0").await;
    let mut got = Vec::new();
    for _ in 0..before {
        got.push(stream.next().await.unwrap());
    }
    whole_run(&setup, &mut agent).await;
    let after = setup.server.service().store().last_seq().await.unwrap();
    assert!(after > before);
    while got.len() < usize::try_from(after).unwrap() {
        got.push(stream.next().await.unwrap());
    }
    assert_eq!(numbers(&got), (1..=after).collect::<Vec<_>>());
    assert!(got.iter().all(|sent| sent.name == sent.data["kind"]));
}

#[tokio::test]
async fn last_event_id_resumes_with_exactly_what_was_missed() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    whole_run(&setup, &mut agent).await;
    let mut stream = setup.follow("/events?since=0").await;
    let seen = [stream.next().await.unwrap(), stream.next().await.unwrap(), stream.next().await.unwrap()];
    drop(stream);
    whole_run(&setup, &mut agent).await;
    let last = setup.server.service().store().last_seq().await.unwrap();
    let id = seen[2].id.clone().unwrap();
    let request = setup.request(Method::GET, "/events?since=0").header("Last-Event-ID", &id);
    let mut resumed = setup.stream(request).await;
    let mut got = Vec::new();
    for _ in 3..last {
        got.push(resumed.next().await.unwrap());
    }
    assert_eq!(numbers(&got), (4..=last).collect::<Vec<_>>());
    let bad = send(setup.request(Method::GET, "/events").header("Last-Event-ID", "x")).await;
    assert_eq!((bad.status, bad.body["code"].as_str()), (StatusCode::BAD_REQUEST, Some("bad_last_event_id")));
}

#[tokio::test]
async fn a_stream_without_since_begins_now() {
    let setup = Setup::new().await;
    setup.agent("web-01", &[]).await;
    let mut stream = setup.follow("/events").await;
    let id = setup.submit(&noop()).await;
    let first = stream.next().await.unwrap();
    assert_eq!((first.name.as_str(), &first.data["run"]), ("run_created", &json!(id)));
}

#[tokio::test]
async fn many_events_are_read_in_pages_and_none_is_missed_while_more_are_made() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let definition =
        json!({"placement": {"labels": ["nowhere"]}, "tasks": [{"backend": "test", "action": "noop"}]});
    for _ in 0..300 {
        setup.submit(&definition).await;
    }
    let mut stream = setup.follow("/events?since=0").await;
    let first = stream.next().await.unwrap();
    // The client still reads the rest of the first page; these are committed while it is behind.
    for _ in 0..100 {
        setup.submit(&definition).await;
    }
    whole_run(&setup, &mut agent).await;
    let last = setup.server.service().store().last_seq().await.unwrap();
    assert!(last > 800, "{last}");
    let mut got = vec![first];
    while got.len() < usize::try_from(last).unwrap() {
        got.push(stream.next().await.unwrap());
    }
    assert_eq!(numbers(&got), (1..=last).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_runs_stream_has_its_events_only_and_ends_with_it() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    whole_run(&setup, &mut agent).await;
    let id = setup.submit(&noop()).await;
    let mut stream = setup.follow(&format!("/runs/{id}/events?follow=1")).await;
    assert_eq!(stream.next().await.unwrap().name, "run_created");
    let work = agent.take().await;
    agent.finish(&work, 0).await;
    let rest = stream.rest().await;
    let (end, events) = rest.split_last().unwrap();
    assert_eq!((end.name.as_str(), &end.data), ("end", &json!({"run": id, "status": "completed"})));
    assert!(events.iter().all(|sent| sent.data["run"] == json!(id)));
    assert_eq!(events.last().unwrap().data["data"]["state"], "completed");

    let again = setup.follow(&format!("/runs/{id}/events?follow=1")).await.rest().await;
    assert_eq!(again.len(), rest.len() + 1, "the stream of an ended run starts at its beginning");
    let last = events.last().unwrap().id.clone().unwrap();
    let nothing = setup.follow(&format!("/runs/{id}/events?follow=1&since={last}")).await.rest().await;
    assert_eq!(nothing.iter().map(|sent| sent.name.as_str()).collect::<Vec<_>>(), ["end"]);
}

#[tokio::test]
async fn streams_end_when_the_server_stops() {
    let setup = Setup::new().await;
    let mut stream = setup.follow("/events").await;
    let Setup { server, .. } = setup;
    let (rest, ()) = tokio::join!(stream.rest(), server.stop());
    assert_eq!(rest, Vec::<Sent>::new());
}

#[tokio::test]
async fn a_page_of_large_events_ends_before_its_limit_and_says_that_there_is_more() {
    let setup = Setup::new().await;
    // The event of a run's creation has its definition.
    let task = json!({"backend": "exec", "action": "run", "placement": {"labels": ["nowhere"]},
        "params": {"command": ["cat"], "stdin": "x".repeat(900_000)}});
    for _ in 0..5 {
        setup.submit(&json!({"tasks": [task]})).await;
    }
    let last = setup.server.service().store().last_seq().await.unwrap();
    let (mut since, mut pages, mut seen) = (0, 0, Vec::new());
    loop {
        let page = setup.ok(&format!("/events?follow=0&limit=1000&since={since}")).await;
        seen.extend(page["data"].as_array().unwrap().iter().map(|event| event["seq"].as_u64().unwrap()));
        pages += 1;
        if page["pagination"]["has_more"] == false {
            break;
        }
        assert_eq!(page["pagination"]["total"], json!(null));
        since = page["pagination"]["next"].as_u64().unwrap();
    }
    assert_eq!(seen, (1..=last).collect::<Vec<_>>());
    assert!(pages >= 3, "two large events fit on a page: {pages} pages");
    let mut stream = setup.follow("/events?since=0").await;
    for seq in 1..=last {
        assert_eq!(stream.next().await.unwrap().id, Some(seq.to_string()));
    }
}
