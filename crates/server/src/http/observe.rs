//! Gives every request an id, counts it and logs it. Sets in every response the program that sent it, and the event up to
//! which it is current. Bodies and headers are never logged.

use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::Response;
use tracing::{Instrument, debug, info, warn};
use uuid::Uuid;

use crate::service::Service;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The response contains the effect of all events up to this number. A client that applies the later events keeps its
/// data current.
const EVENT: HeaderName = HeaderName::from_static("downbeat-event");

/// The program that responded. A page that was served by another build may have to reload.
const BUILD: HeaderName = HeaderName::from_static("downbeat-build");

/// The maximum length of an id that a client chose, in bytes.
const REQUEST_ID_BYTES: usize = 128;

/// The label of all paths without a route.
const UNMATCHED: &str = "unmatched";

pub(super) async fn observe(State(service): State<Service>, request: Request, next: Next) -> Response {
    let begun = Instant::now();
    // Read before the request: what the response reads may be newer, and applying an event again changes nothing.
    let event = service.parts.feed.last_seq();
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let path = request.uri().path().to_owned();
    let id = request
        .headers()
        .get(&REQUEST_ID)
        .filter(|id| id.len() <= REQUEST_ID_BYTES && id.to_str().is_ok())
        .cloned()
        .unwrap_or_else(new_id);
    let span = service.parts.span.clone();
    let mut response = next.run(request).instrument(span.clone()).await;
    let _entered = span.entered();
    let elapsed = begun.elapsed();
    let status = response.status();
    service.parts.metrics.on_request(
        labelled(&method),
        route.as_ref().map_or(UNMATCHED, MatchedPath::as_str),
        status.as_u16(),
        elapsed,
    );
    let (latency_us, request_id) = (elapsed.as_micros(), id.to_str().unwrap_or_default());
    let status_code = status.as_u16();
    // There may be thousands of successful requests per second; failed ones are rare and important.
    if status.is_server_error() {
        warn!(%method, path, status = status_code, latency_us, request_id, "request");
    } else if status.is_client_error() {
        info!(%method, path, status = status_code, latency_us, request_id, "request");
    } else {
        debug!(%method, path, status = status_code, latency_us, request_id, "request");
    }
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, id);
    headers.insert(EVENT, HeaderValue::from(event));
    headers.insert(BUILD, HeaderValue::from_static(env!("CARGO_PKG_VERSION")));
    response
}

/// Returns the method as a label: clients may invent methods, and each would be a series that is never freed.
fn labelled(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::CONNECT => "CONNECT",
        Method::OPTIONS => "OPTIONS",
        Method::TRACE => "TRACE",
        Method::PATCH => "PATCH",
        _ => "other",
    }
}

fn new_id() -> HeaderValue {
    let mut text = [0; uuid::fmt::Simple::LENGTH];
    let id: &str = Uuid::new_v4().simple().encode_lower(&mut text);
    HeaderValue::from_str(id).expect("hexadecimal digits are visible ASCII")
}
