//! Owns which content types a request may have.
//!
//! A page of another site may send `text/plain` and forms, and bodies without a type, to any server: the browser asks
//! nobody before. JSON and YAML it may not. So no route accepts the former, whatever it does with its body.

use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use downbeat_api::code;

use super::problem::{Answer, Failure};

/// What a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Media {
    Json,
    Yaml,
}

impl Media {
    /// The declared type of a body; nothing when none is declared.
    pub(super) fn declared(headers: &HeaderMap) -> Answer<Option<Self>> {
        let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(None) };
        let text = value.to_str().unwrap_or_default();
        let essence = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match essence.as_str() {
            "application/json" => Ok(Some(Media::Json)),
            "application/yaml" | "application/x-yaml" | "text/yaml" | "text/x-yaml" => Ok(Some(Media::Yaml)),
            _ => Err(unsupported(&format!("the body has content type `{text}`"))),
        }
    }

    /// The type of a body that must have one.
    pub(super) fn required(headers: &HeaderMap) -> Answer<Self> {
        Self::declared(headers)?.ok_or_else(|| unsupported("the body has no Content-Type"))
    }
}

/// Refuses a body whose type is missing or wrong.
pub(super) fn check(request: &Request) -> Answer<()> {
    let has_body = !axum::body::HttpBody::is_end_stream(request.body());
    if has_body {
        Media::required(request.headers()).map(drop)
    } else {
        Media::declared(request.headers()).map(drop)
    }
}

fn unsupported(what: &str) -> Failure {
    let detail = format!("{what}; a definition is application/json or application/yaml");
    Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, code::UNSUPPORTED_MEDIA_TYPE, detail)
}
