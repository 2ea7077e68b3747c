//! Owns the matrix of a run: its steps by its nodes.

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
    responses(
        (status = 200, description = "The matrix", body = Matrix),
        (status = 503, description = "The server is busy with other large runs; `Retry-After` says when to try again"),
    )
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
    let seq = service.views().last_seq().await?;
    let (facts, place) = service.instance_facts(&run).await?;
    let names = names(&service, &run, &facts).await?;
    let Query(MatrixQuery { order, offset, times, .. }) = query;
    let cut = Cut { order, limit, offset, times: times.is_on() };
    let make = move || {
        let mut rows = Rows::of(&run, &facts, &names);
        if let Some(selected) = selected {
            rows.0.retain(|row| selected.contains(&row.node));
        }
        rows.matrix(&run, &facts, seq, cut)
    };
    Ok(Json(place.make(make).await?))
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

/// Returns the hostnames of the run's nodes, also of those that placed steps were sent to.
async fn names(service: &Service, run: &RunRecord, facts: &[InstanceFacts]) -> HttpResult<Names> {
    Ok(service.names_of(run, facts.iter().filter_map(|fact| fact.node).collect()).await?)
}

/// Which part of the matrix is wanted.
#[derive(Clone, Copy, Debug)]
struct Cut {
    order: Order,
    limit: u32,
    offset: u64,
    times: bool,
}

/// The rows of a matrix, without their cells: all together would be as many as nodes times steps.
struct Rows(Vec<Row>);

struct Row {
    node: NodeId,
    hostname: String,
    /// How urgent the most urgent cell is.
    urgency: usize,
}

fn letter(facts: &InstanceFacts) -> char {
    Matrix::letter(facts.status, facts.is_reused)
}

fn urgency(facts: &InstanceFacts) -> usize {
    Matrix::urgency(letter(facts))
}

impl Rows {
    fn of(run: &RunRecord, facts: &[InstanceFacts], names: &Names) -> Self {
        let new = |node: NodeId| Row { node, hostname: names.get(node), urgency: usize::MAX };
        let mut rows: Vec<Row> = run.resolved.nodes.iter().map(|node| new(node.id)).collect();
        let mut places: HashMap<NodeId, usize> =
            (0..).zip(&rows).map(|(place, row)| (row.node, place)).collect();
        for fact in facts {
            let Some(node) = fact.node else { continue };
            let place = *places.entry(node).or_insert_with(|| {
                rows.push(new(node));
                rows.len() - 1
            });
            rows[place].urgency = rows[place].urgency.min(urgency(fact));
        }
        Self(rows)
    }

    fn matrix(mut self, run: &RunRecord, facts: &[InstanceFacts], seq: u64, cut: Cut) -> Matrix {
        match cut.order {
            Order::Node => self.0.sort_by(|a, b| a.hostname.cmp(&b.hostname)),
            Order::Failed => {
                self.0.sort_by_cached_key(|row| {
                    // Only failures come first: other differences change all the time.
                    (row.urgency.min(Matrix::urgency('r')), row.hostname.clone())
                });
            }
        }
        let steps: Vec<String> = run.definition.steps().map(|task| task.label()).collect();
        let total = self.0.len() as u64;
        let skip = usize::try_from(cut.offset).unwrap_or(usize::MAX);
        let most = if cut.times { limits::MATRIX_TIMES } else { limits::MATRIX_CELLS };
        let limit = (cut.limit as usize).min(most / steps.len().max(1)).max(1);
        let rows: Vec<Row> = self.0.into_iter().skip(skip).take(limit).collect();
        let cells = cells(&rows, steps.len(), facts);
        let after = |at: Option<Timestamp>| at.map(|at| at.duration_since(run.created_at).as_millis());
        let times = |cell: &Option<&InstanceFacts>| match cell {
            Some(facts) => [after(facts.started_at), after(facts.ended_at)]
                .map(|time| time.and_then(|millis| i64::try_from(millis).ok())),
            None => [None, None],
        };
        let letters = |cell: &Option<&InstanceFacts>| cell.map_or(Matrix::NONE, letter);
        Matrix {
            seq,
            total,
            steps,
            cells: cells.iter().map(|row| row.iter().map(letters).collect()).collect(),
            times: cut.times.then(|| cells.iter().map(|row| row.iter().map(times).collect()).collect()),
            nodes: rows.into_iter().map(|row| row.hostname).collect(),
        }
    }
}

/// Returns the most urgent instance of each cell of these rows.
fn cells<'a>(rows: &[Row], steps: usize, facts: &'a [InstanceFacts]) -> Vec<Vec<Option<&'a InstanceFacts>>> {
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
