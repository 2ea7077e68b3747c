//! Assembles a server: the only place that knows in which order its parts start.

use std::net::SocketAddr;
use std::sync::Arc;

use downbeat_core::ids::ServerId;
use downbeat_core::level;
use downbeat_core::outbound::Allow;
use downbeat_proto::Link;
use downbeat_store::{Replica, ServerRecord, Store};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::{Span, info};

use super::counts::keep_counts;
use super::prune::prune;
use super::{Server, StartError, hostname};
use crate::admission::Admission;
use crate::clock::Clock;
use crate::cluster::{CommonLevel, LastSign, Membership, heartbeat_pause};
use crate::counted::Counted;
use crate::deliveries::{Deliveries, Mailer, deliver};
use crate::dispatch::Dispatcher;
use crate::doors::Threads;
use crate::heavy::HeavyWork;
use crate::hook_rates::HookRates;
use crate::http;
use crate::jobs::{self, Backfills, Jobs};
use crate::journal::{Feed, Journal, Perform};
use crate::metrics::Metrics;
use crate::nodes::{Heartbeats, Serving, forget, sweep};
use crate::outbound::Outbound;
use crate::output::Outputs;
use crate::parts::Parts;
use crate::replica::{Applier, Door, Follower, Following, SNAPSHOTS, Upstream};
use crate::rpc::{self, Host};
use crate::runs::{Runs, load_board};
use crate::service::Service;
use crate::settings::Settings;
use crate::standing::{self, Standing};
use crate::stats::Stats;
use crate::surroundings::{Chance, Surroundings};
use crate::triggers;
use crate::vital::Vital;
use crate::volume::{self, Measured};

pub(super) struct Order {
    pub(super) settings: Settings,
    pub(super) name: String,
    pub(super) surroundings: Surroundings,
    /// `None`: the server has no sockets.
    pub(super) doors: Option<Doors>,
}

pub(super) struct Doors {
    pub(super) http: TcpListener,
    pub(super) grpc: TcpListener,
}

/// Starts a server on a store of its own. Everything that it spawns logs in the current span.
pub(super) async fn primary(order: Order, store: Arc<dyn Store>) -> Result<Server, StartError> {
    let (mut server, doors) = base(order, store, None).await?;
    let (parts, stopping) = (server.service.parts.clone(), server.stopping.clone());
    let member = Arc::new(Membership::join(parts.clone()).await?);
    let vital = &parts.vital;
    let signing = Arc::clone(&member).send_heartbeats(stopping.clone());
    server.signing = Some(vital.spawn("heartbeats of this server", &stopping, signing));
    member.take_over_ownerless().await;
    parts.stats.start(Arc::clone(&parts.store), parts.clock.now());
    let (journal, clock, seed) = (parts.journal.clone(), parts.clock.clone(), parts.chance.seed());
    let dispatching = parts.dispatcher.clone().run(journal, clock, seed, stopping.clone());
    vital.spawn("dispatcher", &stopping, dispatching);
    vital.spawn("admission", &stopping, parts.admission.clone().run(parts.clone(), stopping.clone()));
    vital.spawn("sweep", &stopping, sweep(parts.clone(), stopping.clone()));
    vital.spawn("forgetting nodes", &stopping, forget(parts.clone(), stopping.clone()));
    vital.spawn("take-over", &stopping, member.watch(stopping.clone()));
    vital.spawn("pruning", &stopping, prune(parts.clone(), stopping.clone()));
    vital.spawn("counts", &stopping, keep_counts(parts.clone(), stopping.clone()));
    vital.spawn("standing tasks", &stopping, standing::walk(parts.clone(), stopping.clone()));
    let overdue = standing::end_overdue(parts.clone(), stopping.clone());
    vital.spawn("overdue standing tasks", &stopping, overdue);
    let removing = standing::remove_deleted(parts.clone(), stopping.clone());
    vital.spawn("removal of clusters", &stopping, removing);
    vital.spawn("schedules", &stopping, jobs::fire(server.service.clone(), stopping.clone()));
    let backfills = jobs::continue_backfills(server.service.clone(), stopping.clone());
    vital.spawn("backfills", &stopping, backfills);
    vital.spawn("deliveries", &stopping, deliver(parts.clone(), stopping.clone()));
    vital.spawn("triggers", &stopping, triggers::follow(server.service.clone(), stopping.clone()));
    parts.dispatcher.wake();
    parts.admission.wake();
    if let Some(doors) = doors {
        let host = Arc::new(Host::new(parts.clone()));
        listen(&mut server, doors, host)?;
        let (http, grpc) = (server.http_addr, server.grpc_addr);
        info!(id = %parts.server, store = parts.store.name(), %http, %grpc, "listening");
    }
    Ok(server)
}

