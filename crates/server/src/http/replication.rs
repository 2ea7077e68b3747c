//! Streams a primary's data to its read replicas, and refuses requests that a replica cannot handle.

use std::convert::Infallible;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use downbeat_api::code;
use futures_util::StreamExt;
use serde::Deserialize;
use tokio_stream::wrappers::ReceiverStream;
use utoipa::IntoParams;

use super::extract::{Flag, Query};
use super::problem::{Failure, HttpResult};
use crate::replica::{Following, Since, Until, stream};
use crate::service::Service;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ReplicationQuery {
    /// The last event that the replica has, or `0`.
    #[serde(default)]
    #[param(value_type = Option<u64>)]
    since: u64,
    /// A fingerprint of that event.
    last: Option<String>,
    /// `0` ends the stream when everything has been sent.
    #[param(value_type = Option<Flag>, inline)]
    follow: Option<Flag>,
}

/// The type of the stream: lines of JSON.
pub(super) const CONTENT_TYPE: &str = "application/x-ndjson";

/// Internal: streams all data to a read replica
///
/// Lines of JSON. Only servers of the same version understand them.
#[utoipa::path(
    get, operation_id = "replicate", path = "/replication", tag = "system", params(ReplicationQuery),
    responses((status = 200, description = "Frames", body = String, content_type = "application/x-ndjson"))
)]
pub(super) async fn replicate(
    State(service): State<Service>,
    query: Query<ReplicationQuery>,
) -> HttpResult<Response> {
    if let Some(replica) = service.replica() {
        // A copy may be replaced at any moment, so it must not be copied.
        return Err(Failure::read_only(replica.primary()));
    }
    let until = if query.follow.unwrap_or(Flag::On).is_on() { Until::Stopped } else { Until::CaughtUp };
    let since = Since { seq: query.since, fingerprint: query.0.last };
    let lines = ReceiverStream::new(stream(&service.parts, since, until));
    let body = Body::from_stream(lines.map(Ok::<_, Infallible>));
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], body).into_response())
}

/// Refuses requests that a replica cannot handle. Does nothing on a primary.
pub(super) async fn gate(State(service): State<Service>, request: Request, next: Next) -> Response {
    match service.replica().and_then(|replica| refusal(replica, &request)) {
        None => next.run(request).await,
        Some(refusal) => refusal,
    }
}

/// Returns why a replica refuses a request. Dry runs are reads, although they are posted. Until the copy is
/// complete, only the replica's own state can be read.
fn refusal(replica: &Following, request: &Request) -> Option<Response> {
    const DRY_RUNS: [&str; 2] = ["/api/v1/plan", "/api/v1/validate"];
    const OWN_STATE: [&str; 5] =
        ["/api/v1/status", "/api/v1/servers", "/api/v1/openapi.json", "/api/v1/docs", "/api/v1/replication"];
    let (primary, path) = (replica.primary(), request.uri().path());
    let reads = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    if !reads && !DRY_RUNS.contains(&path) {
        let there = format!("{}{}", primary.trim_end_matches('/'), request.uri());
        let mut response = Failure::read_only(primary).into_response();
        if let Ok(there) = HeaderValue::from_str(&there) {
            response.headers_mut().insert(header::LOCATION, there);
        }
        return Some(response);
    }
    if replica.is_copied() || !path.starts_with("/api/") || OWN_STATE.contains(&path) {
        return None;
    }
    let why = format!("the copy of {primary} is not complete yet");
    Some(Failure::new(StatusCode::SERVICE_UNAVAILABLE, code::NOT_READY, why).into_response())
}
