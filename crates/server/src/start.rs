//! Starts and stops a server: the only place that knows in which order its parts come and go.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::ListenerExt;
use downbeat_core::ids::{RunId, ServerId};
use downbeat_core::{Timestamp, limits};
use downbeat_proto::{Link, grpc};
use downbeat_store::{self as store, ServerRecord};
use jiff::SignedDuration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span, info, info_span, warn};

use crate::clock::Clock;
use crate::dispatch::Dispatcher;
use crate::http;
use crate::journal::{Feed, Journal};
use crate::metrics::Metrics;
use crate::nodes::{Heartbeats, Sweeper};
use crate::output::Outputs;
use crate::replica::{Applier, Door, Follower, Standing};
use crate::rpc::Host;
use crate::runs::{Runs, load_board, take_over};
use crate::service::{Parts, Service, seed};
use crate::settings::Settings;

/// How often a server proves that it lives.
const SIGN_OF_LIFE: Duration = Duration::from_secs(2);
/// An owner that gave no sign of life for this long is gone.
const OWNER_GONE: SignedDuration = SignedDuration::from_secs(10);
/// How often what is too old is removed, and how many runs at once.
const PRUNE_EVERY: Duration = Duration::from_secs(60);
const PRUNE_MOST: u32 = 200;

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error("cannot listen on {address} ({key}): {error}")]
    Listen { key: &'static str, address: SocketAddr, error: std::io::Error },
}

/// A server that runs.
#[derive(Debug)]
pub struct Server {
    service: Service,
    parts: Parts,
    http_addr: SocketAddr,
    grpc_addr: SocketAddr,
    /// New requests are turned away, parked ones let go.
    closing: CancellationToken,
    /// Actors and loops end.
    stopping: CancellationToken,
    listeners: Vec<JoinHandle<()>>,
    journal: JoinHandle<()>,
    journal_stop: CancellationToken,
}

/// Opens the store, goes on with what was under way, then listens.
pub async fn start(settings: Settings) -> Result<Server, StartError> {
    let state = if settings.replica_of.is_empty() {
        State::Own(store::open(&settings.store).await?)
    } else {
        State::Copy(store::open_replica(&settings.store).await?)
    };
    let http_listener = listen("http", settings.http).await?;
    let grpc_listener = listen("grpc", settings.grpc).await?;
    let (http_addr, grpc_addr) =
        (address(&http_listener, settings.http), address(&grpc_listener, settings.grpc));
    let name = if settings.name.is_empty() {
        format!("{}:{}", hostname(), grpc_addr.port())
    } else {
        settings.name.clone()
    };
    let span = info_span!("server", server = name);
    let listeners = Listeners { http: http_listener, grpc: grpc_listener, http_addr, grpc_addr };
    match state {
        State::Own(store) => assemble(settings, name, store, listeners).instrument(span).await,
        State::Copy(copy) => assemble_replica(settings, name, copy, listeners).instrument(span).await,
    }
}

/// What a server serves.
enum State {
    Own(Arc<dyn store::Store>),
    Copy(Arc<dyn store::Replica>),
}

struct Listeners {
    http: TcpListener,
    grpc: TcpListener,
    http_addr: SocketAddr,
    grpc_addr: SocketAddr,
}

/// Inside the span that names this server: whatever is spawned takes it along.
async fn assemble(
    settings: Settings,
    name: String,
    store: Arc<dyn store::Store>,
    listeners: Listeners,
) -> Result<Server, StartError> {
    let Listeners { http, grpc, http_addr, grpc_addr } = listeners;
    let clock = Clock;
    let server = ServerId(uuid::Uuid::now_v7());
    let metrics = Metrics::new();
    let stopping = CancellationToken::new();
    let closing = CancellationToken::new();
    let journal_stop = CancellationToken::new();
    let feed = Feed::new(store.last_seq().await?);
    let dispatcher = Dispatcher::new(metrics.clone());
    let runs = Runs::new(metrics.clone(), stopping.clone());
    let (journal, journal_task) = Journal::start(
        Arc::clone(&store),
        server,
        feed.clone(),
        vec![Arc::new(dispatcher.clone()), Arc::new(runs.clone())],
        metrics.clone(),
        journal_stop.clone(),
    );
    let parts = Parts {
        heartbeats: Heartbeats::start(Arc::clone(&store), clock, stopping.clone()),
        outputs: Outputs::start(Arc::clone(&store), settings.output_max_bytes),
        journal,
        feed,
        dispatcher,
        runs,
        metrics,
        settings: Arc::new(settings),
        server,
        name: name.into(),
        started_at: clock.now(),
        clock,
        store,
        replica: None,
        closing: closing.clone(),
        span: Span::current(),
    };
    recover(&parts, http_addr, grpc_addr).await?;
    parts.metrics.start_from(&parts.store.tally().await?);
    let dispatch = parts.dispatcher.clone().run(parts.journal.clone(), clock, seed(), stopping.clone());
    tokio::spawn(dispatch.in_current_span());
    tokio::spawn(Sweeper::new(parts.clone()).run(stopping.clone()).in_current_span());
    tokio::spawn(live(parts.clone(), http_addr, grpc_addr, stopping.clone()).in_current_span());
    tokio::spawn(prune(parts.clone(), stopping.clone()).in_current_span());
    parts.dispatcher.wake();
    let service = Service::new(parts.clone());
    let listeners = vec![
        tokio::spawn(serve_http(http, service.clone(), closing.clone()).in_current_span()),
        tokio::spawn(serve_grpc(grpc, Host::new(parts.clone()), closing.clone()).in_current_span()),
    ];
    info!(id = %server, store = parts.store.name(), http = %http_addr, grpc = %grpc_addr, "listening");
    Ok(Server {
        service,
        parts,
        http_addr,
        grpc_addr,
        closing,
        stopping,
        listeners,
        journal: journal_task,
        journal_stop,
    })
}

