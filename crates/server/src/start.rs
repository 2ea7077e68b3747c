//! Starts and stops a server: the only place that knows in which order its parts come and go.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use downbeat_core::Timestamp;
use downbeat_core::ids::ServerId;
use downbeat_proto::Link;
use downbeat_store::{self as store, ServerRecord};
use jiff::SignedDuration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span, info, info_span, warn};

use crate::admission::Admission;
use crate::clock::Clock;
use crate::cluster::{CommonLevel, Life, Standing};
use crate::dispatch::Dispatcher;
use crate::heavy::HeavyWork;
use crate::http;
use crate::journal::{Feed, Journal};
use crate::metrics::Metrics;
use crate::nodes::{Heartbeats, Serving, Sweeper};
use crate::output::Outputs;
use crate::parts::Parts;
use crate::replica::{Applier, Door, Follower, Following};
use crate::rpc::{self, Host};
use crate::runs::{Runs, load_board};
use crate::service::Service;
use crate::settings::Settings;
use crate::surroundings::{Chance, Surroundings};

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
    host: Arc<Host>,
    http_addr: SocketAddr,
    grpc_addr: SocketAddr,
    found_nothing: bool,
    /// New requests are turned away, parked ones let go.
    closing: CancellationToken,
    /// Actors and loops end.
    stopping: CancellationToken,
    listeners: Vec<JoinHandle<()>>,
    /// Gives signs of life.
    signing: Option<JoinHandle<()>>,
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
    let http = listen("http", settings.http).await?;
    let grpc = listen("grpc", settings.grpc).await?;
    let doors = Doors { http, grpc };
    let name = if settings.name.is_empty() {
        let port = doors.grpc.local_addr().map_or(settings.grpc.port(), |address| address.port());
        format!("{}:{port}", hostname())
    } else {
        settings.name.clone()
    };
    let span = info_span!("server", server = name);
    let surroundings = Surroundings::default();
    match state {
        State::Own(store) => {
            assemble(settings, name, store, Some(doors), surroundings).instrument(span).await
        }
        State::Copy(copy) => {
            assemble_replica(settings, name, copy, doors, surroundings).instrument(span).await
        }
    }
}

/// What a server serves.
enum State {
    Own(Arc<dyn store::Store>),
    Copy(Arc<dyn store::Replica>),
}

/// Starts a server without sockets on a store that is open: whoever calls it brings what is said to it, through
/// [`Server::service`] and [`Server::link`].
pub async fn start_within(
    settings: Settings,
    store: Arc<dyn store::Store>,
    surroundings: Surroundings,
) -> Result<Server, StartError> {
    let name = settings.name.clone();
    let span = info_span!("server", server = name);
    assemble(settings, name, store, None, surroundings).instrument(span).await
}

struct Doors {
    http: TcpListener,
    grpc: TcpListener,
}

