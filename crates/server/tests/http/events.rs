//! Events: lists, live streams, and resuming without a gap or a repetition.

use downbeat_store::EventFilter;
use downbeat_testbed::in_process::{Agent, Sent, Setup, noop, send};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

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
    assert_eq!(setup.ok("/events?follow=0&cursor=1&limit=2").await, page, "like every other list");
    let both = setup.get("/events?follow=0&cursor=1&since=1").await;
    assert_eq!(both.status, StatusCode::BAD_REQUEST);
    let latest = setup.ok("/events?follow=0&limit=1").await;
    assert_eq!(&latest["data"][0], last);
    let of_run = setup.ok(&format!("/runs/{id}/events")).await;
    assert!(of_run["data"].as_array().unwrap().iter().all(|event| event["run"] == json!(id)));
    assert_eq!(of_run["pagination"]["total"], seqs.len() as u64 - 1);
    let (next, path) = (&of_run["pagination"]["next"], format!("/runs/{id}/events"));
    assert_eq!(setup.ok(&format!("{path}?cursor={next}")).await["data"], json!([]));
    assert_eq!(setup.ok(&format!("/events?follow=0&run={id}")).await["data"], of_run["data"]);
}

#[tokio::test]
async fn a_stream_catches_up_then_goes_on_live_without_gap_or_repetition() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    whole_run(&setup, &mut agent).await;
    let before = setup.server.service().views().last_seq().await.unwrap();
    let mut stream = setup.follow("/events?since=0").await;
    let mut got = Vec::new();
    for _ in 0..before {
        got.push(stream.next().await.unwrap());
    }
    whole_run(&setup, &mut agent).await;
    let after = setup.server.service().views().last_seq().await.unwrap();
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
    let last = setup.server.service().views().last_seq().await.unwrap();
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
    let last = setup.server.service().views().last_seq().await.unwrap();
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

/// Removes the events before the result of a run's execution, as retention would. Returns the number of the first
/// event that is kept.
async fn prune_before_result(setup: &Setup, run: &str) -> u64 {
    let events = setup.ok(&format!("/runs/{run}/events")).await;
    let is_result = |event: &&Value| event["kind"] == "execution_finished";
    let result = events["data"].as_array().unwrap().iter().find(is_result).unwrap();
    let seq = result["seq"].as_u64().unwrap();
    let store = setup.server.service().views();
    let event = store
        .events(&EventFilter { since: seq - 1, run: None }, downbeat_core::Portion::of_rows(1))
        .await
        .unwrap()
        .remove(0);
    store.prune(event.change.at(), 0).await.unwrap();
    assert_eq!(store.kept().await.unwrap().first_seq, Some(seq));
    seq
}

#[tokio::test]
async fn a_list_or_stream_that_asks_for_events_that_are_gone_is_refused_with_the_first_that_is_kept() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let old = whole_run(&setup, &mut agent).await;
    let new = whole_run(&setup, &mut agent).await;
    let first = prune_before_result(&setup, &new).await;
    let gone = [
        "/events?follow=0&since=1".to_owned(),
        "/events?since=1".to_owned(),
        format!("/events?since={}", first - 2),
        format!("/events?follow=0&run={old}"),
        format!("/events?follow=0&run={new}"),
        format!("/runs/{new}/events"),
        format!("/runs/{old}/events?since=2"),
        format!("/runs/{new}/events?follow=1&since=1"),
    ];
    for path in gone {
        let refused = setup.get(&path).await;
        assert_eq!(refused.status, StatusCode::GONE, "{path}");
        let found = (&refused.body["code"], &refused.body["first"]);
        assert_eq!(found, (&json!("events_gone"), &json!(first)), "{path}");
    }
    let since = first - 1;
    let rest = setup.ok(&format!("/events?follow=0&since={since}")).await;
    assert_eq!(rest["data"][0]["seq"], first);
    assert_eq!(setup.ok("/events?follow=0").await["data"], rest["data"], "the latest need no number");
    let of_new = setup.ok(&format!("/runs/{new}/events?since={since}")).await;
    assert_eq!(of_new["data"], rest["data"]);
    // A run that began later is whole, whatever number the client has.
    let whole = whole_run(&setup, &mut agent).await;
    assert_eq!(setup.ok(&format!("/runs/{whole}/events")).await["data"][0]["kind"], "run_created");
}

#[tokio::test]
async fn a_stream_that_resumes_before_what_is_kept_gets_a_gap_and_goes_on() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let id = whole_run(&setup, &mut agent).await;
    let first = prune_before_result(&setup, &id).await;
    let resumed = setup.request(Method::GET, "/events?since=1").header("Last-Event-ID", "1");
    let mut stream = setup.stream(resumed).await;
    let gap = stream.next().await.unwrap();
    assert_eq!((gap.name.as_str(), &gap.data), ("gap", &json!({"first": first})));
    assert_eq!(gap.id, Some((first - 1).to_string()), "a client that reconnects goes on after the gap");
    assert_eq!(stream.next().await.unwrap().id, Some(first.to_string()));
    // The stream of a run from its beginning.
    let whole = setup.follow(&format!("/runs/{id}/events?follow=1")).await.rest().await;
    let names: Vec<&str> = whole.iter().map(|sent| sent.name.as_str()).collect();
    assert_eq!((names[0], *names.last().unwrap()), ("gap", "end"));
    assert_eq!(whole[1].id, Some(first.to_string()));
}

