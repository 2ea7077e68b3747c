//! Owns events: lists and live streams.

use std::ops::ControlFlow;

use axum::Json;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use downbeat_api::{End, Event, EventList, EventPagination};
use downbeat_core::ids::RunId;
use downbeat_core::{Portion, limits};
use downbeat_store::EventFilter;
use serde::Deserialize;
use utoipa::IntoParams;

use super::extract::{Api, Flag, Id, Query};
use super::follow::{Follower, Scope};
use super::live::{Ready, Source, last_event_id, live, sse};
use super::paging::limit;
use super::problem::{Failure, HttpResult};
use crate::service::Service;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EventsQuery {
    /// Only events with a higher number. Default: a stream starts now; a list has the latest events.
    since: Option<u64>,
    /// Only events of this run. Without `since`, all of them.
    run: Option<String>,
    /// `0` returns a list of the recorded events instead of a stream.
    #[param(value_type = Option<String>)]
    follow: Option<Flag>,
    /// With `follow=0`, the number of rows; default 100, at most 1,000. A page with large events has fewer.
    limit: Option<u32>,
}

/// Streams all changes (SSE), or lists them with `follow=0`
///
/// In the stream each event has its number as `id` and its kind as `event`. A client that reconnects with
/// `Last-Event-ID` gets exactly the events that it missed.
#[utoipa::path(
    get, operation_id = "followEvents", path = "/events", tag = "events",
    params(
        EventsQuery,
        ("Last-Event-ID" = Option<u64>, Header, description = "The last event that the client received; overrides `since`"),
    ),
    responses((status = 200, description = "Events", content(
        (Event = "text/event-stream"), (EventList = "application/json"),
    )))
)]
pub(super) async fn all(api: Api, query: Query<EventsQuery>, headers: HeaderMap) -> HttpResult<Response> {
    let Api(service, caller) = &api;
    let follow = query.follow.unwrap_or(Flag::On).is_on();
    let run = query.run.as_deref().map(RunId::from);
    if let Some(run) = &run {
        service.run(caller, run).await?;
    }
    let since = since(service, query.since, &headers).await?;
    let limit = if follow { no_limit(query.limit)? } else { limit(query.limit)? };
    let since = match (since, &run) {
        (Some(since), _) => since,
        (None, Some(_)) => 0,
        (None, None) => service.store().last_seq().await?.saturating_sub(u64::from(limit)),
    };
    if follow {
        return Ok(streamed(service, run.map_or(Scope::All, Scope::Run), since));
    }
    listed(&api, EventFilter { since, run }, limit).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RunEventsQuery {
    /// Only events with a higher number.
    since: Option<u64>,
    /// `1` returns a stream (SSE) that sends `end` when the run has ended.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    follow: Flag,
    /// Without `follow`, the number of rows; default 100, at most 1,000. A page with large events has fewer.
    limit: Option<u32>,
}

/// Lists a run's events, or streams them with `follow=1` until it has ended
#[utoipa::path(
    get, operation_id = "listRunEvents", path = "/runs/{id}/events", tag = "runs",
    params(
        ("id" = String, Path, description = "The run's id"),
        RunEventsQuery,
        ("Last-Event-ID" = Option<u64>, Header, description = "The last event that the client received; overrides `since`"),
    ),
    responses((status = 200, description = "Events", content(
        (EventList = "application/json"), (Event = "text/event-stream"),
    )))
)]
pub(super) async fn of_run(
    api: Api,
    id: Id,
    query: Query<RunEventsQuery>,
    headers: HeaderMap,
) -> HttpResult<Response> {
    let Api(service, caller) = &api;
    let run = service.run(caller, &id.run()).await?.id.clone();
    let since = since(service, query.since, &headers).await?.unwrap_or(0);
    if query.follow.is_on() {
        no_limit(query.limit)?;
        return Ok(streamed(service, Scope::UntilEnd(run), since));
    }
    let limit = limit(query.limit)?;
    listed(&api, EventFilter { since, run: Some(run) }, limit).await
}

fn no_limit(limit: Option<u32>) -> HttpResult<u32> {
    match limit {
        None => Ok(0),
        Some(_) => {
            Err(Failure::bad_query("the query is wrong: limit: a stream has no limit; add `follow=0`"))
        }
    }
}

/// Returns the number after which to start, if the client sent one.
async fn since(service: &Service, query: Option<u64>, headers: &HeaderMap) -> HttpResult<Option<u64>> {
    let since = last_event_id(headers, "the number of an event")?.or(query);
    if let Some(since) = since {
        let last = service.store().last_seq().await?;
        if since > last {
            // Waiting for it would look like a silent system. The store was replaced or reset.
            let detail = format!("the query is wrong: since: {since} is after the last event, {last}");
            return Err(Failure::bad_query(detail));
        }
    }
    Ok(since)
}

async fn listed(Api(service, caller): &Api, filter: EventFilter, limit: u32) -> HttpResult<Response> {
    let since = filter.since;
    let page = Portion::new(limit.min(limits::PAGE_MOST) as usize, limits::EVENTS_AT_ONCE_BYTES);
    let records = service.events(caller, &filter, page).await?;
    let data: Vec<Event> = records.iter().map(Event::of).collect();
    let next = data.last().map_or(since, |event| event.seq);
    // The page may have fewer rows than its limit because they are large.
    let rest = EventFilter { since: next, ..filter };
    let has_more = !data.is_empty() && !service.events(caller, &rest, Portion::of_rows(1)).await?.is_empty();
    let total = (!has_more).then_some(data.len() as u64);
    let pagination = EventPagination { limit, offset: since, total, has_more, next };
    Ok(Json(EventList { data, pagination }).into_response())
}

fn streamed(service: &Service, scope: Scope, since: u64) -> Response {
    let follower = Follower::new(service.store().clone(), service.parts.feed.subscribe(), scope, since);
    live(service, follower)
}

impl Source for Follower {
    async fn read(&mut self, ready: &mut Ready) -> HttpResult<ControlFlow<()>> {
        if let Some(event) = self.next().await? {
            ready.push_back(sse(event.body.kind(), &event).id(event.seq.to_string()));
            return Ok(ControlFlow::Continue(()));
        }
        if let Some(run) = self.ended_run().await? {
            let status = run.state().status().to_string();
            ready.push_back(sse("end", &End { run: run.id.clone(), execution: None, status }));
        }
        Ok(ControlFlow::Break(()))
    }
}
