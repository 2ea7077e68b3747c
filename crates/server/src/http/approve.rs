//! Owns approvals: a person lets a step of a run go on, or rejects it.

use axum::Json;
use downbeat_api::Run;
use serde::Deserialize;
use utoipa::ToSchema;

use super::extract::{Api, Id, Nothing, Query};
use super::payload::{Payload, object};
use super::problem::Reply;
use super::run_view;
use crate::service::Approval;

/// What a person decides about a step.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ApproveRequest {
    /// The step, by the name of its task or by its number.
    #[schema(value_type = String)]
    step: Step,
    /// The step is rejected: it fails.
    #[serde(default)]
    reject: bool,
    /// Why; at most 1,000 bytes.
    #[serde(default)]
    reason: Option<String>,
}

/// A name, or a number.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Step {
    Number(u32),
    Name(String),
}

/// Approves or rejects a step that waits for a person
///
/// An approved step succeeds, and the run continues. A rejected step fails. Who decided is recorded.
#[utoipa::path(
    post, operation_id = "approveRun", path = "/runs/{id}/approve", tag = "runs",
    params(("id" = String, Path, description = "The run's id")),
    request_body(content = ApproveRequest, description = "The step, and whether it is rejected"),
    responses((status = 200, description = "The run, which continues or fails", body = Run))
)]
pub(super) async fn approve(
    Api(service, caller): Api,
    id: Id,
    _: Query<Nothing>,
    Payload(body): Payload,
) -> Reply<Run> {
    let request: ApproveRequest = object(&body)?;
    let step = match request.step {
        Step::Number(number) => number.to_string(),
        Step::Name(name) => name,
    };
    let approval = Approval { run: id.run(), step, approved: !request.reject, reason: request.reason };
    service.approve(&caller, approval).await?;
    let run = service.run(&caller, &id.run()).await?;
    Ok(Json(run_view::summary(&service, &run).await?))
}
