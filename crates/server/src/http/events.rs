//! Owns events: lists and live streams.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use axum::Json;
use axum::http::HeaderMap;
use axum::response::sse::Event as SseEvent;
use axum::response::{IntoResponse, Response};
use downbeat_api::{End, Event, EventList, EventPagination, Gap, Problem};
use downbeat_core::Change;
use downbeat_core::ids::RunId;
use downbeat_core::portion::json_bytes;
use downbeat_core::{Portion, limits};
use serde::Deserialize;
use utoipa::IntoParams;

use super::docs::StreamedEvent;
use super::extract::{Api, Flag, Id, Query, words};
use super::follow::{Follower, Item, Until, Wanted, find_gap, first_kept};
use super::live::{Ready, Source, bad_last_event_id, last_event_id, live, sse};
use super::paging::limit;
use super::problem::{Failure, HttpResult};
use crate::service::Service;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EventsQuery {
    /// Only events with a higher number; not above that of the last event. Default: a stream starts now; a list has the
    /// latest events.
    since: Option<u64>,
    /// Only events of this run. Without `since`, all of them.
    run: Option<String>,
    /// Only events of this cluster, by name or id.
    cluster: Option<String>,
    /// Only events of this node, by id, or by hostname in `cluster` (default `default`).
    node: Option<String>,
    /// Only events of runs of the job with this name.
    job: Option<String>,
    /// Only events of these kinds, comma-separated: `run_created,run_moved`.
    kind: Option<String>,
    /// `0` returns a list of the recorded events instead of a stream.
    #[param(value_type = Option<Flag>, inline)]
    follow: Option<Flag>,
    /// With `follow=0`, the number of rows; default 100, at most 1,000. A page with large events has fewer.
    limit: Option<u32>,
    /// With `follow=0`, `next` of the previous page: the same as `since`.
    cursor: Option<u64>,
}

impl EventsQuery {
    async fn wanted(&self, Api(service, caller): &Api) -> HttpResult<Wanted> {
        let run = self.run.as_deref().map(RunId::from);
        if let Some(run) = &run {
            service.run(caller, run).await?;
        }
        let cluster = match &self.cluster {
            Some(cluster) => Some(service.cluster(caller, Some(cluster)).await?),
            None => None,
        };
        // A deleted node has events, too.
        let node = match &self.node {
            Some(node) => Some(service.node_id(caller, node, self.cluster.as_deref()).await?),
            None => None,
        };
        let known = Change::KINDS.join(", ");
        let kinds = words("kind", self.kind.as_deref(), &known, |word| {
            Change::KINDS.into_iter().find(|kind| *kind == word)
        })?;
        Ok(Wanted { run, cluster, node, job: self.job.clone(), kinds })
    }
}