/// A read replica: nothing of it commits, claims or sweeps. Its journal has ended before anybody can ask it.
async fn assemble_replica(
    settings: Settings,
    name: String,
    copy: Arc<dyn store::Replica>,
    listeners: Listeners,
) -> Result<Server, StartError> {
    let Listeners { http, grpc, http_addr, grpc_addr } = listeners;
    let store: Arc<dyn store::Store> = Arc::<dyn store::Replica>::clone(&copy);
    let clock = Clock;
    let server = ServerId(uuid::Uuid::now_v7());
    let metrics = Metrics::new();
    let (stopping, closing, journal_stop) =
        (CancellationToken::new(), CancellationToken::new(), CancellationToken::new());
    journal_stop.cancel();
    let last_seq = store.last_seq().await?;
    let feed = Feed::new(last_seq);
    let dispatcher = Dispatcher::new(metrics.clone());
    let (store_, feed_, metrics_) = (Arc::clone(&store), feed.clone(), metrics.clone());
    let (journal, journal_task) =
        Journal::start(store_, server, feed_, Vec::new(), metrics_, journal_stop.clone());
    let primary = settings.replica_of.first().cloned().unwrap_or_default();
    let mut parts = Parts {
        heartbeats: Heartbeats::start(Arc::clone(&store), clock, stopping.clone()),
        outputs: Outputs::start(Arc::clone(&store), settings.output_max_bytes),
        journal,
        feed,
        dispatcher,
        runs: Runs::new(metrics.clone(), stopping.clone()),
        metrics,
        settings: Arc::new(settings),
        server,
        name: name.into(),
        started_at: clock.now(),
        clock,
        store,
        replica: None,
        closing: closing.clone(),
        span: Span::current(),
    };
    let itself = record(&parts, http_addr, grpc_addr);
    let standing = Standing::new(itself, primary.clone(), copy.is_copied().await?, last_seq, closing.clone());
    parts.replica = Some(standing.clone());
    load_board(&parts, &parts.store.open_runs().await?).await?;
    parts.metrics.start_from(&parts.store.tally().await?);
    let follower = Follower::new(Applier::new(copy, parts.clone(), standing.clone()), seed());
    tokio::spawn(follower.run(stopping.clone()).in_current_span());
    let service = Service::new(parts.clone());
    let door = Door::new(parts.clone(), standing);
    let listeners = vec![
        tokio::spawn(serve_http(http, service.clone(), closing.clone()).in_current_span()),
        tokio::spawn(serve_grpc(grpc, door, closing.clone()).in_current_span()),
    ];
    info!(id = %server, store = parts.store.name(), http = %http_addr, primary, "listening as a read replica");
    Ok(Server {
        service,
        parts,
        http_addr,
        grpc_addr,
        closing,
        stopping,
        listeners,
        journal: journal_task,
        journal_stop,
    })
}

impl Server {
    pub fn http_addr(&self) -> SocketAddr {
        self.http_addr
    }

    pub fn grpc_addr(&self) -> SocketAddr {
        self.grpc_addr
    }

    pub fn service(&self) -> &Service {
        &self.service
    }

    /// Stops: no new requests, those under way end, everything that was submitted is written.
    pub async fn stop(self) {
        info!("stopping");
        self.closing.cancel();
        self.parts.dispatcher.board().let_go();
        let grace = self.parts.settings.shutdown_grace.0;
        for listener in self.listeners {
            let abort = listener.abort_handle();
            if tokio::time::timeout(grace, listener).await.is_err() {
                warn!("requests were still under way after {}", self.parts.settings.shutdown_grace);
                abort.abort();
            }
        }
        self.stopping.cancel();
        self.parts.runs.ended().await;
        self.journal_stop.cancel();
        // Its last batch is written when the task ends.
        let _ = self.journal.await;
        if let Err(error) = self.parts.store.remove_server(self.parts.server).await {
            warn!(%error, "cannot sign off");
        }
        self.parts.store.close().await;
        info!("stopped");
    }
}

