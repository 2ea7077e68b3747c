//! Decides which content types a request may have.
//!
//! A page of another site can send `text/plain`, forms, and bodies without a type to any server without a
//! preflight check, but not JSON or YAML. So no route accepts the former, except for requests to HTTP triggers with a header
//! that proves something: a page cannot send such a header without that check either.

use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use downbeat_api::code;

use super::problem::{Failure, HttpResult};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Media {
    Json,
    Yaml,
}

impl Media {
    /// Returns the declared type of a body, or `None` if there is none.
    pub(super) fn declared(headers: &HeaderMap) -> HttpResult<Option<Self>> {
        let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(None) };
        let text = value.to_str().unwrap_or_default();
        let essence = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match essence.as_str() {
            "application/json" => Ok(Some(Media::Json)),
            "application/yaml" | "application/x-yaml" | "text/yaml" | "text/x-yaml" => Ok(Some(Media::Yaml)),
            _ => Err(unsupported(&format!("the body has content type `{text}`"))),
        }
    }

    pub(super) fn required(headers: &HeaderMap) -> HttpResult<Self> {
        Self::declared(headers)?.ok_or_else(|| unsupported("the body has no Content-Type"))
    }
}

pub(super) fn check(request: &Request) -> HttpResult<()> {
    let has_body = !axum::body::HttpBody::is_end_stream(request.body());
    if has_body {
        Media::required(request.headers()).map(drop)
    } else {
        Media::declared(request.headers()).map(drop)
    }
}

/// The headers by which the sender of a request to a trigger proves that it knows the secret.
pub(super) const PROOFS: [&str; 4] =
    ["authorization", "x-downbeat-secret", "x-hub-signature-256", "x-slack-signature"];

/// Checks a request to an HTTP trigger.
pub(super) fn check_hook(request: &Request) -> HttpResult<()> {
    let headers = request.headers();
    if PROOFS.iter().any(|name| headers.contains_key(*name)) && is_form(headers) {
        return Ok(());
    }
    check(request)
}

/// Returns whether the body is a form.
pub(super) fn is_form(headers: &HeaderMap) -> bool {
    let text = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = text.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/x-www-form-urlencoded")
}

fn unsupported(what: &str) -> Failure {
    let detail = format!("{what}; use application/json or application/yaml");
    Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, code::UNSUPPORTED_MEDIA_TYPE, detail)
}
