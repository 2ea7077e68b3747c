//! Receives the requests of HTTP triggers.

use axum::Json;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use downbeat_api::{HookReply, code};
use downbeat_core::spec::HookAuth;
use downbeat_core::trigger::{PayloadKind, Sent, read_payload};
use serde_json::{Value, json};

use super::extract::{Api, Id};
use super::idempotency::{Scope, idempotency_key};
use super::media::{Media, is_form};
use super::payload::Payload;
use super::problem::{Failure, HttpResult};
use crate::service::HookRequest;

/// Receives a request of an HTTP trigger, and starts its job
///
/// The trigger decides how the sender proves that it knows the secret. A request that is sent again returns the first run.
#[utoipa::path(
    post, operation_id = "receiveHook", path = "/hooks/{id}", tag = "jobs",
    params(
        ("id" = String, Path, description = "The path of the trigger"),
        ("Idempotency-Key" = Option<String>, Header, description = "A second request with the same key returns the first run, if the sender does not sign its requests"),
    ),
    request_body(
        content((Value = "application/json"), (String = "application/x-www-form-urlencoded")),
        description = "What the params of the trigger use as `payload`"
    ),
    responses(
        (status = 201, description = "The run that was created", body = HookReply),
        (status = 200, description = "The first run of the same request; a trigger with `auth: slack` always returns 200", body = HookReply),
        (status = 401, description = "The sender did not prove that it knows the secret"),
        (status = 404, description = "No trigger has the path"),
        (status = 409, description = "The job is paused, or cannot run"),
        (status = 422, description = "The body cannot be read, or the params are not valid"),
        (status = 429, description = "Too many requests to this path; `Retry-After` says when to try again"),
    )
)]
pub(super) async fn receive(
    Api(service, _): Api,
    id: Id,
    headers: HeaderMap,
    Payload(body): Payload,
) -> HttpResult<Response> {
    let hook = service.hook(&id).await?;
    let sent = Sent {
        authorization: only(&headers, "authorization"),
        secret: only(&headers, "x-downbeat-secret"),
        github: only(&headers, "x-hub-signature-256"),
        slack: only(&headers, "x-slack-signature"),
        slack_timestamp: only(&headers, "x-slack-request-timestamp"),
        body: &body,
    };
    let proven = service.prove(&hook, &sent).await?;
    let payload = read_payload(kind(&headers)?, &body).map_err(crate::error::Error::from)?;
    let auth = hook.auth();
    let event = only(&headers, "x-github-event");
    if let Some(reply) = greeting(auth, event, &payload) {
        return Ok(Json(reply).into_response());
    }
    let key = idempotency_key(&headers, Scope::Hook, &[Some(id.as_bytes()), Some(&body)])?;
    let delivery = only(&headers, "x-github-delivery");
    let request = HookRequest { proven, payload, body: &body, event, delivery, key };
    let (started, job) = service.start_by_hook(&hook, request).await?;
    let is_created = started.created && auth != HookAuth::Slack;
    let status = if is_created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(HookReply::of(&started.run.id, &job, started.created))).into_response())
}

/// Returns a header that was sent once. One that was sent several times, or is not text, proves nothing.
fn only<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?;
    Some(if values.next().is_none() { first.to_str().unwrap_or_default() } else { "" })
}

fn kind(headers: &HeaderMap) -> HttpResult<PayloadKind> {
    if is_form(headers) {
        return Ok(PayloadKind::Form);
    }
    match Media::declared(headers)? {
        Some(Media::Json) | None => Ok(PayloadKind::Json),
        Some(Media::Yaml) => {
            let detail = "a trigger reads JSON and forms, not YAML; use application/json";
            Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, code::UNSUPPORTED_MEDIA_TYPE, detail))
        }
    }
}

/// Returns the response to a request that only checks the address: GitHub and Slack send one when it is set.
fn greeting(auth: HookAuth, event: Option<&str>, payload: &Value) -> Option<Value> {
    match auth {
        HookAuth::Github if event == Some("ping") => Some(json!({"text": "pong"})),
        HookAuth::Slack if payload["type"] == "url_verification" => {
            Some(json!({"challenge": payload["challenge"]}))
        }
        _ => None,
    }
}
