//! Owns dry runs: they show what a definition would do and whether it is valid. Nothing starts.

use axum::Json;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use downbeat_api::{Plan, Valid};
use downbeat_core::plan::Plan as CompiledPlan;
use downbeat_core::spec::resolve_params;

use super::definition::{Body, TargetQuery};
use super::docs::JobRequest;
use super::extract::{Api, Query};
use super::problem::{HttpResult, Reply};
use crate::error::Error;
use crate::service::Submit;

/// Shows what would run where and in which order; starts nothing
#[utoipa::path(
    post, operation_id = "planRun", path = "/plan", tag = "plans", params(TargetQuery),
    request_body(
        content((JobRequest = "application/json"), (String = "application/yaml")),
        description = "A job file; in JSON also with the params of a run"
    ),
    responses(
        (status = 200, description = "The steps, where each runs, and what it waits for", body = Plan),
        (status = 503, description = "The server is creating too many large plans; `Retry-After` says when to try again"),
    )
)]
pub(super) async fn plan(
    Api(service, caller): Api,
    query: Query<TargetQuery>,
    body: Body,
) -> HttpResult<Response> {
    let (Submit { definition, params, .. }, notes) = body.read(&service, &query).await?;
    let knower = service.clone();
    let show = move |plan: CompiledPlan| {
        let mut view = Plan::of(&plan);
        view.silent = knower.silent_nodes(&plan.resolved);
        view.notes = notes.iter().map(ToString::to_string).collect();
        written(&view)
    };
    Ok(shown(service.plan(&caller, definition, &params.unwrap_or_default(), show).await?))
}

/// Writes a plan as JSON. The caller does this on the thread that compiled the plan: for a large plan it takes as long.
pub(super) fn written(plan: &Plan) -> Vec<u8> {
    serde_json::to_vec(plan).expect("views are plain data")
}

/// Returns whether a value of `If-None-Match` names this tag.
pub(super) fn matches(known: &HeaderValue, tag: &str) -> bool {
    let names = known.to_str().unwrap_or_default().split(',').map(str::trim);
    names.map(|name| name.strip_prefix("W/").unwrap_or(name)).any(|name| name == tag || name == "*")
}

pub(super) fn shown(plan: Vec<u8>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], plan).into_response()
}

/// Checks a definition without regard to the existing nodes
///
/// Params are checked only if the request has some: a definition is valid without values for all its params.
#[utoipa::path(
    post, operation_id = "validateDefinition", path = "/validate", tag = "plans", params(TargetQuery),
    request_body(
        content((JobRequest = "application/json"), (String = "application/yaml")),
        description = "A job file; in JSON also with the params of a run"
    ),
    responses(
        (status = 200, description = "The definition is valid", body = Valid),
        (status = 503, description = "The server is creating too many large plans; `Retry-After` says when to try again"),
    )
)]
pub(super) async fn validate(Api(service, _): Api, query: Query<TargetQuery>, body: Body) -> Reply<Valid> {
    let (Submit { definition, params, .. }, _) = body.read(&service, &query).await?;
    if let Some(params) = params {
        resolve_params(&definition, &params).map_err(Error::Params)?;
    }
    let steps = definition.steps().count();
    let steps = u32::try_from(steps).unwrap_or(u32::MAX);
    Ok(Json(Valid { valid: true, job: definition.name, steps }))
}