/// Starts a read replica: it commits, claims and sweeps nothing. It keeps the counts of its own copy, whose rows an older
/// program may have written.
pub(super) async fn replica(
    order: Order,
    copy: Arc<dyn Replica>,
    upstream: Arc<dyn Upstream>,
) -> Result<Server, StartError> {
    let store: Arc<dyn Store> = Arc::<dyn Replica>::clone(&copy);
    let (mut server, doors) = base(order, store, Some(copy.is_copied().await?)).await?;
    let parts = server.service.parts.clone();
    parts.stats.start(Arc::clone(&parts.store), parts.clock.now());
    if let Some(following) = parts.replica.clone() {
        let seed = parts.chance.seed();
        let follower = Follower::new(Applier::new(copy, parts.clone(), following.clone()), upstream, seed);
        let stopping = &server.stopping;
        parts.vital.spawn("replication", stopping, follower.run(stopping.clone()));
        parts.vital.spawn("counts", stopping, keep_counts(parts.clone(), stopping.clone()));
        if let Some(doors) = doors {
            listen(&mut server, doors, Arc::new(Door::new(parts.clone(), following)))?;
        }
    }
    let primary = parts.settings.replica_of.first().cloned().unwrap_or_default();
    let (id, store, http) = (parts.server, parts.store.name(), server.http_addr);
    info!(%id, store, %http, primary, "listening as a read replica");
    Ok(server)
}

