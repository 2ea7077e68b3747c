//! Owns executions: single ones, and those of a run, a node, a cluster or a standing task. `output` owns their output.

use axum::Json;
use downbeat_api::{Execution, List, Names};
use downbeat_core::collections::HashMap;
use downbeat_core::execution::{Execution as Record, Status};
use downbeat_core::ids::{ClusterId, NodeId, RunId};
use downbeat_core::run::RunRecord;
use downbeat_core::spec::Definition;
use downbeat_store::ExecutionFilter;
use serde::Deserialize;
use utoipa::IntoParams;

use super::extract::{Api, Id, Nothing, Query, words};
use super::paging::{listed, page};
use super::problem::{HttpResult, Reply};
use crate::error::{Error, Noun};
use crate::service::Service;

/// Shows an execution; while it is pending, with the reason for each node
#[utoipa::path(
    get, operation_id = "showExecution", path = "/executions/{id}", tag = "executions",
    params(("id" = String, Path, description = "The execution's id")),
    responses((status = 200, description = "The execution", body = Execution))
)]
pub(super) async fn show(Api(service, caller): Api, id: Id, _: Query<Nothing>) -> Reply<Execution> {
    let execution = service.execution(&caller, &id).await?;
    let mut shown = if execution.run().is_standing() {
        let names = service.names_of_nodes(execution.node().into_iter().collect()).await?;
        standing(&service, &execution, &names)
    } else {
        let run = service.run(&caller, execution.run()).await?;
        let names = service.names(&run, [&execution]).await?;
        Execution::of(&execution, Labels::of(&run.definition).get(execution.step()), &names)
    };
    if execution.state.status() == Status::Pending {
        shown.waiting = service.obstacles(&execution).await?;
    }
    Ok(Json(shown))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ExecutionsQuery {
    /// Only executions of these statuses, comma-separated.
    status: Option<String>,
    /// Only executions of this node, by hostname or id.
    node: Option<String>,
    /// Only executions of this step.
    step: Option<u32>,
    /// Only executions of this item of `for_each`, from 0.
    item: Option<u32>,
    /// The number of rows; default 100, at most 1,000.
    limit: Option<u32>,
    /// How many rows to skip; at most 10,000.
    offset: Option<u64>,
    /// `next` of the previous page.
    cursor: Option<String>,
}

/// Lists a run's executions, every attempt of every step, in the order of creation
#[utoipa::path(
    get, operation_id = "listRunExecutions", path = "/runs/{id}/executions", tag = "runs",
    params(("id" = String, Path, description = "The run's id"), ExecutionsQuery),
    responses((status = 200, description = "One page of executions", body = List<Execution>))
)]
pub(super) async fn of_run(api: Api, id: Id, query: Query<ExecutionsQuery>) -> Reply<List<Execution>> {
    let Api(service, caller) = &api;
    let page = page(query.limit, query.offset, query.cursor.as_deref())?;
    let run = service.run(caller, &id.run()).await?;
    let part = Part::of(&api, &run, query.node.as_deref(), query.step, query.item).await?;
    let statuses = statuses(query.status.as_deref())?;
    let Part { node, step, item } = part;
    let filter = ExecutionFilter { run: Some(run.id.clone()), node, step, item, statuses };
    let found = service.executions(caller, &filter, &page).await?;
    let names = service.names(&run, &found.rows).await?;
    let labels = Labels::of(&run.definition);
    Ok(Json(listed(&page, found, |record| Execution::of(&record, labels.get(record.step()), &names))))
}

/// Selects executions of a run; a missing field selects all.
#[derive(Default)]
pub(super) struct Part {
    node: Option<NodeId>,
    step: Option<u32>,
    item: Option<u32>,
}

impl Part {
    /// `node` is a hostname or an id.
    pub(super) async fn of(
        Api(service, caller): &Api,
        run: &RunRecord,
        node: Option<&str>,
        step: Option<u32>,
        item: Option<u32>,
    ) -> HttpResult<Self> {
        let node = match node {
            Some(node) => Some(service.node_id(caller, node, Some(&run.cluster.to_string())).await?),
            None => None,
        };
        Ok(Self { node, step, item })
    }

    pub(super) fn selects(&self, execution: &Record) -> bool {
        self.step.is_none_or(|step| execution.step() == step)
            && self.item.is_none_or(|item| execution.item() == Some(item))
            && self.node.is_none_or(|node| execution.node() == Some(node))
    }
}

fn statuses(text: Option<&str>) -> HttpResult<Vec<Status>> {
    words("status", text, &Status::ALL.map(Status::as_str).join(", "), Status::parse)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct NodeExecutionsQuery {
    /// The cluster in which to look up a hostname; default `default`.
    cluster: Option<String>,
    /// Only executions of these statuses, comma-separated.
    status: Option<String>,
    /// The number of rows; default 100, at most 1,000.
    limit: Option<u32>,
    /// How many rows to skip; at most 10,000.
    offset: Option<u64>,
    /// `next` of the previous page.
    cursor: Option<String>,
}

/// Lists a node's executions, past, current and pending, in the order of creation
#[utoipa::path(
    get, operation_id = "listNodeExecutions", path = "/nodes/{id}/executions", tag = "nodes",
    params(("id" = String, Path, description = "The node's hostname or id"), NodeExecutionsQuery),
    responses((status = 200, description = "One page of executions", body = List<Execution>))
)]
pub(super) async fn of_node(
    Api(service, caller): Api,
    id: Id,
    query: Query<NodeExecutionsQuery>,
) -> Reply<List<Execution>> {
    let page = page(query.limit, query.offset, query.cursor.as_deref())?;
    let node = service.node(&caller, &id, query.cluster.as_deref()).await?;
    let statuses = statuses(query.status.as_deref())?;
    let filter = ExecutionFilter { node: Some(node.id), statuses, ..ExecutionFilter::default() };
    let found = service.executions(&caller, &filter, &page).await?;
    let mut names = Names::default();
    names.insert(node.id, node.description.hostname);
    let mut runs: Vec<RunId> = found.rows.iter().map(|record| record.run().clone()).collect();
    runs.sort_unstable();
    runs.dedup();
    let definitions = service.views().definitions(&runs).await?;
    let labels = definitions.iter().map(|(run, definition)| (run, Labels::of(definition)));
    let labels: HashMap<&RunId, Labels> = labels.collect();
    let unknown = Labels::default();
    Ok(Json(listed(&page, found, |record| {
        if record.run().is_standing() {
            return standing(&service, &record, &names);
        }
        let task = labels.get(record.run()).unwrap_or(&unknown).get(record.step());
        Execution::of(&record, task, &names)
    })))
}

