//! Owns the standing tasks of clusters: the list, single tasks, and requests to do a task again.

use axum::Json;
use axum::extract::{FromRequest, Request};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use downbeat_api::{List, ListChanges, Rerun, StandingTask};
use downbeat_core::backend::Catalogue;
use downbeat_core::ids::{ClusterId, NodeId, TaskId};
use downbeat_core::standing::{RerunScope, TaskFields, Walks, edit, read};
use downbeat_core::{limits, spec};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use super::extract::{Api, Flag, Id, Nothing, Query};
use super::media::Media;
use super::paging::{Key, PageQuery, cut};
use super::payload::{Payload, object};
use super::problem::{Failure, HttpResult, Reply};
use crate::error::{Error, Noun};
use crate::service::Service;

/// Describes the body of a standing task. `command` and `working_dir`, or `config`, stand for `backend: exec`,
/// `action: shell` and the params of it.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "only its schema is used")]
pub(super) struct TaskBody {
    /// Unique in the cluster; 1 to 200 characters. Required for a new task.
    name: Option<String>,
    /// Whether its failure keeps a node from the tasks after it.
    blocking: Option<bool>,
    /// A line or a script for `bash -c`.
    command: Option<String>,
    /// An absolute path.
    working_dir: Option<String>,
    backend: Option<String>,
    action: Option<String>,
    #[schema(value_type = Option<Object>)]
    params: Option<Value>,
    /// 10s to 24h; default 30m.
    timeout: Option<String>,
    /// The nodes that it applies to, such as `group:web`; null means all.
    selector: Option<String>,
    /// `exec`, with `config`.
    r#type: Option<String>,
    config: Option<ConfigBody>,
}

#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "only its schema is used")]
pub(super) struct ConfigBody {
    command: Option<String>,
    /// 10 to 86,400; default 1,800.
    timeout_seconds: Option<u64>,
    working_dir: Option<String>,
}

/// Describes the whole list of a cluster.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "only its schema is used")]
pub(super) struct ListBody {
    tasks: Vec<TaskBody>,
}

/// A body that is read with the catalogue of the cluster: JSON, or YAML for a whole list.
#[derive(Debug)]
pub(super) struct Written {
    bytes: axum::body::Bytes,
    format: Media,
}

impl<S: Send + Sync> FromRequest<S> for Written {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        let format = Media::required(request.headers())?;
        let Payload(bytes) = Payload::from_request(request, state).await?;
        Ok(Self { bytes, format })
    }
}

impl Written {
    fn value(&self) -> HttpResult<Value> {
        serde_json::from_slice(&self.bytes).map_err(|error| {
            let (at, message) = (Some(spec::At::of_json(&error)), error.to_string());
            Failure::malformed(vec![spec::Problem { path: String::new(), at, message }])
        })
    }

    /// Reads a list. Problems have the line and column of the text.
    fn list(&self, catalogue: &Catalogue) -> HttpResult<Vec<TaskFields>> {
        let text = std::str::from_utf8(&self.bytes).map_err(|_| {
            let message = "the body is not UTF-8 text".to_owned();
            Failure::malformed(vec![spec::Problem { path: String::new(), at: None, message }])
        })?;
        let origin = match self.format {
            Media::Yaml => "body",
            Media::Json => {
                self.value()?;
                "body.json"
            }
        };
        read::parse_list(text, origin, catalogue).map_err(Failure::invalid_task)
    }
}

/// The key of the list of tasks: the place.
#[derive(PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct TaskKey(u32);

impl Key for TaskKey {
    const LIST: &'static str = "tasks";
}

/// Lists the standing tasks of a cluster, in their order
#[utoipa::path(
    get, operation_id = "listTasks", path = "/clusters/{id}/tasks", tag = "tasks",
    params(("id" = String, Path, description = "The cluster's name or id"), PageQuery),
    responses((status = 200, description = "One page of standing tasks", body = List<StandingTask>))
)]
pub(super) async fn list(
    Api(service, caller): Api,
    id: Id,
    query: Query<PageQuery>,
) -> Reply<List<StandingTask>> {
    let page = query.page()?;
    let cluster = service.cluster_record(&caller, &id).await?;
    Ok(Json(cut(StandingTask::list(&cluster), &page, |task: &StandingTask| TaskKey(task.order))))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct AddQuery {
    /// The place of the task in the list, from 1; default: the end.
    #[param(minimum = 1)]
    position: Option<u32>,
}

/// Adds a standing task, at the end of the list or at a position
#[utoipa::path(
    post, operation_id = "addTask", path = "/clusters/{id}/tasks", tag = "tasks",
    params(("id" = String, Path, description = "The cluster's name or id"), AddQuery), request_body = TaskBody,
    responses(
        (status = 201, description = "The task that was added", body = StandingTask),
        (status = 409, description = "A task of the cluster has the name"),
        (status = 422, description = "The task is not valid; `errors` says why"),
    )
)]
pub(super) async fn add(
    Api(service, caller): Api,
    id: Id,
    query: Query<AddQuery>,
    body: Written,
) -> HttpResult<Response> {
    let cluster = service.cluster_record(&caller, &id).await?.id;
    let fields =
        read::task_of_json(&body.value()?, &service.catalogue(cluster)).map_err(Failure::invalid_task)?;
    let task = new_id(&service);
    let position = query.position.map(|position| position as usize);
    let (cluster, ()) = service
        .edit_cluster(&caller, cluster, |cluster, at| {
            Ok((vec![edit::add(cluster, task, fields.clone(), position, at)?], ()))
        })
        .await?;
    let location = format!("/api/v1/tasks/{task}");
    let shown = StandingTask::find(&cluster, task).ok_or_else(|| missing(task))?;
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], Json(shown)).into_response())
}

