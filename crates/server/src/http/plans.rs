//! Dry runs: what a definition would do, and whether it is right. Nothing is started.

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use downbeat_api::{NodeReason, Plan, Valid};
use downbeat_core::expr;
use downbeat_core::plan::Plan as CompiledPlan;
use serde::Deserialize;
use utoipa::IntoParams;

use super::definition::{Body, Elsewhere};
use super::docs::JobRequest;
use super::extract::Query;
use super::problem::Answer;
use crate::caller::Caller;
use crate::error::Error;
use crate::service::{Service, Submit};

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PlanQuery {
    /// Replaces the definition's target: `all`, `group:web`, `node:web-01`, or a selector.
    target: Option<String>,
    /// The cluster of a definition that names none, by name or id: `default` when not given.
    cluster: Option<String>,
}

impl PlanQuery {
    fn elsewhere(&self) -> Elsewhere<'_> {
        Elsewhere { target: self.target.as_deref(), cluster: self.cluster.as_deref() }
    }
}

/// Shows what would run where and in which order; starts nothing
#[utoipa::path(
    post, operation_id = "planRun", path = "/plan", tag = "plans", params(PlanQuery),
    request_body(
        content((JobRequest = "application/json"), (String = "application/yaml")),
        description = "A job file; in JSON also with the params of a run"
    ),
    responses(
        (status = 200, description = "The steps, where each runs, and what it waits for", body = Plan),
        (status = 503, description = "Too many large plans are being made; `Retry-After` says when to try again"),
    )
)]
pub(super) async fn plan(
    State(service): State<Service>,
    caller: Caller,
    Query(query): Query<PlanQuery>,
    body: Body,
) -> Answer<Response> {
    let (Submit { definition, params, .. }, notes) = body.read(&service, query.elsewhere()).await?;
    let knower = service.clone();
    let show = move |plan: CompiledPlan| {
        let mut view = Plan::of(&plan);
        view.silent = knower.silent_nodes(&plan.resolved).into_iter().map(NodeReason::from).collect();
        view.notes = notes.iter().map(ToString::to_string).collect();
        written(&view)
    };
    Ok(shown(service.plan(&caller, definition, &params.unwrap_or_default(), show).await?))
}

/// A plan as JSON. A large one is written where it was made: it takes as long.
pub(super) fn written(plan: &Plan) -> Vec<u8> {
    serde_json::to_vec(plan).expect("views are plain data")
}

pub(super) fn shown(plan: Vec<u8>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], plan).into_response()
}

/// Checks a definition by itself, without regard to the nodes that there are
///
/// Params are checked when they come along: the definition alone does not have to say them all.
#[utoipa::path(
    post, operation_id = "validateDefinition", path = "/validate", tag = "plans", params(PlanQuery),
    request_body(
        content((JobRequest = "application/json"), (String = "application/yaml")),
        description = "A job file; in JSON also with the params of a run"
    ),
    responses(
        (status = 200, description = "Nothing is wrong with it", body = Valid),
        (status = 503, description = "Too many large plans are being made; `Retry-After` says when to try again"),
    )
)]
pub(super) async fn validate(
    State(service): State<Service>,
    _caller: Caller,
    Query(query): Query<PlanQuery>,
    body: Body,
) -> Answer<Json<Valid>> {
    let (Submit { definition, params, .. }, _) = body.read(&service, query.elsewhere()).await?;
    if let Some(params) = params {
        expr::given(&definition, &params).map_err(Error::Params)?;
    }
    let steps = definition.steps().count();
    let steps = u32::try_from(steps).unwrap_or(u32::MAX);
    Ok(Json(Valid { valid: true, job: definition.name, steps }))
}
