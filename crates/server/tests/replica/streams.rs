//! Live streams on a replica, and the stream that feeds it.

use downbeat_core::limits;
use downbeat_testbed::in_process::{Sent, Setup, noop};
use futures_util::StreamExt;
use reqwest::Method;
use serde_json::{Value, json};

use crate::load::Load;
use crate::site::{alike, replica};

#[tokio::test]
async fn events_stream_from_a_replica_with_the_primarys_numbers_and_resume() {
    let primary = Setup::new().await;
    let replica = replica(&primary, "memory:").await;
    let mut load = Load::start(&primary, 20).await;
    load.submit(&primary, 3).await;
    alike_events(&primary, &replica).await;
    let mut live = replica.follow("/events?since=0").await;
    load.submit(&primary, 3).await;
    load.end(&primary).await;
    let last = primary.server.service().views().last_seq().await.unwrap();
    let mut there = primary.follow("/events?since=0").await;
    let mut sent: Vec<Sent> = Vec::new();
    for number in 1..=last {
        let event = live.next().await.unwrap();
        assert_eq!(event.id.as_deref(), Some(number.to_string().as_str()));
        assert_eq!(Some(&event), there.next().await.as_ref());
        sent.push(event);
    }
    // The replica continues a stream that was interrupted at the primary.
    let request = replica.request(Method::GET, "/events").header("last-event-id", (last / 2).to_string());
    let mut resumed = replica.stream(request).await;
    for event in &sent[usize::try_from(last / 2).unwrap()..] {
        assert_eq!(resumed.next().await.as_ref(), Some(event));
    }
}

async fn alike_events(primary: &Setup, replica: &Setup) {
    crate::site::caught_up(primary, replica).await;
}

#[tokio::test]
async fn output_streams_from_a_replica_up_to_its_end() {
    let primary = Setup::new().await;
    let mut agent = primary.agent("web-1", &[]).await;
    let replica = replica(&primary, "memory:").await;
    let run = primary.submit(&noop()).await;
    let work = agent.take().await;
    agent.start(&work).await;
    agent.write(&work, 0, "one\n").await;
    crate::site::caught_up(&primary, &replica).await;
    let mut one = replica.follow(&format!("/executions/{}/output?follow=1", work.execution)).await;
    let mut all = replica.follow(&format!("/runs/{run}/output?follow=1")).await;
    let mut events = replica.follow(&format!("/runs/{run}/events?follow=1")).await;
    for stream in [&mut one, &mut all] {
        assert_eq!(stream.next().await.unwrap().data["text"], "one\n");
    }
    agent.write(&work, 4, "two\n").await;
    for stream in [&mut one, &mut all] {
        assert_eq!(stream.next().await.unwrap().data["text"], "two\n", "before its end");
    }
    // The last output comes with the result: no stream may end without it.
    agent.finish_with(&work, 0, Some((8, "three\n"))).await;
    for stream in [&mut one, &mut all] {
        let rest = stream.rest().await;
        assert_eq!(rest[0].data["text"], "three\n");
        assert_eq!(rest.last().unwrap().name, "end");
    }
    let rest = events.rest().await;
    assert_eq!(
        (rest.last().unwrap().name.as_str(), &rest.last().unwrap().data["status"]),
        ("end", &"completed".into())
    );
    alike(&primary, &replica).await;
}

/// Reads the primary's stream line by line.
struct Frames {
    bytes: futures_util::stream::BoxStream<'static, reqwest::Result<axum::body::Bytes>>,
    buffer: Vec<u8>,
}

impl Frames {
    async fn open(primary: &Setup, query: &str) -> Self {
        let answer = primary.http.get(format!("{}/api/v1/replication?{query}", crate::site::url(primary)));
        Self { bytes: answer.send().await.unwrap().bytes_stream().boxed(), buffer: Vec::new() }
    }

    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let more = tokio::time::timeout(downbeat_testbed::DEADLINE, self.bytes.next()).await.unwrap()?;
            self.buffer.extend_from_slice(&more.unwrap());
        }
    }
}

/// More batches than the feed holds.
const MANY: u64 = 1_200;
const LARGE: u64 = 1_000;

/// Creates `MANY` events. The first have about 16 kB each, together more than fits into an unread connection.
async fn make_events(primary: &Setup) {
    let groups: Vec<String> = (0..limits::GROUPS_PER_NODE).map(|number| format!("{number:0>250}")).collect();
    let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
    for _ in 0..LARGE {
        primary.agent("web-1", &groups).await;
    }
    // A small node: the responses contain the whole node.
    primary.agent("web-2", &[]).await;
    for _ in LARGE + 1..MANY {
        primary.post("/nodes/web-2/drain", &json!({})).await;
    }
}

#[tokio::test]
async fn a_replica_that_takes_nothing_for_a_while_misses_nothing() {
    let primary = Setup::new().await;
    let mut frames = Frames::open(&primary, "since=0").await;
    while frames.next().await.unwrap().get("beat").is_none() {}
    make_events(&primary).await;
    let (mut seen, mut resets) = (0, 0);
    while seen < MANY {
        let frame = frames.next().await.unwrap();
        resets += u32::from(frame == json!("reset"));
        for event in frame["changes"]["events"].as_array().into_iter().flatten() {
            assert_eq!(event["seq"], seen + 1);
            seen += 1;
        }
    }
    assert_eq!((seen, resets), (MANY, 0));
}

#[tokio::test]
async fn a_replica_that_is_too_far_behind_gets_a_snapshot_in_the_middle() {
    let primary = Setup::new().await;
    let store = primary.server.service().views().clone();
    let mut frames = Frames::open(&primary, "since=0").await;
    while frames.next().await.unwrap().get("beat").is_none() {}
    make_events(&primary).await;
    // The events that it lacks no longer exist.
    let soon = downbeat_core::Timestamp::now() + std::time::Duration::from_secs(60);
    store.prune(soon, 1_000).await.unwrap();
    let (mut seen, mut reset) = (0, false);
    while !reset {
        let frame = frames.next().await.unwrap();
        reset = frame == json!("reset");
        seen += frame["changes"]["events"].as_array().map_or(0, Vec::len);
    }
    assert!(u64::try_from(seen).unwrap() < MANY, "{seen}");
    loop {
        let frame = frames.next().await.unwrap();
        if let Some(end) = frame["part"].get("end") {
            assert_eq!(end["seq"], MANY);
            break;
        }
    }
}

#[tokio::test]
async fn lease_tokens_never_leave_the_server() {
    let primary = Setup::new().await;
    let mut agent = primary.agent("web-1", &[]).await;
    primary.submit(&noop()).await;
    let work = agent.take().await;
    agent.start(&work).await;
    let token = work.token.to_string();
    let mut text = String::new();
    for query in ["since=0&follow=0", "since=1&follow=0"] {
        let mut frames = Frames::open(&primary, query).await;
        while let Some(frame) = frames.next().await {
            text.push_str(&frame.to_string());
        }
    }
    assert!(text.contains("execution_started") && text.contains("\"token\""), "{text}");
    assert!(!text.contains(&token));
}