/// Shows an execution of a standing task.
fn standing(service: &Service, record: &Record, names: &Names) -> Execution {
    let task = service.parts.standing.task_of_step(record.run(), record.step());
    let (task_id, name) = task.map_or((None, "a deleted task".to_owned()), |(id, name)| (Some(id), name));
    Execution { task_id, ..Execution::of(record, name, names) }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ClusterExecutionsQuery {
    /// Only executions of these statuses, comma-separated.
    status: Option<String>,
    /// Only executions of this node, by hostname or id.
    node_id: Option<String>,
    /// Only executions of this standing task, by id.
    task_id: Option<String>,
    /// The number of rows; default 100, at most 1,000.
    limit: Option<u32>,
    /// How many rows to skip; at most 10,000.
    offset: Option<u64>,
    /// `next` of the previous page.
    cursor: Option<String>,
}

/// Lists the executions of a cluster's standing tasks, in the order of creation
#[utoipa::path(
    get, operation_id = "listClusterExecutions", path = "/clusters/{id}/executions", tag = "clusters",
    params(("id" = String, Path, description = "The cluster's name or id"), ClusterExecutionsQuery),
    responses((status = 200, description = "One page of executions", body = List<Execution>))
)]
pub(super) async fn of_cluster(
    api: Api,
    id: Id,
    query: Query<ClusterExecutionsQuery>,
) -> Reply<List<Execution>> {
    let Api(service, caller) = &api;
    let cluster = service.cluster_record(caller, &id).await?;
    let task = match query.task_id.as_deref() {
        Some(task) => {
            let (home, found) = service.any_standing_task(caller, task).await?;
            if home.id != cluster.id {
                return Err(Error::from(Noun::StandingTask(task.to_owned())).into());
            }
            Some(found.number)
        }
        None => None,
    };
    listed_standing(&api, cluster.id, task, &query).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct TaskExecutionsQuery {
    /// Only executions of these statuses, comma-separated.
    status: Option<String>,
    /// Only executions of this node, by hostname or id.
    node_id: Option<String>,
    /// The number of rows; default 100, at most 1,000.
    limit: Option<u32>,
    /// How many rows to skip; at most 10,000.
    offset: Option<u64>,
    /// `next` of the previous page.
    cursor: Option<String>,
}

/// Lists the executions of a standing task on all nodes, in the order of creation. The task may be deleted
#[utoipa::path(
    get, operation_id = "listTaskExecutions", path = "/tasks/{id}/executions", tag = "tasks",
    params(("id" = String, Path, description = "The task's id"), TaskExecutionsQuery),
    responses((status = 200, description = "One page of executions", body = List<Execution>))
)]
pub(super) async fn of_task(api: Api, id: Id, query: Query<TaskExecutionsQuery>) -> Reply<List<Execution>> {
    let Api(service, caller) = &api;
    let (cluster, task) = service.any_standing_task(caller, &id).await?;
    let Query(TaskExecutionsQuery { status, node_id, limit, offset, cursor }) = query;
    let query = ClusterExecutionsQuery { status, node_id, task_id: None, limit, offset, cursor };
    listed_standing(&api, cluster.id, Some(task.number), &query).await
}

async fn listed_standing(
    Api(service, caller): &Api,
    cluster: ClusterId,
    step: Option<u32>,
    query: &ClusterExecutionsQuery,
) -> Reply<List<Execution>> {
    let page = page(query.limit, query.offset, query.cursor.as_deref())?;
    let node = match query.node_id.as_deref() {
        Some(node) => Some(service.node_id(caller, node, Some(&cluster.to_string())).await?),
        None => None,
    };
    let statuses = statuses(query.status.as_deref())?;
    let filter = ExecutionFilter { run: Some(RunId::standing(cluster)), node, step, item: None, statuses };
    let found = service.executions(caller, &filter, &page).await?;
    let nodes = found.rows.iter().filter_map(Record::node).collect();
    let names = service.names_of_nodes(nodes).await?;
    Ok(Json(listed(&page, found, |record| standing(service, &record, &names))))
}

/// The display names of a run's steps.
#[derive(Debug, Default)]
pub(super) struct Labels(Vec<String>);

impl Labels {
    pub(super) fn of(definition: &Definition) -> Self {
        Self(definition.steps().map(|task| task.label()).collect())
    }

    pub(super) fn get(&self, step: u32) -> String {
        self.0.get(step as usize).cloned().unwrap_or_else(|| format!("step {step}"))
    }
}