/// Creates what a primary and a replica have in common: the parts, with the board loaded. `is_copied` is
/// set for a replica: whether its copy is complete.
async fn base(
    order: Order,
    store: Arc<dyn Store>,
    is_copied: Option<bool>,
) -> Result<(Server, Option<Doors>), StartError> {
    let Order { settings, name, surroundings, doors } = order;
    let chance = Chance::new(surroundings.seed);
    let clock = Clock::new(surroundings.wall);
    if is_copied.is_none() {
        clock.begin(store.as_ref(), heartbeat_pause(&settings)).await?;
    }
    let server = ServerId(chance.dice().uuid_at(clock.now()));
    let metrics = Metrics::new();
    let (stopping, closing, journal_stop) =
        (CancellationToken::new(), CancellationToken::new(), CancellationToken::new());
    let last_seq = store.last_seq().await?;
    let feed = Feed::new(last_seq);
    let level = CommonLevel::default();
    let serving = Serving::new(clock.now(), &settings);
    let dispatcher =
        Dispatcher::new(metrics.clone(), server, settings.lease_ttl.0, level.clone(), serving.clone());
    let stats = Stats::default();
    let admission = Admission::new(dispatcher.clone(), stats.clone(), settings.max_concurrent_runs);
    load_board(store.as_ref(), &dispatcher, &admission).await?;
    let runs = Runs::new(metrics.clone(), stopping.clone());
    let standing = Standing::new(dispatcher.clone(), runs.clone());
    standing.load(store.as_ref()).await?;
    let stored_jobs = Jobs::new(standing.clone(), clock.clone());
    stored_jobs.load(store.as_ref()).await?;
    let backfills = Backfills::new(clock.clone());
    backfills.load(store.as_ref()).await?;
    let deliveries = Deliveries::new(server);
    let mut performers: Vec<Arc<dyn Perform>> = Vec::new();
    if is_copied.is_none() {
        performers = vec![
            Arc::new(dispatcher.clone()),
            Arc::new(admission.clone()),
            Arc::new(runs.clone()),
            Arc::new(standing.clone()),
            Arc::new(stored_jobs.clone()),
            Arc::new(backfills.clone()),
            Arc::new(deliveries.clone()),
        ];
    } else {
        // The journal of a replica ends before it can be used.
        journal_stop.cancel();
    }
    let (journal, journal_task) = Journal::start(
        Arc::clone(&store),
        server,
        feed.clone(),
        performers,
        metrics.clone(),
        level.clone(),
        journal_stop.clone(),
    );
    let vital = Vital::default();
    let journal_task = vital.watch("journal", &journal_stop, journal_task);
    let (heartbeats, gatherer) = Heartbeats::start(Arc::clone(&store), clock.clone(), stopping.clone());
    vital.watch("heartbeats of nodes", &stopping, gatherer);
    let (outputs, gatherer) = Outputs::start(Arc::clone(&store), settings.output_max_bytes, stopping.clone());
    vital.watch("output", &stopping, gatherer);
    let http_addr = address(doors.as_ref().map(|doors| &doors.http), settings.http);
    let grpc_addr = address(doors.as_ref().map(|doors| &doors.grpc), settings.grpc);
    let allow = Allow::parse(settings.hooks_allow.iter().map(String::as_str))?;
    let outbound = Outbound::new(allow, vec![http_addr, grpc_addr]).within(surroundings.outside);
    let itself = ServerRecord {
        id: server,
        name,
        http: http_addr.to_string(),
        grpc: grpc_addr.to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_at: clock.now(),
        seen_at: clock.now(),
        level: level::LEVEL,
    };
    let following = is_copied.map(|is_copied| {
        let primary = settings.replica_of.first().cloned().unwrap_or_default();
        Following::new(primary, is_copied, last_seq, closing.clone())
    });
    let parts = Parts {
        heartbeats,
        serving,
        outputs,
        outbound,
        mailer: Mailer::new(&settings),
        deliveries,
        journal,
        feed,
        dispatcher,
        admission,
        stats,
        runs,
        standing,
        jobs: stored_jobs,
        backfills,
        hook_rates: HookRates::default(),
        metrics,
        settings: Arc::new(settings),
        server,
        itself: Arc::new(itself),
        clock,
        chance,
        last_sign: LastSign::default(),
        level,
        heavy: HeavyWork::of_plans(),
        large_views: HeavyWork::of_views(),
        snapshots: Arc::new(Semaphore::new(SNAPSHOTS)),
        counted: Counted::default(),
        measured: Measured::default(),
        vital,
        views: store.views().unwrap_or_else(|| Arc::clone(&store)),
        store,
        replica: following,
        closing,
        span: Span::current(),
    };
    let server = Server {
        service: Service::new(parts),
        http_addr,
        grpc_addr,
        found_nothing: last_seq == 0,
        stopping,
        listeners: Vec::new(),
        agents: None,
        signing: None,
        journal: journal_task,
        journal_stop,
    };
    Ok((server, doors))
}

/// Opens both ports.
fn listen(server: &mut Server, doors: Doors, link: Arc<impl Link + 'static>) -> Result<(), StartError> {
    let parts = server.service.parts.clone();
    let (vital, closing) = (&parts.vital, &parts.closing);
    let http = serve_http(doors.http, server.service.clone());
    server.listeners.push(vital.spawn("REST port", closing, http));
    // Without a port nobody sees the measurements.
    let stopping = &server.stopping;
    vital.spawn("measurements", stopping, volume::measure(parts.clone(), stopping.clone()));
    let ready = Arc::new(rpc::Readiness::new(server.service.clone()));
    let limits = rpc::port_limits(parts.settings.max_nodes);
    let serve = |listener| rpc::serve(listener, link, ready, limits, closing.clone());
    let (threads, grpc) = Threads::serve("agents", doors.grpc, serve)
        .map_err(|error| StartError::Listen { key: "grpc", address: server.grpc_addr, error })?;
    server.agents = Some(threads);
    server.listeners.push(vital.watch("agents' port", closing, grpc));
    Ok(())
}

fn address(listener: Option<&TcpListener>, configured: SocketAddr) -> SocketAddr {
    listener.and_then(|listener| listener.local_addr().ok()).unwrap_or(configured)
}

async fn serve_http(listener: TcpListener, service: Service) {
    let hosts =
        http::Hosts::new(listener.local_addr().ok(), &hostname(), &service.parts.settings.allowed_hosts);
    let closing = service.parts.closing.clone();
    http::serve(listener, http::router(service, hosts), http::LIMITS, closing).await;
}