fn new_id(service: &Service) -> TaskId {
    TaskId(service.parts.chance.dice().uuid_at(service.now()))
}

fn missing(task: TaskId) -> Error {
    Noun::StandingTask(task.to_string()).into()
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ApplyQuery {
    /// `1` only returns the differences.
    #[serde(default)]
    #[param(value_type = Option<Flag>, inline)]
    dry_run: Flag,
}

/// Replaces the whole list by that of a file: tasks with equal names are the same, others are added or deleted
#[utoipa::path(
    put, operation_id = "applyTasks", path = "/clusters/{id}/tasks", tag = "tasks",
    params(("id" = String, Path, description = "The cluster's name or id"), ApplyQuery),
    request_body(content((ListBody = "application/json"), (String = "application/yaml"))),
    responses(
        (status = 200, description = "What changed, or would change", body = ListChanges),
        (status = 422, description = "The list is not valid; `errors` says why"),
    )
)]
pub(super) async fn apply(
    Api(service, caller): Api,
    id: Id,
    query: Query<ApplyQuery>,
    body: Written,
) -> Reply<ListChanges> {
    let cluster = service.cluster_record(&caller, &id).await?;
    let wanted = body.list(&service.catalogue(cluster.id))?;
    if query.dry_run.is_on() {
        let applied = edit::apply(&cluster, wanted, || new_id(&service), service.now());
        return Ok(Json(ListChanges::of(applied.map_err(Error::from)?.1)));
    }
    let (_, changes) = service
        .edit_cluster(&caller, cluster.id, |cluster, at| {
            let (edited, changes) = edit::apply(cluster, wanted.clone(), || new_id(&service), at)?;
            Ok((edited.into_iter().collect(), changes))
        })
        .await?;
    Ok(Json(ListChanges::of(changes)))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OrderBody {
    /// All tasks of the cluster, each once, in their new order.
    #[schema(value_type = Vec<Uuid>)]
    task_ids: Vec<TaskId>,
}

/// Puts the standing tasks of a cluster in another order
#[utoipa::path(
    put, operation_id = "reorderTasks", path = "/clusters/{id}/tasks/reorder", tag = "tasks",
    params(("id" = String, Path, description = "The cluster's name or id")), request_body = OrderBody,
    responses(
        (status = 204, description = "The list has the new order"),
        (status = 422, description = "The order does not name each task once"),
    )
)]
pub(super) async fn reorder(
    Api(service, caller): Api,
    id: Id,
    _: Query<Nothing>,
    Payload(body): Payload,
) -> HttpResult<StatusCode> {
    let OrderBody { task_ids } = object(&body)?;
    let cluster = service.cluster_record(&caller, &id).await?.id;
    service
        .edit_cluster(&caller, cluster, |cluster, at| Ok((vec![edit::reorder(cluster, &task_ids, at)?], ())))
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Shows a standing task
#[utoipa::path(
    get, operation_id = "showTask", path = "/tasks/{id}", tag = "tasks",
    params(("id" = String, Path, description = "The task's id")),
    responses((status = 200, description = "The task", body = StandingTask))
)]
pub(super) async fn show(Api(service, caller): Api, id: Id, _: Query<Nothing>) -> Reply<StandingTask> {
    let (cluster, task) = service.standing_task(&caller, &id).await?;
    Ok(Json(StandingTask::find(&cluster, task.id).ok_or_else(|| missing(task.id))?))
}

