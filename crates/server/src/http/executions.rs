//! Owns single executions. `output` owns their output.

use axum::Json;
use downbeat_api::Execution;
use downbeat_core::execution::Status;

use super::extract::{Api, Id, Nothing, Query};
use super::problem::Reply;
use super::runs;

/// Shows an execution; while it is pending, with the reason for each node
#[utoipa::path(
    get, operation_id = "showExecution", path = "/executions/{id}", tag = "executions",
    params(("id" = String, Path, description = "The execution's id")),
    responses((status = 200, description = "The execution", body = Execution))
)]
pub(super) async fn show(Api(service, caller): Api, id: Id, _: Query<Nothing>) -> Reply<Execution> {
    let execution = service.execution(&caller, &id).await?;
    let run = service.run(&caller, execution.run()).await?;
    let names = service.names(&run, [&execution]).await?;
    let mut shown = Execution::of(&execution, runs::label(&run.definition, execution.step()), &names);
    if execution.state.status() == Status::Pending {
        shown.waiting = service.obstacles(&execution).await?;
    }
    Ok(Json(shown))
}
