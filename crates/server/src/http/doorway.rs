//! Owns the checks that every request passes before its route: which host it names, and whether a page of
//! another site sent it.
//!
//! There is no login yet, so every client may do everything, and a browser sends requests for every page
//! that is open in it. Three checks refuse those pages, each of which stops requests that another may miss:
//! `Host` (see [`Hosts`]), `Origin` and `Sec-Fetch-Site` (tower-http's [`CsrfLayer`]), and the content type
//! (see [`media`]).

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use downbeat_api::code;
use tower_http::csrf::{CsrfLayer, ProtectionError};

use super::hosts::Hosts;
use super::media;
use super::problem::Failure;

/// The paths of HTTP triggers. Their senders are programs of others, which may send forms.
const HOOKS: &str = "/hooks/";

/// Refuses requests to hosts that are not this server, including reads.
pub(super) async fn known_host(State(hosts): State<Arc<Hosts>>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    match hosts.check(&parts) {
        Ok(()) => next.run(Request::from_parts(parts, body)).await,
        Err(failure) => failure.into_response(),
    }
}

/// Refuses changes that a page of another site sent. `same-site` counts as another site: it includes other
/// ports of this machine.
pub(super) fn same_origin() -> CsrfLayer<fn(ProtectionError) -> Response> {
    CsrfLayer::new().with_rejection_response(cross_site)
}

fn cross_site(_: ProtectionError) -> Response {
    let detail = "a web page of another site sent this request (Origin, Sec-Fetch-Site); send it from a page of \
                  this server or from a program";
    Failure::new(StatusCode::FORBIDDEN, code::CROSS_SITE, detail).into_response()
}

/// Refuses bodies that a page can send without the browser's preflight check.
pub(super) async fn known_media(request: Request, next: Next) -> Response {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    let checked = if request.uri().path().starts_with(HOOKS) {
        media::check_hook(&request)
    } else {
        media::check(&request)
    };
    match checked {
        Err(failure) if !reads => failure.into_response(),
        Ok(()) | Err(_) => next.run(request).await,
    }
}