/// Inside the span that names this server: whatever is spawned takes it along.
async fn assemble(
    settings: Settings,
    name: String,
    store: Arc<dyn store::Store>,
    doors: Option<Doors>,
    surroundings: Surroundings,
) -> Result<Server, StartError> {
    let chance = Chance::new(surroundings.seed);
    let clock = Clock::new(surroundings.wall);
    clock.set_by(store.as_ref()).await?;
    let server = ServerId(chance.dice().uuid_at(clock.now()));
    let metrics = Metrics::new();
    let stopping = CancellationToken::new();
    let closing = CancellationToken::new();
    let journal_stop = CancellationToken::new();
    let last_seq = store.last_seq().await?;
    let found_nothing = last_seq == 0;
    let feed = Feed::new(last_seq);
    let dispatcher = Dispatcher::new(metrics.clone(), server, settings.lease_ttl.0);
    let admission = Admission::new(dispatcher.clone(), metrics.clone(), settings.max_concurrent_runs);
    load_board(store.as_ref(), &dispatcher, &admission).await?;
    let runs = Runs::new(metrics.clone(), clock.clone(), stopping.clone());
    let level = CommonLevel::default();
    let (journal, journal_task) = Journal::start(
        Arc::clone(&store),
        server,
        feed.clone(),
        vec![Arc::new(dispatcher.clone()), Arc::new(admission.clone()), Arc::new(runs.clone())],
        metrics.clone(),
        level.clone(),
        journal_stop.clone(),
    );
    let parts = Parts {
        heartbeats: Heartbeats::start(Arc::clone(&store), clock.clone(), stopping.clone()),
        serving: Serving::new(clock.now()),
        outputs: Outputs::start(Arc::clone(&store), settings.output_max_bytes, stopping.clone()),
        journal,
        feed,
        dispatcher,
        admission,
        runs,
        metrics,
        settings: Arc::new(settings),
        server,
        name: name.into(),
        started_at: clock.now(),
        clock,
        chance,
        standing: Standing::default(),
        level,
        heavy: HeavyWork::default(),
        store,
        replica: None,
        closing: closing.clone(),
        span: Span::current(),
    };
    let http_addr = address(doors.as_ref().map(|doors| &doors.http), parts.settings.http);
    let grpc_addr = address(doors.as_ref().map(|doors| &doors.grpc), parts.settings.grpc);
    let life = Arc::new(Life::begin(parts.clone(), http_addr.to_string(), grpc_addr.to_string()).await?);
    let signing = tokio::spawn(Arc::clone(&life).live(stopping.clone()).in_current_span());
    life.take_over_ownerless().await;
    parts.metrics.start_from(&parts.store.tally().await?);
    let dispatch = parts.dispatcher.clone().run(
        parts.journal.clone(),
        parts.clock.clone(),
        parts.chance.seed(),
        stopping.clone(),
    );
    tokio::spawn(dispatch.in_current_span());
    let admission = parts.admission.clone().run(parts.clone(), stopping.clone());
    tokio::spawn(admission.in_current_span());
    tokio::spawn(Sweeper::new(parts.clone()).run(stopping.clone()).in_current_span());
    tokio::spawn(life.look_after(stopping.clone()).in_current_span());
    tokio::spawn(prune(parts.clone(), stopping.clone()).in_current_span());
    parts.dispatcher.wake();
    parts.admission.wake();
    let (service, host) = (Service::new(parts.clone()), Arc::new(Host::new(parts.clone())));
    let mut listeners = Vec::new();
    if let Some(doors) = doors {
        let (http, grpc) = (service.clone(), Arc::clone(&host));
        listeners.push(tokio::spawn(serve_http(doors.http, http, closing.clone()).in_current_span()));
        listeners.push(tokio::spawn(rpc::serve(doors.grpc, grpc, closing.clone()).in_current_span()));
        info!(id = %server, store = parts.store.name(), http = %http_addr, grpc = %grpc_addr, "listening");
    }
    Ok(Server {
        service,
        parts,
        host,
        http_addr,
        grpc_addr,
        found_nothing,
        closing,
        stopping,
        listeners,
        signing: Some(signing),
        journal: journal_task,
        journal_stop,
    })
}

