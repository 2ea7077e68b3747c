//! Owns live streams (SSE): kept alive, resumed after `Last-Event-ID`, and ended when the server stops.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::str::FromStr;

use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use downbeat_api::code;
use futures_util::{FutureExt, StreamExt, stream};
use serde::Serialize;

use super::problem::{Failure, HttpResult};
use crate::service::Service;

/// The events of a stream that wait for its client.
pub(super) type Ready = VecDeque<SseEvent>;

/// The content of a stream.
pub(super) trait Source: Send + 'static {
    /// Adds the next events, or waits until there may be some. Returns whether the stream continues.
    fn read(&mut self, ready: &mut Ready) -> impl Future<Output = HttpResult<ControlFlow<()>>> + Send;
}

/// Streams a source. If it fails, the stream ends, and the client reconnects with the last number that it received.
pub(super) fn live(service: &Service, source: impl Source) -> Response {
    let reader = (source, Ready::new(), ControlFlow::Continue(()));
    let events = stream::unfold(reader, |(mut source, mut ready, mut flow)| async move {
        while ready.is_empty() && flow.is_continue() {
            flow = source.read(&mut ready).await.unwrap_or_else(|failure| {
                tracing::warn!(%failure, "a stream ends early; the client has to reconnect");
                ControlFlow::Break(())
            });
        }
        let event = ready.pop_front()?;
        Some((Ok::<_, Infallible>(event), (source, ready, flow)))
    });
    let streams = service.streams();
    let events = events.take_until(async move { streams.cancelled().await }.boxed());
    Sse::new(events.boxed()).keep_alive(KeepAlive::default()).into_response()
}

pub(super) fn sse(name: &str, data: &impl Serialize) -> SseEvent {
    let data = serde_json::to_string(data).expect("views are plain data");
    SseEvent::default().event(name).data(data)
}

/// Returns the header `Last-Event-ID` of a client that reconnects. It is newer than the start in the query. `what` says
/// what the ids of the stream are.
pub(super) fn last_event_id<T: FromStr>(headers: &HeaderMap, what: &str) -> HttpResult<Option<T>> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let id = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    id.map(Some).ok_or_else(|| bad_last_event_id(&format!("it is not {what}")))
}

pub(super) fn bad_last_event_id(why: &str) -> Failure {
    let detail = format!("the header Last-Event-ID is wrong: {why}");
    Failure::new(StatusCode::BAD_REQUEST, code::BAD_LAST_EVENT_ID, detail)
}
