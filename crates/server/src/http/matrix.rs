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
    #[param(value_type = Option<String>)]
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
    let facts = service.views().instance_facts(&run.id).await?;
    let names = names(&service, &run, &facts).await?;
    let (size, Query(MatrixQuery { order, offset, times, .. })) = (facts.len(), query);
    let cut = Cut { order, limit, offset, times: times.is_on() };
    let make = move || {
        let mut rows = Rows::of(&run, &facts, &names);
        if let Some(selected) = selected {
            rows.0.retain(|row| selected.contains(&row.node));
        }
        rows.matrix(&run, seq, cut)
    };
    Ok(Json(service.view(size, make).await?))
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

/// The rows of a matrix.
struct Rows<'a>(Vec<Row<'a>>);

struct Row<'a> {
    node: NodeId,
    hostname: String,
    cells: Vec<Option<&'a InstanceFacts>>,
}

impl Row<'_> {
    fn letters(&self) -> impl Iterator<Item = char> {
        self.cells.iter().map(|cell| cell.map_or(Matrix::NONE, letter))
    }

    /// Returns how urgent the most urgent cell is.
    fn urgency(&self) -> usize {
        self.letters().map(Matrix::urgency).min().unwrap_or(usize::MAX)
    }
}

fn letter(facts: &InstanceFacts) -> char {
    Matrix::letter(facts.status, facts.is_reused)
}

impl<'a> Rows<'a> {
    fn of(run: &RunRecord, facts: &'a [InstanceFacts], names: &Names) -> Self {
        let steps = run.definition.steps().count();
        let new = |node: NodeId| Row { node, hostname: names.get(node), cells: vec![None; steps] };
        let mut rows: Vec<Row<'a>> = run.resolved.nodes.iter().map(|node| new(node.id)).collect();
        let mut places: HashMap<NodeId, usize> =
            (0..).zip(&rows).map(|(place, row)| (row.node, place)).collect();
        for fact in facts {
            let Some(node) = fact.node else { continue };
            let place = *places.entry(node).or_insert_with(|| {
                rows.push(new(node));
                rows.len() - 1
            });
            let Some(cell) = rows[place].cells.get_mut(fact.step as usize) else { continue };
            let urgency = |facts: &InstanceFacts| Matrix::urgency(letter(facts));
            if cell.is_none_or(|shown| urgency(fact) < urgency(shown)) {
                *cell = Some(fact);
            }
        }
        Self(rows)
    }

    fn matrix(mut self, run: &RunRecord, seq: u64, cut: Cut) -> Matrix {
        match cut.order {
            Order::Node => self.0.sort_by(|a, b| a.hostname.cmp(&b.hostname)),
            Order::Failed => {
                self.0.sort_by_cached_key(|row| {
                    // Only failures come first: other differences change all the time.
                    let urgency = row.urgency().min(Matrix::urgency('r'));
                    (urgency, row.hostname.clone())
                });
            }
        }
        let total = self.0.len() as u64;
        let skip = usize::try_from(cut.offset).unwrap_or(usize::MAX);
        let rows: Vec<Row<'_>> = self.0.into_iter().skip(skip).take(cut.limit as usize).collect();
        let after = |at: Option<Timestamp>| at.map(|at| at.duration_since(run.created_at).as_millis());
        let times = |row: &Row<'_>| {
            let times = row.cells.iter().map(|cell| match cell {
                Some(facts) => [after(facts.started_at), after(facts.ended_at)]
                    .map(|time| time.and_then(|millis| i64::try_from(millis).ok())),
                None => [None, None],
            });
            times.collect()
        };
        Matrix {
            seq,
            total,
            steps: run.definition.steps().map(|task| task.label()).collect(),
            cells: rows.iter().map(|row| row.letters().collect()).collect(),
            times: cut.times.then(|| rows.iter().map(times).collect()),
            nodes: rows.into_iter().map(|row| row.hostname).collect(),
        }
    }
}
