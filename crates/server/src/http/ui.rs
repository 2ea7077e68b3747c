//! Serves the web UI: one page for all paths below `/ui/`, and its files under a hash of their contents.

use axum::Router;
use axum::extract::Request;
use axum::http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG,
    IF_NONE_MATCH, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use downbeat_ui::{Asset, HASH, INDEX};

use super::router::unknown_path;

/// No script, style or request of another origin, no inline script or style, and no frame around the page.
const POLICY: &str = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'";

pub(super) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new()
        .route("/", get(|| async { Redirect::temporary("/ui/") }))
        .route("/ui", get(|| async { Redirect::temporary("/ui/") }))
        .route("/ui/", get(page))
        .route("/ui/{*path}", get(below))
}

/// The files, below the hash of all.
const FILES: &str = "/ui/a/";

async fn below(request: Request) -> Response {
    match request.uri().path().strip_prefix(FILES).map(str::to_owned) {
        Some(path) => asset(&path, request).await,
        None => page(request.headers().clone()).await,
    }
}

/// Returns the page, or that the browser's copy is current. The page names its files by their hash, so it is the only
/// file that a browser asks for again.
async fn page(headers: HeaderMap) -> Response {
    let tag = format!("\"{HASH}\"");
    let known = headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let is_known =
        known.flat_map(|value| value.split(',')).any(|known| known.trim().trim_start_matches("W/") == tag);
    let mut response =
        if is_known { StatusCode::NOT_MODIFIED.into_response() } else { send(&INDEX, &headers) };
    let own = response.headers_mut();
    own.insert(ETAG, HeaderValue::from_str(&tag).expect("hexadecimal digits are visible ASCII"));
    own.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    own.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    own.insert(REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    own.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Returns a file. A file of another build does not exist: the page instead of a script would be an error without a reason.
async fn asset(path: &str, request: Request) -> Response {
    let name = path.strip_prefix(HASH).and_then(|rest| rest.strip_prefix('/'));
    let Some(asset) = name.and_then(Asset::find) else {
        return unknown_path(request).await.into_response();
    };
    let mut response = send(asset, request.headers());
    let own = response.headers_mut();
    own.insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable"));
    // A worker has the policy of its own script, not that of the page.
    own.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    own.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn send(asset: &'static Asset, headers: &HeaderMap) -> Response {
    let accepted = headers.get(ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let plain = [(CONTENT_TYPE, asset.media()), (VARY, "accept-encoding")];
    if accepts_gzip(accepted) {
        (plain, [(CONTENT_ENCODING, "gzip")], asset.gzip).into_response()
    } else {
        (plain, asset.content).into_response()
    }
}

fn accepts_gzip(accepted: &str) -> bool {
    accepted.split(',').any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let is_gzip = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        is_gzip && !parts.any(|part| part.strip_prefix("q=").is_some_and(|q| q.parse() == Ok(0.0_f32)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_sent_only_to_clients_that_accept_it() {
        for accepted in ["gzip", "br, gzip;q=0.5", "GZIP"] {
            assert!(accepts_gzip(accepted), "{accepted}");
        }
        for accepted in ["", "br", "gzip;q=0", "gzip; q=0.0", "x-gzip"] {
            assert!(!accepts_gzip(accepted), "{accepted}");
        }
    }
}