/// Streams all changes (SSE), or lists them with `follow=0`
///
/// In the stream each event has its number as `id` and its kind as `event`. A client that reconnects with
/// `Last-Event-ID` gets exactly the events that it missed. If some of them are no longer kept, the stream first sends
/// `gap` with the number of the first event that is.
///
/// A filtered list looks at up to 10,000 events; if there are more, `has_more` is true even if the page is empty.
#[utoipa::path(
    get, operation_id = "followEvents", path = "/events", tag = "events",
    params(
        EventsQuery,
        ("Last-Event-ID" = Option<u64>, Header, description = "The last event that the client received; overrides `since`"),
    ),
    responses(
        (status = 200, description = "Events", content(
            (StreamedEvent = "text/event-stream"), (EventList = "application/json"),
        )),
        (status = 410, description = "Events after `since` are no longer kept; `first` is the first event that is",
            body = Problem, content_type = "application/problem+json"),
    )
)]
pub(super) async fn all(api: Api, query: Query<EventsQuery>, headers: HeaderMap) -> HttpResult<Response> {
    let Api(service, _) = &api;
    let wanted = query.wanted(&api).await?;
    let since = either(query.since, query.cursor)?;
    let start = Start::of(service, since, &headers).await?;
    if query.follow.unwrap_or(Flag::On).is_on() {
        no_page(query.limit, query.cursor, "add `follow=0` for a list")?;
        let start = match (start, &wanted.run) {
            (None, None) => Start::Resumed(service.views().last_seq().await?),
            (None, Some(_)) => Start::Resumed(0),
            (Some(start), _) => start,
        };
        return streamed(service, wanted, Until::Forever, start).await;
    }
    let limit = limit(query.limit)?;
    match (start, &wanted.run) {
        (None, None) => latest(&api, &wanted, limit).await,
        (start, _) => listed(&api, &wanted, start.map_or(0, Start::since), limit).await,
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RunEventsQuery {
    /// Only events with a higher number; not above that of the last event.
    since: Option<u64>,
    /// `1` returns a stream (SSE) that sends `end` when the run has ended.
    #[serde(default)]
    #[param(value_type = Option<Flag>, inline)]
    follow: Flag,
    /// Without `follow`, the number of rows; default 100, at most 1,000. A page with large events has fewer.
    limit: Option<u32>,
    /// Without `follow`, `next` of the previous page: the same as `since`.
    cursor: Option<u64>,
}

/// Lists a run's events, or streams them with `follow=1` until it has ended
///
/// A run that lasts longer than events are kept loses its first events: then the stream first sends `gap`.
#[utoipa::path(
    get, operation_id = "listRunEvents", path = "/runs/{id}/events", tag = "runs",
    params(
        ("id" = String, Path, description = "The run's id"),
        RunEventsQuery,
        ("Last-Event-ID" = Option<u64>, Header, description = "The last event that the client received; overrides `since`"),
    ),
    responses(
        (status = 200, description = "Events", content(
            (EventList = "application/json"), (StreamedEvent = "text/event-stream"),
        )),
        (status = 410, description = "Events after `since` are no longer kept; `first` is the first event that is",
            body = Problem, content_type = "application/problem+json"),
    )
)]
pub(super) async fn of_run(
    api: Api,
    id: Id,
    query: Query<RunEventsQuery>,
    headers: HeaderMap,
) -> HttpResult<Response> {
    let Api(service, caller) = &api;
    let wanted = Wanted::of_run(service.run(caller, &id.run()).await?.id.clone());
    let since = either(query.since, query.cursor)?;
    let start = Start::of(service, since, &headers).await?.unwrap_or(Start::Resumed(0));
    if query.follow.is_on() {
        no_page(query.limit, query.cursor, "remove `follow` for a list")?;
        return streamed(service, wanted, Until::RunEnd, start).await;
    }
    let limit = limit(query.limit)?;
    listed(&api, &wanted, start.since(), limit).await
}

/// Returns the number after which a list starts, and which of its two names it has.
fn either(since: Option<u64>, cursor: Option<u64>) -> HttpResult<Option<(&'static str, u64)>> {
    match (since, cursor) {
        (Some(_), Some(_)) => {
            Err(Failure::bad_query("the query is wrong: since: it cannot be used with `cursor`"))
        }
        (Some(since), None) => Ok(Some(("since", since))),
        (None, cursor) => Ok(cursor.map(|cursor| ("cursor", cursor))),
    }
}

/// Refuses the parameters of a list in the request of a stream.
fn no_page(limit: Option<u32>, cursor: Option<u64>, advice: &str) -> HttpResult<()> {
    let given = [("limit", limit.is_some()), ("cursor", cursor.is_some())];
    match given.into_iter().find(|(_, is_given)| *is_given) {
        None => Ok(()),
        Some((name, _)) => {
            let detail =
                format!("the query is wrong: {name}: a stream has no {name}; remove it, or {advice}");
            Err(Failure::bad_query(detail))
        }
    }
}

/// The number after which the events start.
#[derive(Clone, Copy, Debug)]
pub(super) enum Start {
    /// `since` in the query: the client relies on getting every later event.
    Asked(u64),
    /// `Last-Event-ID`, or the default. A stream reports a gap and continues.
    Resumed(u64),
}

impl Start {
    pub(super) fn since(self) -> u64 {
        let (Start::Asked(since) | Start::Resumed(since)) = self;
        since
    }

    /// Returns the start that the client sent, if any. `query` has the name of its parameter.
    pub(super) async fn of(
        service: &Service,
        query: Option<(&str, u64)>,
        headers: &HeaderMap,
    ) -> HttpResult<Option<Self>> {
        let last_id = last_event_id(headers, "the number of an event")?;
        let start = match (last_id, query) {
            (Some(last_id), _) => Start::Resumed(last_id),
            (None, Some((_, since))) => Start::Asked(since),
            (None, None) => return Ok(None),
        };
        let (since, last) = (start.since(), service.views().last_seq().await?);
        if since > last {
            // Waiting for it would look like a silent system. The store was replaced or reset.
            let why = format!("{since} is after the last event, {last}");
            return Err(match query.filter(|_| last_id.is_none()) {
                Some((name, _)) => Failure::bad_query(format!("the query is wrong: {name}: {why}")),
                None => bad_last_event_id(&why),
            });
        }
        Ok(Some(start))
    }
}

