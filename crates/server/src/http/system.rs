//! Owns the system: status, servers, health, metrics.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use downbeat_api::{Growth, List, Role, Server, ServerState, Status, Volume, code};
use downbeat_core::execution::Status as ExecutionStatus;
use downbeat_core::ids::ServerId;
use downbeat_core::node::NodeStatus;
use downbeat_core::run::RunStatus;
use downbeat_core::{Span, retention};
use downbeat_store::ServerRecord;
use serde::{Deserialize, Serialize};

use super::extract::{Api, Nothing, Query};
use super::paging::{Key, PageQuery, cut};
use super::problem::{Failure, HttpResult, Reply};
use crate::caller::Caller;
use crate::metrics::prometheus_text;
use crate::replica::Following;
use crate::service::Service;
use crate::volume;

/// Shows the whole system at a glance
#[utoipa::path(
    get, operation_id = "showStatus", path = "/status", tag = "system",
    responses((status = 200, description = "Servers, runs, executions and nodes by status", body = Status))
)]
pub(super) async fn status(Api(service, caller): Api, _: Query<Nothing>) -> Reply<Status> {
    // Together, so that they wait for a busy store once.
    let (tally, volume, servers, store_problem) = tokio::join!(
        service.tally(&caller),
        service.volume(&caller),
        servers_now(&service, &caller),
        service.store_problem()
    );
    let (tally, servers) = (tally?, servers?);
    let held = volume::held(&tally, &volume?);
    let mut runs = zeros(RunStatus::ALL);
    for (state, count) in tally.runs {
        *runs.entry(state.status()).or_default() += count;
    }
    let (mut executions, mut nodes) = (zeros(ExecutionStatus::ALL), zeros(NodeStatus::ALL));
    executions.extend(tally.executions);
    nodes.extend(tally.nodes);
    let lag = service.replica().map(|replica| replica.lag(service.now()));
    let up = service.now().duration_since(service.started_at());
    Ok(Json(Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        server: service.parts.itself.name.clone(),
        role: if lag.is_some() { Role::Replica } else { Role::Primary },
        replica: lag,
        store: service.views().name().to_owned(),
        store_problem,
        uptime: Span::from_secs(u64::try_from(up.as_secs()).unwrap_or(0)),
        servers,
        runs,
        executions,
        nodes,
        nodes_with_problems: service.nodes_with_problems(),
        volume: Some(Volume {
            runs: held.runs,
            executions: held.executions,
            events: held.events,
            output_bytes: held.output_bytes,
            disk_bytes: held.disk_bytes,
            growth: service.parts.measured.growth().map(growth_view),
        }),
    }))
}

fn growth_view(growth: retention::Growth) -> Growth {
    let retention::Growth { over, runs, executions, events, output_bytes, disk_bytes } = growth;
    Growth { over: Span::from_secs(over.as_secs()), runs, executions, events, output_bytes, disk_bytes }
}

/// Lists the servers that share this store; on a read replica, those of its primary and itself
#[utoipa::path(
    get, operation_id = "listServers", path = "/servers", tag = "system", params(PageQuery),
    responses((status = 200, description = "One page of servers", body = List<Server>))
)]
pub(super) async fn servers(Api(service, caller): Api, query: Query<PageQuery>) -> Reply<List<Server>> {
    let page = query.page()?;
    let servers = servers_now(&service, &caller).await?;
    Ok(Json(cut(servers, &page, |server| ServerKey(server.name.clone(), server.id))))
}

/// The key of the list of servers.
#[derive(PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct ServerKey(String, ServerId);

impl Key for ServerKey {
    const LIST: &'static str = "servers";
}

