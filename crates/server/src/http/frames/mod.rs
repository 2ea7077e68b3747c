//! Owns the live stream of frames: what changed, at most ten times a second, for pages that show many runs and nodes.

mod gather;
mod reader;

use axum::http::HeaderMap;
use axum::response::Response;
use downbeat_core::ids::RunId;
use serde::Deserialize;
use utoipa::IntoParams;

use self::gather::Topics;
use self::reader::Reader;
use super::docs::StreamedFrame;
use super::events::Start;
use super::extract::{Api, Query, words};
use super::live::live;
use super::problem::{Failure, HttpResult};

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct LiveQuery {
    /// Only this run, and the status of each of its executions as `cells`.
    run: Option<String>,
    /// Only runs and nodes of this cluster, by name or id.
    cluster: Option<String>,
    /// Comma-separated: `runs`, `cells`, `nodes`, `servers`. Default: all.
    topics: Option<String>,
    /// Only events with a higher number. Default: the stream starts now.
    since: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Topic {
    Runs,
    Cells,
    Nodes,
    Servers,
}

/// Streams what changes, in frames (SSE)
///
/// A frame has the net change since the last one and the number of its last event as `id`. The first change is sent at
/// once, later ones at most ten times a second. After the event `gap` the client has to read everything again.
#[utoipa::path(
    get, operation_id = "followLive", path = "/live", tag = "events",
    params(
        LiveQuery,
        ("Last-Event-ID" = inline(Option<u64>), Header, description = "The last frame that the client received; overrides `since`"),
    ),
    responses((status = 200, description = "Frames", body = StreamedFrame, content_type = "text/event-stream"))
)]
pub(super) async fn follow(api: Api, query: Query<LiveQuery>, headers: HeaderMap) -> HttpResult<Response> {
    let Api(service, caller) = &api;
    let run = query.run.as_deref().map(RunId::from);
    if let Some(run) = &run {
        service.run(caller, run).await?;
    }
    let mut topics = topics(query.topics.as_deref(), run)?;
    if let Some(cluster) = &query.cluster {
        topics.cluster = Some(service.cluster(caller, Some(cluster)).await?);
    }
    // Subscribed before the last number is read, so that no event falls between the two.
    let feed = service.parts.feed.subscribe();
    let since = match Start::of(service, query.since.map(|since| ("since", since)), &headers).await? {
        Some(start) => start.since(),
        None => service.views().last_seq().await?,
    };
    Ok(live(service, Reader::new(service.clone(), caller.clone(), feed, topics, since)))
}

fn topics(text: Option<&str>, run: Option<RunId>) -> HttpResult<Topics> {
    let named = words("topics", text, "runs, cells, nodes, servers", |word| match word {
        "runs" => Some(Topic::Runs),
        "cells" => Some(Topic::Cells),
        "nodes" => Some(Topic::Nodes),
        "servers" => Some(Topic::Servers),
        _ => None,
    })?;
    if named.contains(&Topic::Cells) && run.is_none() {
        return Err(Failure::bad_query("the query is wrong: topics: `cells` needs `run`"));
    }
    let has = |topic| text.is_none() || named.contains(&topic);
    Ok(Topics {
        runs: has(Topic::Runs),
        nodes: has(Topic::Nodes),
        servers: has(Topic::Servers),
        cells: run.clone().filter(|_| has(Topic::Cells)),
        run,
        cluster: None,
    })
}