/// Lists the first events after a number.
async fn listed(Api(service, caller): &Api, wanted: &Wanted, since: u64, limit: u32) -> HttpResult<Response> {
    let page = Portion::new(limit as usize, limits::EVENTS_AT_ONCE_BYTES);
    let at_once = if wanted.is_indexed() { page.rows + 1 } else { limits::EVENTS_AT_ONCE };
    let at_once = Portion::new(at_once, limits::EVENTS_AT_ONCE_BYTES);
    let (mut data, mut bytes, mut next) = (Vec::new(), 0, since);
    let (mut searched, mut has_more) = (0, false);
    'search: loop {
        let filter = wanted.after(next);
        let found = service.events(caller, &filter, at_once).await?;
        if let Some(first) = find_gap(&**service.views(), &filter, &found).await? {
            return Err(Failure::events_gone(first));
        }
        if found.is_empty() {
            break;
        }
        for event in &found {
            if wanted.matches(event) {
                bytes += json_bytes(event);
                if !page.holds(data.len() + 1, bytes) {
                    has_more = true;
                    break 'search;
                }
                data.push(Event::of(event));
            }
            next = event.seq;
        }
        searched += found.len();
        if searched >= limits::ROWS_READ as usize {
            has_more = true;
            break;
        }
    }
    Ok(page_of(data, limit, since, next, has_more))
}

/// Lists the last events among those that one request may read.
async fn latest(Api(service, caller): &Api, wanted: &Wanted, limit: u32) -> HttpResult<Response> {
    let page = Portion::new(limit as usize, limits::EVENTS_AT_ONCE_BYTES);
    let at_once = Portion::new(limits::EVENTS_AT_ONCE, limits::EVENTS_AT_ONCE_BYTES);
    let store = service.views();
    let last = store.last_seq().await?;
    let back = if wanted.is_indexed() { limit } else { limits::ROWS_READ };
    let mut since = last.saturating_sub(u64::from(back)).max(first_kept(&**store).await? - 1);
    let (mut data, mut bytes, mut next) = (VecDeque::new(), 0, since);
    while next < last {
        let found = service.events(caller, &wanted.after(next), at_once).await?;
        let Some(newest) = found.last() else { break };
        next = newest.seq;
        for event in found.iter().filter(|event| wanted.matches(event)) {
            let size = json_bytes(event);
            bytes += size;
            data.push_back((size, Event::of(event)));
            while !page.holds(data.len(), bytes)
                && let Some((size, older)) = data.pop_front()
            {
                bytes -= size;
                since = older.seq;
            }
        }
    }
    Ok(page_of(data.into_iter().map(|(_, event)| event).collect(), limit, since, next, false))
}

fn page_of(data: Vec<Event>, limit: u32, since: u64, next: u64, has_more: bool) -> Response {
    let total = (!has_more).then_some(data.len() as u64);
    let pagination = EventPagination { limit, offset: since, total, has_more, next };
    Json(EventList { data, pagination }).into_response()
}

async fn streamed(service: &Service, wanted: Wanted, until: Until, start: Start) -> HttpResult<Response> {
    let (store, since) = (service.views(), start.since());
    let feed = service.parts.feed.subscribe();
    if let Start::Asked(_) = start {
        let filter = wanted.after(since);
        let next = store.events(&filter, Portion::of_rows(1)).await?;
        if let Some(first) = find_gap(&**store, &filter, &next).await? {
            return Err(Failure::events_gone(first));
        }
    }
    Ok(live(service, Follower::new(store.clone(), feed, wanted, until, since)))
}

impl Source for Follower {
    async fn read(&mut self, ready: &mut Ready) -> HttpResult<ControlFlow<()>> {
        match self.next().await? {
            Some(Item::Event { seq, kind, text }) => {
                ready.push_back(SseEvent::default().event(kind).id(seq.to_string()).data(&*text));
            }
            // The id lets a client that reconnects continue after the gap.
            Some(Item::Gap { first }) => {
                ready.push_back(sse(Gap::NAME, &Gap { first }).id((first - 1).to_string()));
            }
            None => {
                if let Some(run) = self.ended_run().await? {
                    let status = run.state().status().to_string();
                    ready.push_back(sse(
                        "end",
                        &End { run: run.id.clone(), execution: None, status, matches: None },
                    ));
                }
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}