/// Returns the servers that share the store, whether each is alive, and how many runs each owns.
async fn servers_now(service: &Service, caller: &Caller) -> HttpResult<Vec<Server>> {
    let mut owned: HashMap<ServerId, u64> = HashMap::new();
    let owners = async { Ok(service.views().open_run_owners().await?) };
    let (owners, servers) = tokio::try_join!(owners, service.servers(caller))?;
    for (run, owner) in owners {
        if !run.is_debug() && !run.is_standing() {
            *owned.entry(owner).or_default() += 1;
        }
    }
    let is_alive = is_alive(service);
    let servers = servers.into_iter().map(|server| {
        let runs = owned.get(&server.id).copied().unwrap_or(0);
        let alive = is_alive(&server);
        server_view(server, alive, runs)
    });
    let mut servers: Vec<Server> = servers.collect();
    if service.replica().is_some() {
        let itself = ServerRecord { seen_at: service.now(), ..(*service.parts.itself).clone() };
        servers.push(Server { role: Role::Replica, ..server_view(itself, true, 0) });
        servers.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
    }
    Ok(servers)
}

fn server_view(server: ServerRecord, alive: bool, runs: u64) -> Server {
    Server {
        alive,
        runs,
        id: server.id,
        name: server.name,
        role: Role::Primary,
        http: server.http,
        grpc: server.grpc,
        version: server.version,
        started_at: server.started_at,
        seen_at: server.seen_at,
    }
}

/// Returns the servers that share the store, and whether each is alive.
pub(super) async fn servers_alive(service: &Service, caller: &Caller) -> HttpResult<Vec<ServerState>> {
    let is_alive = is_alive(service);
    let servers = service.servers(caller).await?.into_iter();
    let state = |server: ServerRecord| ServerState { alive: is_alive(&server), name: server.name };
    Ok(servers.map(state).collect())
}

/// Returns a function that tells whether a server is alive.
fn is_alive(service: &Service) -> impl Fn(&ServerRecord) -> bool {
    // A replica knows which servers were alive when it last received data from its primary.
    let now = service.replica().and_then(Following::heard_of).unwrap_or_else(|| service.now());
    let stale_after = service.parts.settings.server_stale_after.0;
    move |server| Duration::try_from(now.duration_since(server.seen_at)).unwrap_or_default() < stale_after
}

/// Counts by status: a status that does not occur has a count, too.
pub(super) fn zeros<S: Ord>(all: impl IntoIterator<Item = S>) -> BTreeMap<S, u64> {
    all.into_iter().map(|status| (status, 0)).collect()
}

/// Returns `ok` if the process runs
#[utoipa::path(
    get, operation_id = "showHealth", path = "/healthz", tag = "system",
    responses((status = 200, description = "`ok`", body = String, content_type = "text/plain"))
)]
pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

/// Returns whether the server is ready: the store accepts writes, and the server is not stopping
#[utoipa::path(
    get, operation_id = "showReadiness", path = "/readyz", tag = "system",
    responses((status = 200, description = "`ready`", body = String, content_type = "text/plain"))
)]
pub(super) async fn readyz(State(service): State<Service>) -> HttpResult<&'static str> {
    match service.readiness().await {
        Ok(()) => Ok("ready\n"),
        Err(why) => Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, code::NOT_READY, why)),
    }
}

const OPEN_METRICS: &str = "application/openmetrics-text";

/// Returns the server's metrics, for Prometheus
///
/// The format is OpenMetrics, unless the client accepts only `text/plain`.
#[utoipa::path(
    get, operation_id = "showMetrics", path = "/metrics", tag = "system",
    responses((status = 200, description = "Metrics", content(
        (String = "application/openmetrics-text"), (String = "text/plain"),
    )))
)]
pub(super) async fn metrics(State(service): State<Service>, headers: HeaderMap) -> Response {
    let accepted = |media: &str| {
        let accepts = headers.get_all(header::ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
        accepts.flat_map(|value| value.split(',')).any(|one| one.trim_start().starts_with(media))
    };
    let figures = service.figures().await;
    let (content_type, figures) = if accepted("text/plain") && !accepted(OPEN_METRICS) {
        ("text/plain; version=0.0.4; charset=utf-8".to_owned(), prometheus_text(&figures))
    } else {
        (format!("{OPEN_METRICS}; version=1.0.0; charset=utf-8"), figures)
    };
    ([(header::CONTENT_TYPE, content_type)], figures).into_response()
}