#[tokio::test]
async fn events_of_executions_name_cluster_job_node_step_item_and_attempt() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let definition = json!({"name": "copy", "tasks": [
        {"name": "part", "for_each": [7], "backend": "test", "action": "noop"},
    ]});
    let id = setup.submit(&definition).await;
    let work = agent.take().await;
    agent.start(&work).await;
    agent.finish(&work, 0).await;
    setup.ended(&id).await;
    let list = setup.ok("/events?follow=0&since=0").await;
    let streamed = setup.follow("/events?since=0").await.next().await.unwrap();
    assert_eq!(streamed.data, list["data"][0]);
    let cluster = list["data"][0]["cluster"].clone();
    let node = list["data"][0]["node"].clone();
    assert!(cluster.is_string() && node.is_string());
    let mut seen = 0;
    for event in list["data"].as_array().unwrap() {
        assert_eq!(event["cluster"], cluster, "{event}");
        if !event["run"].is_null() {
            assert_eq!(event["job"], "copy", "{event}");
        }
        if !event["execution"].is_null() {
            let about = json!([event["node"], event["step"], event["item"], event["attempt"]]);
            assert_eq!(about, json!([node, 0, 0, 1]), "{event}");
            seen += 1;
        }
    }
    assert!(seen >= 2, "{seen}");
}

#[tokio::test]
async fn events_are_filtered_by_cluster_kind_run_node_and_job() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let id = whole_run(&setup, &mut agent).await;
    setup.agent("web-02", &[]).await;
    setup
        .submit(&json!({"name": "other", "placement": {"labels": ["none"]}, "tasks": noop()["tasks"]}))
        .await;
    let all = setup.ok("/events?follow=0&since=0").await["data"].clone();
    let all = all.as_array().unwrap();
    let web_02 = all.iter().find(|event| event["text"] == "node web-02 registered").unwrap();
    let web_02 = web_02["node"].as_str().unwrap();
    type Matches<'a> = &'a dyn Fn(&Value) -> bool;
    let cases: [(&str, Matches<'_>); 7] = [
        ("cluster=default", &|_| true),
        ("kind=node_registered,run_created", &|event| {
            event["kind"] == "node_registered" || event["kind"] == "run_created"
        }),
        ("job=other", &|event| event["job"] == "other"),
        ("node=web-02", &|event| event["node"] == web_02),
        ("node=web-02&kind=run_created", &|_| false),
        (&format!("run={id}&kind=execution_finished"), &|event| {
            event["run"] == json!(id) && event["kind"] == "execution_finished"
        }),
        (&format!("node={web_02}"), &|event| event["node"] == web_02),
    ];
    for (filter, matches) in cases {
        let expected: Vec<&Value> = all.iter().filter(|event| matches(event)).collect();
        let listed = setup.ok(&format!("/events?follow=0&since=0&{filter}")).await;
        assert_eq!(listed["data"].as_array().unwrap().iter().collect::<Vec<_>>(), expected, "{filter}");
        let latest = setup.ok(&format!("/events?follow=0&{filter}")).await;
        assert_eq!(latest["data"], listed["data"], "{filter}");
        let mut stream = setup.follow(&format!("/events?since=0&{filter}")).await;
        for event in &expected {
            assert_eq!(&&stream.next().await.unwrap().data, event, "{filter}");
        }
    }
    let page = setup.ok("/events?follow=0&since=0&kind=node_registered&limit=1").await;
    assert_eq!((page["data"].as_array().unwrap().len(), &page["pagination"]["has_more"]), (1, &json!(true)));
    let next = &page["pagination"]["next"];
    let rest = setup.ok(&format!("/events?follow=0&since={next}&kind=node_registered&limit=1")).await;
    assert_eq!(rest["data"][0]["node"], web_02);
    assert_eq!(rest["pagination"]["has_more"], false);
    let wrong = setup.get("/events?kind=birthday").await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST);
    assert!(wrong.body["detail"].as_str().unwrap().contains("`birthday` is not one of cluster_created"));
}

#[tokio::test]
async fn a_stream_has_no_limit() {
    let setup = Setup::new().await;
    let id = setup.submit(&json!({"placement": {"labels": ["none"]}, "tasks": noop()["tasks"]})).await;
    for (path, advice) in [
        ("/events?limit=5".to_owned(), "or add `follow=0` for a list"),
        ("/events?cursor=0".to_owned(), "or add `follow=0` for a list"),
        (format!("/runs/{id}/events?follow=1&limit=5"), "or remove `follow` for a list"),
    ] {
        let refused = setup.get(&path).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST);
        assert!(refused.body["detail"].as_str().unwrap().ends_with(advice), "{}", refused.body);
    }
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
    let last = setup.server.service().views().last_seq().await.unwrap();
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