async fn listen(key: &'static str, address: SocketAddr) -> Result<TcpListener, StartError> {
    TcpListener::bind(address).await.map_err(|error| StartError::Listen { key, address, error })
}

fn address(listener: &TcpListener, asked: SocketAddr) -> SocketAddr {
    listener.local_addr().unwrap_or(asked)
}

fn hostname() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| "server".to_owned(), |name| name.trim().to_owned())
}

fn record(parts: &Parts, http: SocketAddr, grpc: SocketAddr) -> ServerRecord {
    ServerRecord {
        id: parts.server,
        name: parts.name.to_string(),
        http: http.to_string(),
        grpc: grpc.to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_at: parts.started_at,
        seen_at: parts.clock.now(),
    }
}

/// Signs on, puts the store's state on the board, and takes over what nobody owns.
async fn recover(parts: &Parts, http: SocketAddr, grpc: SocketAddr) -> Result<(), store::Error> {
    parts.store.put_server(&record(parts, http, grpc)).await?;
    if parts.store.name() != "postgres" {
        // An embedded store has one server: whoever else signed on is a former life.
        for other in parts.store.servers().await?.into_iter().filter(|other| other.id != parts.server) {
            parts.store.remove_server(other.id).await?;
        }
    }
    let runs = parts.store.open_runs().await?;
    load_board(parts, &runs).await?;
    take_over(parts, parts.server, without_owner(parts).await?).await?;
    Ok(())
}

/// Open runs whose owner is gone. Also those that are this server's by the record and have no actor: the commit that
/// made them so took effect without its knowing, or what followed failed.
async fn without_owner(parts: &Parts) -> Result<Vec<RunId>, store::Error> {
    let open = parts.store.open_run_owners().await?;
    let now: Timestamp = parts.clock.now();
    let alive: Vec<ServerId> = parts
        .store
        .servers()
        .await?
        .into_iter()
        .filter(|server| now.duration_since(server.seen_at) < OWNER_GONE)
        .map(|server| server.id)
        .collect();
    let ownerless = |(run, owner): &(RunId, ServerId)| {
        if *owner == parts.server { !parts.runs.owns(run) } else { !alive.contains(owner) }
    };
    Ok(open.into_iter().filter(ownerless).map(|(run, _)| run).collect())
}

/// Proves that this server lives, and looks after runs whose owner does not.
async fn live(parts: Parts, http: SocketAddr, grpc: SocketAddr, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(SIGN_OF_LIFE) => {}
            () = stop.cancelled() => return,
        }
        if let Err(error) = parts.store.put_server(&record(&parts, http, grpc)).await {
            warn!(%error, "cannot give a sign of life");
            continue;
        }
        let taken = async { take_over(&parts, parts.server, without_owner(&parts).await?).await };
        if let Err(error) = taken.await {
            warn!(%error, "cannot look after runs");
        }
    }
}

/// Removes what is older than the retention.
async fn prune(parts: Parts, stop: CancellationToken) {
    let days = i64::from(parts.settings.retention_days);
    if days == 0 {
        return;
    }
    loop {
        tokio::select! {
            () = tokio::time::sleep(PRUNE_EVERY) => {}
            () = stop.cancelled() => return,
        }
        // A retention longer than the calendar removes nothing.
        let Ok(before) = parts.clock.now().checked_sub(SignedDuration::from_hours(24 * days)) else { return };
        match parts.store.prune(before, PRUNE_MOST).await {
            Ok(0) => {}
            Ok(runs) => info!(runs, "removed runs that are past retention"),
            Err(error) => warn!(%error, "cannot remove old runs"),
        }
    }
}

async fn serve_http(listener: TcpListener, service: Service, closing: CancellationToken) {
    let router = http::router(service);
    // Events are small and written one by one; waiting to fill a packet would hold each back.
    let listener = listener.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            warn!(%error, "cannot turn off delays of small packets");
        }
    });
    let served =
        axum::serve(listener, router).with_graceful_shutdown(async move { closing.cancelled().await });
    if let Err(error) = served.await {
        warn!(%error, "http ended");
    }
}

async fn serve_grpc(listener: TcpListener, host: impl Link, closing: CancellationToken) {
    let incoming = tonic::transport::server::TcpIncoming::from(listener).with_nodelay(Some(true));
    let span = Span::current();
    let served = tonic::transport::Server::builder()
        .trace_fn(move |_| span.clone())
        .http2_keepalive_interval(Some(Duration::from_secs(20)))
        .http2_keepalive_timeout(Some(Duration::from_secs(20)))
        .initial_stream_window_size(Some(1024 * 1024))
        .initial_connection_window_size(Some(4 * 1024 * 1024))
        .max_frame_size(Some(limits::MESSAGE_BYTES as u32))
        .add_service(grpc::service(Arc::new(host)))
        .serve_with_incoming_shutdown(incoming, async move { closing.cancelled().await });
    if let Err(error) = served.await {
        warn!(%error, "grpc ended");
    }
}