/// A read replica: nothing of it commits, claims or sweeps. Its journal has ended before anybody can ask it.
async fn assemble_replica(
    settings: Settings,
    name: String,
    copy: Arc<dyn store::Replica>,
    doors: Doors,
    surroundings: Surroundings,
) -> Result<Server, StartError> {
    let store: Arc<dyn store::Store> = Arc::<dyn store::Replica>::clone(&copy);
    let chance = Chance::new(surroundings.seed);
    let clock = Clock::new(surroundings.wall);
    let server = ServerId(chance.dice().uuid_at(clock.now()));
    let metrics = Metrics::new();
    let (stopping, closing, journal_stop) =
        (CancellationToken::new(), CancellationToken::new(), CancellationToken::new());
    journal_stop.cancel();
    let last_seq = store.last_seq().await?;
    let found_nothing = last_seq == 0;
    let feed = Feed::new(last_seq);
    let dispatcher = Dispatcher::new(metrics.clone(), server, settings.lease_ttl.0);
    let admission = Admission::new(dispatcher.clone(), metrics.clone(), settings.max_concurrent_runs);
    load_board(store.as_ref(), &dispatcher, &admission).await?;
    let level = CommonLevel::default();
    let (store_, feed_, metrics_) = (Arc::clone(&store), feed.clone(), metrics.clone());
    let (journal, journal_task) =
        Journal::start(store_, server, feed_, Vec::new(), metrics_, level.clone(), journal_stop.clone());
    let http_addr = address(Some(&doors.http), settings.http);
    let grpc_addr = address(Some(&doors.grpc), settings.grpc);
    let primary = settings.replica_of.first().cloned().unwrap_or_default();
    let itself = ServerRecord {
        id: server,
        name: name.clone(),
        http: http_addr.to_string(),
        grpc: grpc_addr.to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_at: clock.now(),
        seen_at: clock.now(),
        level: downbeat_core::level::LEVEL,
    };
    let following =
        Following::new(itself, primary.clone(), copy.is_copied().await?, last_seq, closing.clone());
    let parts = Parts {
        heartbeats: Heartbeats::start(Arc::clone(&store), clock.clone(), stopping.clone()),
        serving: Serving::new(clock.now()),
        outputs: Outputs::start(Arc::clone(&store), settings.output_max_bytes, stopping.clone()),
        journal,
        feed,
        dispatcher,
        admission,
        runs: Runs::new(metrics.clone(), clock.clone(), stopping.clone()),
        metrics,
        settings: Arc::new(settings),
        server,
        name: name.into(),
        started_at: clock.now(),
        clock,
        chance,
        standing: Standing::default(),
        level,
        heavy: HeavyWork::default(),
        store,
        replica: Some(following.clone()),
        closing: closing.clone(),
        span: Span::current(),
    };
    parts.metrics.start_from(&parts.store.tally().await?);
    let follower = Follower::new(Applier::new(copy, parts.clone(), following.clone()), parts.chance.seed());
    tokio::spawn(follower.run(stopping.clone()).in_current_span());
    let (service, host) = (Service::new(parts.clone()), Arc::new(Host::new(parts.clone())));
    let door = Arc::new(Door::new(parts.clone(), following));
    let listeners = vec![
        tokio::spawn(serve_http(doors.http, service.clone(), closing.clone()).in_current_span()),
        tokio::spawn(rpc::serve(doors.grpc, door, closing.clone()).in_current_span()),
    ];
    info!(id = %server, store = parts.store.name(), http = %http_addr, primary, "listening as a read replica");
    Ok(Server {
        service,
        parts,
        host,
        http_addr,
        grpc_addr,
        found_nothing,
        closing,
        stopping,
        listeners,
        signing: None,
        journal: journal_task,
        journal_stop,
    })
}

impl Server {
    /// Where HTTP is served.
    pub fn http_addr(&self) -> SocketAddr {
        self.http_addr
    }

    /// Where agents dial in.
    pub fn grpc_addr(&self) -> SocketAddr {
        self.grpc_addr
    }

    /// Whether nothing was ever written to the store before this server was started.
    pub fn found_nothing(&self) -> bool {
        self.found_nothing
    }

    /// What agents call, whatever carries it.
    pub fn link(&self) -> Arc<dyn Link> {
        Arc::clone(&self.host) as Arc<dyn Link>
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
        if let Some(signing) = self.signing {
            // A sign that is under way must not undo the sign-off.
            let _ = tokio::time::timeout(grace, signing).await;
        }
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

fn address(listener: Option<&TcpListener>, asked: SocketAddr) -> SocketAddr {
    listener.and_then(|listener| listener.local_addr().ok()).unwrap_or(asked)
}

fn hostname() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| "server".to_owned(), |name| name.trim().to_owned())
}

/// Removes what is older than the retention.
async fn prune(parts: Parts, stop: CancellationToken) {
    let days = i64::from(parts.settings.retention_days);
    loop {
        tokio::select! {
            biased;
            () = tokio::time::sleep(PRUNE_EVERY) => {}
            () = stop.cancelled() => return,
        }
        // For ever, or longer than the calendar: nothing is removed, and the rest of the upkeep is done.
        let kept = SignedDuration::from_hours(24 * days);
        let before = parts.clock.now().checked_sub(kept).ok().filter(|_| days > 0);
        let before = before.unwrap_or(Timestamp::UNIX_EPOCH);
        loop {
            match parts.store.prune(before, PRUNE_MOST).await {
                Ok(0) => break,
                Ok(runs) => {
                    info!(runs, "removed runs that are past retention");
                    if runs < u64::from(PRUNE_MOST) || stop.is_cancelled() {
                        break;
                    }
                }
                Err(error) => {
                    warn!(%error, "cannot remove old runs");
                    break;
                }
            }
        }
    }
}

async fn serve_http(listener: TcpListener, service: Service, closing: CancellationToken) {
    let hosts = http::Hosts::new(listener.local_addr().ok(), &hostname(), &service.settings().allowed_hosts);
    http::serve(listener, http::router(service, hosts), http::Grants::default(), closing).await;
}
