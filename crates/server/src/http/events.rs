//! Owns events: lists and live streams.

use std::convert::Infallible;

use axum::Json;
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use downbeat_api::{End, Event, EventList, EventPagination, code};
use downbeat_core::ids::RunId;
use downbeat_core::limits;
use downbeat_store::EventFilter;
use futures_util::stream::{self, Stream};
use futures_util::{FutureExt, StreamExt};
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use super::extract::{Api, Flag, Id, Query, page};
use super::follow::{Follower, Scope};
use super::problem::{Failure, HttpResult};
use crate::caller::Caller;
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
    /// With `follow=0`, the number of rows; default 100, at most 1,000.
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
pub(super) async fn all(
    Api(service, caller): Api,
    Query(query): Query<EventsQuery>,
    headers: HeaderMap,
) -> HttpResult<Response> {
    let follow = query.follow.unwrap_or(Flag::On).is_on();
    let run = query.run.as_deref().map(RunId::from);
    if let Some(run) = &run {
        service.run(&caller, run).await?;
    }
    let since = since(&service, query.since, &headers).await?;
    if follow {
        refuse_limit(query.limit)?;
        let since = match (since, &run) {
            (Some(since), _) => since,
            (None, Some(_)) => 0,
            (None, None) => service.store().last_seq().await?,
        };
        let scope = run.map_or(Scope::All, Scope::Run);
        return Ok(streamed(&service, scope, since));
    }
    let limit = page(query.limit, None)?.limit;
    let since = match (since, &run) {
        (Some(since), _) => since,
        (None, Some(_)) => 0,
        (None, None) => service.store().last_seq().await?.saturating_sub(u64::from(limit)),
    };
    Ok(Json(listed(&service, &caller, run, since, limit).await?).into_response())
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
    /// Without `follow`, the number of rows; default 100, at most 1,000.
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
    Api(service, caller): Api,
    Id(id): Id,
    Query(query): Query<RunEventsQuery>,
    headers: HeaderMap,
) -> HttpResult<Response> {
    let run = service.run(&caller, &id.as_str().into()).await?.id.clone();
    let since = since(&service, query.since, &headers).await?.unwrap_or(0);
    if query.follow.is_on() {
        refuse_limit(query.limit)?;
        return Ok(streamed(&service, Scope::UntilEnd(run), since));
    }
    let limit = page(query.limit, None)?.limit;
    Ok(Json(listed(&service, &caller, Some(run), since, limit).await?).into_response())
}

fn refuse_limit(limit: Option<u32>) -> HttpResult<()> {
    match limit {
        None => Ok(()),
        Some(_) => {
            Err(Failure::bad_query("the query is wrong: limit: a stream has no limit; add `follow=0`"))
        }
    }
}

/// Returns the number after which to start, if the client sent one.
async fn since(service: &Service, query: Option<u64>, headers: &HeaderMap) -> HttpResult<Option<u64>> {
    let since = match headers.get("last-event-id") {
        // A client that reconnects also sends its first `since`; the header is newer.
        Some(value) => {
            Some(value.to_str().ok().and_then(|text| text.trim().parse::<u64>().ok()).ok_or_else(|| {
                let detail = "the header Last-Event-ID is not the number of an event";
                Failure::new(StatusCode::BAD_REQUEST, code::BAD_LAST_EVENT_ID, detail)
            })?)
        }
        None => query,
    };
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

async fn listed(
    service: &Service,
    caller: &Caller,
    run: Option<RunId>,
    since: u64,
    limit: u32,
) -> HttpResult<EventList> {
    let one_more = limit.min(limits::PAGE_MOST) + 1;
    let mut records = service.events(caller, &EventFilter { since, run }, one_more).await?;
    let has_more = records.len() > limit as usize;
    records.truncate(limit as usize);
    let data: Vec<Event> = records.iter().map(Event::of).collect();
    let next = data.last().map_or(since, |event| event.seq);
    let total = (!has_more).then_some(data.len() as u64);
    Ok(EventList { data, pagination: EventPagination { limit, offset: since, total, has_more, next } })
}

fn streamed(service: &Service, scope: Scope, since: u64) -> Response {
    let ending = match &scope {
        Scope::UntilEnd(run) => Some(run.clone()),
        Scope::All | Scope::Run(_) => None,
    };
    let follower = Follower::new(service.store().clone(), service.feed().subscribe(), scope, since);
    let store = service.store().clone();
    let events = stream::unfold(Some(follower), move |follower| {
        let (ending, store) = (ending.clone(), store.clone());
        async move {
            let mut follower = follower?;
            match follower.next().await {
                Ok(Some(event)) => {
                    let sent = sse(event.body.kind(), &event).id(event.seq.to_string());
                    Some((sent, Some(follower)))
                }
                Ok(None) => {
                    let run = store.run(&ending?).await.ok()??;
                    let status = run.state().status().to_string();
                    Some((sse("end", &End { run: run.id.clone(), execution: None, status }), None))
                }
                Err(error) => {
                    // The client reconnects with the last number that it received.
                    tracing::warn!(%error, "an event stream ends early; the client has to reconnect");
                    None
                }
            }
        }
    });
    live(service, events)
}

pub(super) fn sse(name: &str, data: &impl Serialize) -> SseEvent {
    let data = serde_json::to_string(data).expect("views are plain data");
    SseEvent::default().event(name).data(data)
}

/// Returns a stream as a response: kept alive, and ended when the server stops.
pub(super) fn live(service: &Service, events: impl Stream<Item = SseEvent> + Send + 'static) -> Response {
    let streams = service.streams();
    let events = events.take_until(async move { streams.cancelled().await }.boxed());
    Sse::new(events.map(Ok::<_, Infallible>).boxed()).keep_alive(KeepAlive::default()).into_response()
}
