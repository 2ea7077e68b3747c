//! Owns the matrix of a run: its steps by its nodes.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};

use axum::Json;
use axum::http::StatusCode;
use downbeat_api::{Matrix, Names, code};
use downbeat_core::Timestamp;
use downbeat_core::ids::NodeId;
use downbeat_core::limits;
use downbeat_core::run::RunRecord;
use downbeat_core::select::Selector;
use downbeat_store::InstanceFacts;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::extract::{Api, Flag, Id, Query};
use super::problem::{Failure, HttpResult, Reply};
use crate::service::Service;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct MatrixQuery {
    /// Only nodes that this selector matches now: `group:web`.
    selector: Option<String>,
    #[serde(default)]
    #[param(inline)]
    order: Order,
    /// The number of nodes; default 1,000, at most 10,000.
    #[param(minimum = 1, maximum = 10000, default = 1000)]
    limit: Option<u32>,
    /// How many nodes to skip; at most 10,000.
    #[serde(default)]
    #[param(value_type = Option<u64>)]
    offset: u64,
    /// `1` adds the start and the end of each cell.
    #[serde(default)]
    #[param(value_type = Option<Flag>, inline)]
    times: Flag,
}

/// The order of the nodes: by hostname, or those with a failure first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Order {
    #[default]
    Node,
    Failed,
}

/// Shows a letter for each step on each node of a run
///
/// Of a placed step, the node that has or had it is shown. Instances that no node has yet are only part of the counts of
/// the run.
#[utoipa::path(
    get, operation_id = "showRunMatrix", path = "/runs/{id}/matrix", tag = "runs",
    params(("id" = String, Path, description = "The run's id"), MatrixQuery),
    responses((status = 200, description = "The matrix", body = Matrix))
)]
pub(super) async fn show(Api(service, caller): Api, id: Id, query: Query<MatrixQuery>) -> Reply<Matrix> {
    let limit = query.limit.unwrap_or(limits::MATRIX_NODES_DEFAULT);
    if limit == 0 || limit > limits::MATRIX_NODES_MOST {
        let most = limits::MATRIX_NODES_MOST;
        return Err(Failure::bad_query(format!(
            "the query is wrong: limit: `{limit}` is not a number from 1 to {most}"
        )));
    }
    if query.offset > limits::OFFSET_MOST {
        let (offset, most) = (query.offset, limits::OFFSET_MOST);
        return Err(Failure::bad_query(format!(
            "the query is wrong: offset: `{offset}` is not a number from 0 to {most}"
        )));
    }
    let selected = query.selector.as_deref().map(|text| selected(&service, text)).transpose()?;
    let run = service.run(&caller, &id.run()).await?;
    let Query(MatrixQuery { order, offset, times, .. }) = query;
    let cut = Cut { selected, order, limit, offset, times: times.is_on() };
    Ok(Json(matrix(&service, &run, cut).await?))
}

/// Which part of the matrix is wanted.
#[derive(Debug, Default)]
struct Cut {
    selected: Option<HashSet<NodeId>>,
    order: Order,
    limit: u32,
    offset: u64,
    times: bool,
}

/// Returns a part of the matrix. It reads the instances of the nodes that it shows, not those of the others.
async fn matrix(service: &Service, run: &RunRecord, cut: Cut) -> HttpResult<Matrix> {
    let seq = service.views().last_seq().await?;
    let mut rows = rows(service, run).await?;
    if let Some(selected) = cut.selected {
        rows.retain(|row| selected.contains(&row.node));
    }
    match cut.order {
        Order::Node => rows.sort_by(|a, b| a.hostname.cmp(&b.hostname)),
        Order::Failed => {
            let urgency = urgency_by_node(service, run).await?;
            let urgency = |row: &Row| urgency.get(&row.node).copied().unwrap_or(usize::MAX);
            rows.sort_by_cached_key(|row| (urgency(row), row.hostname.clone()));
        }
    }
    let steps: Vec<String> = run.definition.steps().map(|task| task.label()).collect();
    let total = rows.len() as u64;
    let skip = usize::try_from(cut.offset).unwrap_or(usize::MAX);
    let most = if cut.times { limits::MATRIX_TIMES } else { limits::MATRIX_CELLS };
    let limit = (cut.limit as usize).min(most / steps.len().max(1)).max(1);
    let rows: Vec<Row> = rows.into_iter().skip(skip).take(limit).collect();
    let mut cells = Vec::with_capacity(rows.len());
    let mut times = cut.times.then(Vec::new);
    for part in rows.chunks((limits::PLAN_SMALL_INSTANCES / steps.len().max(1)).max(1)) {
        let nodes: Vec<NodeId> = part.iter().map(|row| row.node).collect();
        let facts = service.views().instance_facts_on(&run.id, &nodes).await?;
        for row in shown(part, steps.len(), &facts) {
            cells.push(row.iter().map(|cell| cell.map_or(Matrix::NONE, letter)).collect());
            if let Some(times) = &mut times {
                times.push(row.iter().map(|cell| times_of(run, *cell)).collect());
            }
        }
    }
    let nodes = rows.into_iter().map(|row| row.hostname).collect();
    Ok(Matrix { seq, total, nodes, steps, cells, times })
}