/// Changes a standing task; fields that the request lacks stay as they are. Executions that exist are not affected
#[utoipa::path(
    put, operation_id = "updateTask", path = "/tasks/{id}", tag = "tasks",
    params(("id" = String, Path, description = "The task's id")), request_body = TaskBody,
    responses(
        (status = 200, description = "The task", body = StandingTask),
        (status = 409, description = "Another task of the cluster has the name"),
        (status = 422, description = "The task is not valid; `errors` says why"),
    )
)]
pub(super) async fn update(
    Api(service, caller): Api,
    id: Id,
    _: Query<Nothing>,
    body: Written,
) -> Reply<StandingTask> {
    let value = body.value()?;
    let (cluster, task) = service.standing_task(&caller, &id).await?;
    let catalogue = service.catalogue(cluster.id);
    let (cluster, ()) = service
        .edit_cluster(&caller, cluster.id, |cluster, at| {
            let (_, known) = cluster.list.by_id(task.id).ok_or_else(|| missing(task.id))?;
            let fields = read::update_of_json(&value, known, &catalogue).map_err(Error::InvalidTask)?;
            Ok((vec![edit::update(cluster, task.id, fields, at)?], ()))
        })
        .await?;
    Ok(Json(StandingTask::find(&cluster, task.id).ok_or_else(|| missing(task.id))?))
}

/// Deletes a standing task; those after it move up. Where it runs, it ends and is recorded
#[utoipa::path(
    delete, operation_id = "deleteTask", path = "/tasks/{id}", tag = "tasks",
    params(("id" = String, Path, description = "The task's id")),
    responses((status = 204, description = "The task is deleted"))
)]
pub(super) async fn delete(Api(service, caller): Api, id: Id, _: Query<Nothing>) -> HttpResult<StatusCode> {
    let (cluster, task) = service.standing_task(&caller, &id).await?;
    service
        .edit_cluster(&caller, cluster.id, |cluster, at| Ok((vec![edit::delete(cluster, task.id, at)?], ())))
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Where to do a task again: one of the three.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RerunBody {
    /// On these nodes, by hostname or id; at most 100.
    nodes: Vec<String>,
    /// Where it failed or was lost.
    failed: bool,
    /// Everywhere, also where it succeeded.
    all: bool,
}

/// Does a standing task again, on some nodes, where it failed, or everywhere
#[utoipa::path(
    post, operation_id = "rerunTask", path = "/tasks/{id}/rerun", tag = "tasks",
    params(("id" = String, Path, description = "The task's id")), request_body = RerunBody,
    responses((status = 202, description = "How many nodes do it again", body = Rerun))
)]
pub(super) async fn rerun(
    Api(service, caller): Api,
    id: Id,
    _: Query<Nothing>,
    Payload(body): Payload,
) -> HttpResult<(StatusCode, Json<Rerun>)> {
    let RerunBody { nodes, failed, all } = object(&body)?;
    let given = [!nodes.is_empty(), failed, all];
    if given.into_iter().filter(|is_given| *is_given).count() != 1 {
        return Err(bad_rerun("one of `nodes`, `failed` and `all` is needed, and only one"));
    }
    if nodes.len() > limits::RERUN_NODES {
        let (count, most) = (nodes.len(), limits::RERUN_NODES);
        return Err(bad_rerun(&format!(
            "{count} nodes are named; at most {most} are possible: use `failed` or `all`"
        )));
    }
    let (cluster, task) = service.standing_task(&caller, &id).await?;
    let mut scopes = Vec::new();
    for node in &nodes {
        let node = node_of(&service, &caller, node, cluster.id).await?;
        let scope = RerunScope::Node { node };
        if !scopes.contains(&scope) {
            scopes.push(scope);
        }
    }
    if scopes.is_empty() {
        scopes.push(if all { RerunScope::All } else { RerunScope::Failed });
    }
    let concerned = |walks: &Walks| scopes.iter().map(|scope| walks.concerned(&task, *scope)).sum();
    let count = service.parts.standing.with_walks(cluster.id, concerned).unwrap_or_default();
    service.rerun(&caller, cluster.id, task.id, &scopes).await?;
    Ok((StatusCode::ACCEPTED, Json(Rerun { nodes: count })))
}

fn bad_rerun(detail: &str) -> Failure {
    Failure::new(StatusCode::UNPROCESSABLE_ENTITY, downbeat_api::code::REJECTED, detail)
}

/// Returns a node of the cluster, by hostname or id.
async fn node_of(
    service: &Service,
    caller: &crate::caller::Caller,
    name: &str,
    cluster: ClusterId,
) -> HttpResult<NodeId> {
    let node = service.node(caller, name, Some(&cluster.to_string())).await?;
    if node.cluster != cluster {
        return Err(Error::from(Noun::Node(name.to_owned(), Vec::new())).into());
    }
    Ok(node.id)
}
