//! What a primary streams to its read replicas, and what a replica turns away.

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
use super::problem::{Answer, Failure};
use crate::replica::{Following, Since, Until, stream};
use crate::service::Service;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ReplicationQuery {
    /// The last event that the replica has; `0` when it has none.
    #[serde(default)]
    #[param(value_type = Option<u64>)]
    since: u64,
    /// A fingerprint of that event.
    last: Option<String>,
    /// `0`: ends when everything was sent that there is.
    #[param(value_type = Option<String>)]
    follow: Option<Flag>,
}

/// Internal: streams everything to a read replica
///
/// Lines of JSON, in a form that only servers of the same version understand.
#[utoipa::path(
    get, operation_id = "replicate", path = "/replication", tag = "system", params(ReplicationQuery),
    responses((status = 200, description = "Frames", body = String, content_type = "application/x-ndjson"))
)]
pub(super) async fn replicate(
    State(service): State<Service>,
    Query(query): Query<ReplicationQuery>,
) -> Answer<Response> {
    if let Some(replica) = service.replica() {
        // A copy that may be made anew at any moment is nothing to copy.
        return Err(Failure::read_only(replica.primary()));
    }
    let until = if query.follow.unwrap_or(Flag::On).is_on() { Until::Stopped } else { Until::CaughtUp };
    let since = Since { seq: query.since, fingerprint: query.last };
    let lines = ReceiverStream::new(stream(service.parts(), since, until));
    let body = Body::from_stream(lines.map(Ok::<_, Infallible>));
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response())
}

/// Every request to a replica passes here; on a primary nothing happens.
pub(super) async fn gate(State(service): State<Service>, request: Request, next: Next) -> Response {
    match service.replica() {
        None => next.run(request).await,
        Some(replica) => match turned_away(replica, request.method(), request.uri().path()) {
            None => next.run(request).await,
            Some(Refusal::NotReady(why)) => {
                Failure::new(StatusCode::SERVICE_UNAVAILABLE, code::NOT_READY, why).into_response()
            }
            Some(Refusal::ReadOnly) => {
                let primary = replica.primary();
                let there = format!("{}{}", primary.trim_end_matches('/'), request.uri());
                let mut response = Failure::read_only(primary).into_response();
                if let Ok(there) = HeaderValue::from_str(&there) {
                    response.headers_mut().insert(header::LOCATION, there);
                }
                response
            }
        },
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    ReadOnly,
    NotReady(String),
}

/// Dry runs are reads, though they are posted. Without a copy there is nothing to read but what the replica says of
/// itself.
fn turned_away(replica: &Following, method: &Method, path: &str) -> Option<Refusal> {
    const DRY_RUNS: [&str; 2] = ["/api/v1/plan", "/api/v1/validate"];
    const OF_ITSELF: [&str; 5] =
        ["/api/v1/status", "/api/v1/servers", "/api/v1/openapi.json", "/api/v1/docs", "/api/v1/replication"];
    let reads = method == Method::GET || method == Method::HEAD || method == Method::OPTIONS;
    if !reads && !DRY_RUNS.contains(&path) {
        return Some(Refusal::ReadOnly);
    }
    if !replica.is_copied() && path.starts_with("/api/") && !OF_ITSELF.contains(&path) {
        return Some(Refusal::NotReady(format!("the copy of {} is not complete yet", replica.primary())));
    }
    None
}