/// Returns the nodes that a selector matches.
fn selected(service: &Service, text: &str) -> HttpResult<HashSet<NodeId>> {
    let selector = Selector::parse(text).map_err(|error| {
        let detail = format!("the query is wrong: selector: {error}");
        Failure::new(StatusCode::BAD_REQUEST, code::BAD_QUERY, detail)
    })?;
    let board = service.parts.dispatcher.board();
    Ok(board.nodes().filter(|node| selector.matches(node)).map(|node| node.id).collect())
}

/// A row of the matrix, without its cells: those of all rows together would be as many as nodes times steps.
struct Row {
    node: NodeId,
    hostname: String,
}

/// Returns the nodes of a run, also those that placed steps were sent to.
async fn rows(service: &Service, run: &RunRecord) -> HttpResult<Vec<Row>> {
    let mut nodes: Vec<NodeId> = run.resolved.nodes.iter().map(|node| node.id).collect();
    let mut names = Names::of_run(run);
    if run.resolved.entries.iter().any(Option::is_none) {
        let known: HashSet<NodeId> = nodes.iter().copied().collect();
        let placed = service.views().placed_nodes(&run.id).await?;
        nodes.extend(placed.iter().filter(|node| !known.contains(node)));
        names = service.names_of(run, placed.into_iter().collect()).await?;
    }
    Ok(nodes.into_iter().map(|node| Row { node, hostname: names.get(node) }).collect())
}

/// Returns how urgent the most urgent instance of each node is, if it ended without success. Other differences change all
/// the time, and do not move a row.
async fn urgency_by_node(service: &Service, run: &RunRecord) -> HttpResult<HashMap<NodeId, usize>> {
    let mut urgency: HashMap<NodeId, usize> = HashMap::new();
    for (node, status) in service.views().unsuccessful_nodes(&run.id).await? {
        let of_status = Matrix::urgency(Matrix::letter(status, false));
        let most = urgency.entry(node).or_insert(of_status);
        *most = of_status.min(*most);
    }
    Ok(urgency)
}

fn letter(facts: &InstanceFacts) -> char {
    Matrix::letter(facts.status, facts.is_reused)
}

fn urgency(facts: &InstanceFacts) -> usize {
    Matrix::urgency(letter(facts))
}

/// Returns the start and the end of a cell, in milliseconds after the creation of the run.
fn times_of(run: &RunRecord, cell: Option<&InstanceFacts>) -> [Option<i64>; 2] {
    let after = |at: Timestamp| i64::try_from(at.duration_since(run.created_at).as_millis()).ok();
    cell.map_or([None, None], |facts| [facts.started_at, facts.ended_at].map(|at| at.and_then(after)))
}

/// Returns the most urgent instance of each cell of these rows.
fn shown<'a>(rows: &[Row], steps: usize, facts: &'a [InstanceFacts]) -> Vec<Vec<Option<&'a InstanceFacts>>> {
    let places: HashMap<NodeId, usize> = (0..).zip(rows).map(|(place, row)| (row.node, place)).collect();
    let mut cells = vec![vec![None; steps]; rows.len()];
    for fact in facts {
        let place = fact.node.and_then(|node| places.get(&node));
        let cell = place.and_then(|place| cells[*place].get_mut(fact.step as usize));
        if let Some(cell) = cell
            && cell.is_none_or(|shown| urgency(fact) < urgency(shown))
        {
            *cell = Some(fact);
        }
    }
    cells
}
