//! Owns the routes and the layers that every request passes.

use std::any::Any;
use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::StatusCode;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use downbeat_api::code;
use downbeat_core::limits;
use serde_json::Value;
use tower_http::CompressionLevel;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::{NotForContentType, Predicate, SizeAbove};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::hosts::Hosts;
use super::problem::Failure;
use super::{
    approve, backends, backfills, clusters, debug, deliveries, docs, doorway, events, executions, failures,
    frames, hooks, jobs, limits as job_limits, many, matrix, nodes, observe, output, plans, replication,
    results, run_output, runs, schema, stats, system, tasks, ui, walks, work,
};
use crate::service::Service;

/// Creates the router of everything that the server offers over HTTP.
pub(crate) fn router(service: Service, hosts: Hosts) -> Router {
    let (routes, document) = described();
    routes
        .merge(docs::routes(&document))
        .merge(ui::routes())
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(limits::JOB_FILE_BYTES))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn_with_state(service.clone(), replication::gate))
        .layer(from_fn(doorway::known_media))
        .layer(doorway::same_origin())
        .layer(from_fn_with_state(Arc::new(hosts), doorway::known_host))
        .layer(compression())
        .layer(from_fn_with_state(service.clone(), observe::observe))
        .with_state(service)
}

/// Compresses responses for clients that accept it. Streams are sent as they are: a compressor would hold back events.
/// An attacker who watches sizes learns nothing (BREACH): responses contain no secret of the client, and no web page of
/// another origin can send requests.
fn compression() -> CompressionLayer<impl Predicate> {
    let is_compressed = SizeAbove::new(limits::COMPRESSED_LEAST_BYTES)
        .and(NotForContentType::SSE)
        .and(NotForContentType::const_new(replication::CONTENT_TYPE));
    CompressionLayer::new().quality(CompressionLevel::Fastest).compress_when(is_compressed)
}

pub fn openapi() -> Value {
    described().1
}

fn described() -> (Router<Service>, Value) {
    let api = OpenApiRouter::new()
        .routes(routes!(runs::submit, runs::list))
        .routes(routes!(runs::show))
        .routes(routes!(many::cancel))
        .routes(routes!(many::retry))
        .routes(routes!(runs::cancel))
        .routes(routes!(runs::pause))
        .routes(routes!(runs::resume))
        .routes(routes!(approve::approve))
        .routes(routes!(runs::retry))
        .routes(routes!(results::list))
        .routes(routes!(matrix::show))
        .routes(routes!(executions::of_run))
        .routes(routes!(runs::plan))
        .routes(routes!(events::of_run))
        .routes(routes!(run_output::show))
        .routes(routes!(failures::show))
        .routes(routes!(executions::show))
        .routes(routes!(output::show))
        .routes(routes!(nodes::list))
        .routes(routes!(nodes::show, nodes::delete))
        .routes(routes!(many::drain))
        .routes(routes!(many::undrain))
        .routes(routes!(nodes::list_deleted))
        .routes(routes!(nodes::counts))
        .routes(routes!(executions::of_node))
        .routes(routes!(work::show))
        .routes(routes!(nodes::drain))
        .routes(routes!(nodes::undrain))
        .routes(routes!(nodes::reset))
        .routes(routes!(clusters::list, clusters::create))
        .routes(routes!(clusters::show, clusters::update, clusters::set, clusters::delete))
        .routes(routes!(clusters::status))
        .routes(routes!(walks::list))
        .routes(routes!(debug::start_on_node, debug::of_node))
        .routes(routes!(debug::start_on_nodes))
        .routes(routes!(debug::show))
        .routes(routes!(debug::cancel))
        .routes(routes!(nodes::list_of_cluster))
        .routes(routes!(executions::of_cluster))
        .routes(routes!(tasks::list, tasks::add, tasks::apply))
        .routes(routes!(tasks::reorder))
        .routes(routes!(tasks::show, tasks::update, tasks::delete))
        .routes(routes!(tasks::rerun))
        .routes(routes!(executions::of_task))
        .routes(routes!(jobs::list, jobs::apply))
        .routes(routes!(jobs::show, jobs::put, jobs::delete))
        .routes(routes!(jobs::pause))
        .routes(routes!(jobs::resume))
        .routes(routes!(jobs::run))
        .routes(routes!(jobs::diff))
        .routes(routes!(jobs::roll_back))
        .routes(routes!(backfills::start))
        .routes(routes!(backfills::list))
        .routes(routes!(backfills::show))
        .routes(routes!(backfills::cancel))
        .routes(routes!(deliveries::list))
        .routes(routes!(deliveries::show))
        .routes(routes!(deliveries::send))
        .routes(routes!(backends::list))
        .routes(routes!(job_limits::list))
        .routes(routes!(schema::job))
        .routes(routes!(plans::plan))
        .routes(routes!(plans::validate))
        .routes(routes!(events::all))
        .routes(routes!(frames::follow))
        .routes(routes!(stats::show))
        .routes(routes!(replication::replicate))
        .routes(routes!(system::servers))
        .routes(routes!(system::status));
    let (routes, document) = OpenApiRouter::with_openapi(docs::base())
        .nest("/api/v1", api)
        .routes(routes!(hooks::receive))
        .routes(routes!(system::healthz))
        .routes(routes!(system::readyz))
        .routes(routes!(system::metrics))
        .split_for_parts();
    (routes, docs::whole(document))
}

pub(super) async fn unknown_path(request: Request) -> Failure {
    let path = request.uri().path();
    let detail = format!("`{path}` does not exist; /api/v1/docs lists the paths");
    Failure::new(StatusCode::NOT_FOUND, code::UNKNOWN_PATH, detail)
}

async fn wrong_method(request: Request) -> Failure {
    let detail = format!(
        "method `{}` is not allowed at `{}`; /api/v1/docs lists the methods",
        request.method(),
        request.uri().path()
    );
    Failure::new(StatusCode::METHOD_NOT_ALLOWED, code::METHOD_NOT_ALLOWED, detail)
}

// The layer requires this signature.
#[expect(clippy::needless_pass_by_value)]
fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let why = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    tracing::error!(why, "a request panicked");
    let detail = "this is a bug in the server; see its log";
    Failure::new(StatusCode::INTERNAL_SERVER_ERROR, code::BUG, detail).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use axum::routing::get;
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn a_panic_returns_a_problem_that_does_not_reveal_its_text() {
        async fn buggy() {
            panic!("a secret")
        }
        let router: Router = Router::new().route("/", get(buggy)).layer(CatchPanicLayer::custom(panicked));
        let response = router.oneshot(Request::get("/").body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(response.headers()["content-type"], "application/problem+json");
        let body = to_bytes(response.into_body(), 10_000).await.unwrap();
        let problem: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(problem["code"], "bug");
        assert!(!problem.to_string().contains("a secret"));
    }
}
