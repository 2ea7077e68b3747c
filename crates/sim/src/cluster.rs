//! Owns the servers and agents of one simulation: a task per host restarts it after every end, as an init system would.
//! A crash closes the gate of the current session.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use downbeat_agent::{Agent, Disk};
use downbeat_core::ids::{ClusterId, NodeId};
use downbeat_core::{Dice, Span};
use downbeat_proto::grpc::finished_from_bytes;
use downbeat_server::{Service, start_within};
use downbeat_store::{MemoryStore, Wrapped};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock::HostClock;
use crate::gate::Gate;
use crate::host::Machine;
use crate::network::{Dial, Network, address};
use crate::outside::Services;
use crate::replica;
use crate::seed::Broken;
use crate::store::{Health, Notifier, ServerStore};
use crate::world::{HostId, World};

/// How long an orderly stop may take: longer than agents wait for their work.
const STOP_TIME: Duration = Duration::from_secs(40);
/// How long a host may take until it works again: an agent first ends what its former session left running.
const START_TIME: Duration = Duration::from_secs(20);

/// The settings of one cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) servers: usize,
    /// False for a single server with an embedded store, which has no clock of its own.
    pub(crate) is_shared: bool,
    pub(crate) server_stale_after: Duration,
    /// The agents of the cluster `default`.
    pub(crate) agents: usize,
    /// The agents of the second cluster, whose numbers follow. There is none without them.
    pub(crate) others: usize,
    pub(crate) slots: u32,
    pub(crate) heartbeat_interval: Duration,
    pub(crate) grace: Duration,
    /// The largest initial error of a host's clock.
    pub(crate) clock_error: Duration,
    /// The same for an agent's clock, if larger.
    pub(crate) agent_clock_error: Duration,
    pub(crate) drift_ppm: u64,
    pub(crate) max_concurrent_runs: Option<u32>,
    pub(crate) has_replica: bool,
}

impl Shape {
    pub(crate) fn lease_ttl(&self) -> Duration {
        self.heartbeat_interval * 3
    }

    pub(crate) fn stale_after(&self) -> Duration {
        self.heartbeat_interval * 3
    }

    pub(crate) fn offline_after(&self) -> Duration {
        self.heartbeat_interval * 10
    }

    pub(crate) fn all_agents(&self) -> usize {
        self.agents + self.others
    }
}

/// A cluster of nodes. The first one always exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Default,
    Second,
}

impl Which {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Which::Default => "default",
            Which::Second => "second",
        }
    }
}

/// The whole installation: servers, agents, the store and the network.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) world: Arc<World>,
    pub(crate) network: Arc<Network>,
    pub(crate) health: Arc<Health>,
    notifier: Arc<Notifier>,
    pub(crate) memory: Arc<MemoryStore>,
    /// The clock of a shared store.
    pub(crate) store_clock: HostClock,
    pub(crate) shape: Shape,
    /// The copy of the read replica, if there is one.
    pub(crate) copy: Option<Arc<MemoryStore>>,
    is_healed: AtomicBool,
    /// The id of the second cluster, once it exists.
    second: OnceLock<ClusterId>,
    is_second_deleted: AtomicBool,
    pub(crate) broken: Option<Broken>,
    pub(crate) seed: u64,
    data: PathBuf,
    servers: Vec<Slot>,
    agents: Vec<Slot>,
}

/// One host over all its sessions.
#[derive(Debug)]
struct Slot {
    pub(crate) clock: HostClock,
    session: Mutex<Session>,
    /// Requests an orderly stop.
    stop: Notify,
    orphans: Arc<Mutex<CancellationToken>>,
}

#[derive(Debug)]
struct Session {
    number: u64,
    gate: Gate,
    service: Option<Service>,
    /// When the next session may start.
    down_until: Instant,
    /// Until when a session ends or starts because of a fault. An agent registers at the start of one.
    busy_until: Instant,
}

impl Slot {
    fn new(clock: HostClock) -> Self {
        let (gate, now) = (Gate::default(), Instant::now());
        let session = Session { number: 0, gate, service: None, down_until: now, busy_until: now };
        Self { clock, session: Mutex::new(session), stop: Notify::new(), orphans: Arc::default() }
    }

    fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the host may be up, and starts a session.
    async fn begin(&self) -> (u64, Gate) {
        loop {
            let until = self.session().down_until;
            if until <= Instant::now() {
                break;
            }
            tokio::time::sleep_until(until).await;
        }
        let mut session = self.session();
        session.number += 1;
        session.gate = Gate::default();
        (session.number, session.gate.clone())
    }

    /// Notes that a session ends within this time and that the next one starts.
    fn expect_start(&self, within: Duration) {
        let mut session = self.session();
        session.busy_until = session.busy_until.max(Instant::now() + within + START_TIME);
    }

    fn end(&self, down_for: Duration) {
        let mut session = self.session();
        session.down_until = session.down_until.max(Instant::now() + down_for);
        session.service = None;
        session.gate.close();
    }
}

impl Cluster {
    pub(crate) fn start(
        world: &Arc<World>,
        seed: u64,
        shape: Shape,
        data: &Path,
        broken: Option<Broken>,
    ) -> Arc<Self> {
        let clock = |error: Duration| {
            let most_us = u64::try_from(error.as_micros()).unwrap_or(0);
            let offset_us = signed(world.below(2 * most_us + 1)) - signed(most_us);
            let drift_ppm = signed(world.below(2 * shape.drift_ppm + 1)) - signed(shape.drift_ppm);
            HostClock::new(world.clock, offset_us, drift_ppm)
        };
        let cluster = Arc::new(Self {
            world: world.clone(),
            network: Network::new(world.clone()),
            health: Arc::default(),
            notifier: Arc::default(),
            memory: Arc::new(MemoryStore::new()),
            store_clock: HostClock::new(world.clock, 0, 0),
            copy: shape.has_replica.then(|| Arc::new(MemoryStore::new())),
            is_healed: AtomicBool::new(false),
            second: OnceLock::new(),
            is_second_deleted: AtomicBool::new(false),
            shape,
            broken,
            seed,
            data: data.to_owned(),
            servers: (0..shape.servers).map(|_| Slot::new(clock(shape.clock_error))).collect(),
            agents: (0..shape.all_agents())
                .map(|_| Slot::new(clock(shape.clock_error.max(shape.agent_clock_error))))
                .collect(),
        });
        for number in 0..shape.servers {
            tokio::spawn(keep_server(cluster.clone(), number));
        }
        for number in 0..shape.all_agents() {
            tokio::spawn(keep_agent(cluster.clone(), number));
        }
        if let Some(copy) = &cluster.copy {
            tokio::spawn(replica::keep(cluster.clone(), copy.clone()));
        }
        cluster
    }

    pub(crate) fn is_healed(&self) -> bool {
        self.is_healed.load(Ordering::Relaxed)
    }

    /// Ends the faults of everything that draws its own.
    pub(crate) fn heal(&self) {
        self.is_healed.store(true, Ordering::Relaxed);
    }

    /// Returns the id of a cluster, or nothing if it does not exist yet.
    pub(crate) fn id_of(&self, which: Which) -> Option<ClusterId> {
        match which {
            Which::Default => Some(ClusterId::DEFAULT),
            Which::Second => self.second.get().copied(),
        }
    }

    pub(crate) fn is_created(&self, second: ClusterId) {
        self.second.get_or_init(|| second);
    }

    /// Notes that somebody asked to delete the second cluster.
    pub(crate) fn is_deleted(&self) {
        self.is_second_deleted.store(true, Ordering::Relaxed);
    }

    /// Returns whether somebody asked to delete a cluster.
    pub(crate) fn may_be_deleted(&self, which: Which) -> bool {
        which == Which::Second && self.is_second_deleted.load(Ordering::Relaxed)
    }

    pub(crate) fn cluster_of(&self, agent: usize) -> Which {
        if agent < self.shape.agents { Which::Default } else { Which::Second }
    }

    /// Returns the node of an agent, or nothing if its cluster does not exist yet.
    pub(crate) fn node(&self, agent: usize) -> Option<NodeId> {
        let cluster = self.id_of(self.cluster_of(agent))?;
        Some(NodeId::derive(cluster, &format!("n{agent}")))
    }

    pub(crate) fn clock(&self, host: HostId) -> &HostClock {
        &self.slot(host).clock
    }

    fn slot(&self, host: HostId) -> &Slot {
        match host {
            HostId::Server(number) => &self.servers[number],
            HostId::Agent(number) => &self.agents[number],
        }
    }

    /// Ends a host as kill -9 or a power cut would. It starts again after `down_for`.
    pub(crate) fn crash(&self, host: HostId, down_for: Duration) {
        self.world.log(format_args!("{host} crashes, for {down_for:?}"));
        self.world.truth(|truth| match host {
            HostId::Server(_) => truth.counts.server_crashes += 1,
            HostId::Agent(_) => truth.counts.agent_crashes += 1,
        });
        if let HostId::Server(_) = host {
            self.network.hang_up(host);
        }
        self.slot(host).expect_start(down_for);
        self.slot(host).end(down_for);
    }

    /// Stops a host as an operator would.
    pub(crate) fn stop(&self, host: HostId) {
        self.world.log(format_args!("{host} is asked to stop"));
        self.slot(host).expect_start(STOP_TIME);
        self.slot(host).stop.notify_one();
    }

    /// Returns whether every host has had the time to start again after its last fault.
    pub(crate) fn has_started(&self) -> bool {
        let slots = self.servers.iter().chain(&self.agents);
        slots.into_iter().all(|slot| slot.session().busy_until <= Instant::now())
    }

    /// Keeps everything from entering or leaving a server for a while.
    pub(crate) fn suspend(&self, server: usize, duration: Duration) {
        self.world.log(format_args!("{} is suspended for {duration:?}", HostId::Server(server)));
        self.servers[server].session().gate.suspend(Instant::now() + duration);
    }

    pub(crate) fn service(&self, server: usize) -> Option<(Service, Gate)> {
        let session = self.servers[server].session();
        Some((session.service.clone()?, session.gate.clone()))
    }

    /// Moves the clocks of the store and of all servers.
    pub(crate) fn jump_servers(&self, mut by_us: impl FnMut() -> i64) {
        self.store_clock.jump(by_us());
        self.servers.iter().for_each(|slot| slot.clock.jump(by_us()));
    }

    fn chance(&self, host: HostId, session: u64) -> u64 {
        let (kind, number) = match host {
            HostId::Server(number) => (1, number),
            HostId::Agent(number) => (2, number),
        };
        let mut dice = Dice::new(self.seed ^ (kind << 60) ^ ((number as u64) << 48) ^ (session << 16));
        dice.next_u64()
    }

    pub(crate) fn server_settings(&self, number: usize) -> downbeat_server::Settings {
        let interval = self.shape.heartbeat_interval;
        let shorter =
            |broken: Broken, span: Duration| if self.broken == Some(broken) { span / 3 } else { span };
        let max_concurrent_runs = self.shape.max_concurrent_runs;
        downbeat_server::Settings {
            name: format!("s{number}"),
            heartbeat_interval: Span(interval),
            node_stale_after: Span(shorter(Broken::EarlySilence, self.shape.stale_after())),
            node_offline_after: Span(self.shape.offline_after()),
            server_stale_after: Span(self.shape.server_stale_after),
            lease_ttl: Span(shorter(Broken::ShortLeases, self.shape.lease_ttl())),
            shutdown_grace: Span(Duration::from_secs(5)),
            max_concurrent_runs: max_concurrent_runs.filter(|_| self.broken != Some(Broken::NoRunLimit)),
            // The servers and the replica remove older ones every minute. Drawn apart: everything else is as without it.
            keep_executions: [1, 2, 3, 10][Dice::new(self.seed ^ (5 << 60)).below(4) as usize],
            ..downbeat_server::Settings::default()
        }
    }

    pub(crate) fn agent_settings(&self, number: usize) -> downbeat_agent::Settings {
        let servers = self.shape.servers;
        let mut settings = downbeat_agent::Settings::new(self.data.join(format!("n{number}")));
        settings.servers =
            (0..servers).map(|turn| address(HostId::Server((number + turn) % servers))).collect();
        settings.hostname = format!("n{number}");
        settings.cluster = self.cluster_of(number).name().to_owned();
        settings.groups = vec![if number.is_multiple_of(2) { "even" } else { "odd" }.to_owned()];
        let too_many = if self.broken == Some(Broken::TooManySlots) { 2 } else { 0 };
        settings.slots = self.shape.slots + too_many;
        settings.grace = self.shape.grace;
        settings.drain_timeout = Duration::from_secs(10);
        settings
    }

    /// Records the results on an agent's disk that no server has acknowledged.
    fn note_kept(&self, number: usize) {
        let dir = self.data.join(format!("n{number}")).join("outbox");
        let mut files: Vec<PathBuf> =
            std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        files.sort();
        for file in files {
            let bytes = std::fs::read(file).unwrap_or_default();
            let mut rest = bytes.as_slice();
            // A record is its length, checksum and result.
            while let Some((header, tail)) = rest.split_at_checked(8) {
                let length = u32::from_le_bytes(header[..4].try_into().expect("the slice has four bytes"));
                let Some((payload, tail)) = tail.split_at_checked(length as usize) else { break };
                if let Ok(finished) = finished_from_bytes(payload) {
                    self.world.truth(|truth| truth.kept.push(finished.held));
                }
                rest = tail;
            }
        }
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

async fn keep_server(cluster: Arc<Cluster>, number: usize) {
    let host = HostId::Server(number);
    let slot = &cluster.servers[number];
    loop {
        let (session, gate) = slot.begin().await;
        let store = Arc::new(Wrapped(ServerStore {
            inner: cluster.memory.clone(),
            world: cluster.world.clone(),
            health: cluster.health.clone(),
            host,
            gate: gate.clone(),
            broken: cluster.broken,
            hints: cluster.notifier.listen(host, &gate),
            notifier: cluster.notifier.clone(),
            clock: cluster.shape.is_shared.then(|| cluster.store_clock.clone()),
        }));
        let clock = slot.clock.clone();
        let surroundings = downbeat_server::Surroundings {
            wall: Arc::new(move || clock.now()),
            seed: cluster.chance(host, session),
            outside: Some(Arc::new(Services { world: cluster.world.clone(), gate: gate.clone() })),
        };
        let started = start_within(cluster.server_settings(number), store, surroundings);
        let Some(started) = gate.run(started).await else { continue };
        let server = match started {
            Ok(server) => server,
            Err(error) => {
                cluster.world.log(format_args!("{host} does not start: {error}"));
                slot.end(Duration::from_secs(1));
                continue;
            }
        };
        cluster.world.log(format_args!("{host} is up, session {session}"));
        slot.session().service = Some(server.service().clone());
        cluster.network.listen(host, server.link(), gate.clone());
        let Some(()) = gate.run(slot.stop.notified()).await else { continue };
        slot.session().service = None;
        let Some(()) = gate.run(server.stop()).await else { continue };
        cluster.world.log(format_args!("{host} stopped"));
        cluster.network.hang_up(host);
        slot.end(Duration::from_secs(1));
    }
}

async fn keep_agent(cluster: Arc<Cluster>, number: usize) {
    let host = HostId::Agent(number);
    let slot = &cluster.agents[number];
    loop {
        let (session, gate) = slot.begin().await;
        let machine = Machine {
            world: cluster.world.clone(),
            agent: number,
            incarnation: session,
            gate: gate.clone(),
            seed: cluster.seed,
            is_deaf: cluster.broken == Some(Broken::DeafWork),
            orphans: slot.orphans.clone(),
        };
        let clock = slot.clock.clone();
        let surroundings = downbeat_agent::Surroundings {
            wall: Arc::new(move || clock.now()),
            seed: cluster.chance(host, session),
            disk: Disk::Inline,
            host: Arc::new(machine),
        };
        let dial = Dial { network: cluster.network.clone(), from: host, gate: gate.clone() };
        let mut handle = Agent::start_within(cluster.agent_settings(number), Arc::new(dial), surroundings);
        let ended = tokio::select! {
            biased;
            () = gate.closed() => None,
            () = slot.stop.notified() => {
                handle.drain();
                gate.run(handle.wait()).await
            }
            ended = handle.wait() => Some(ended),
        };
        match ended {
            None => {
                handle.abandon().await;
                cluster.note_kept(number);
                if cluster.broken == Some(Broken::LostOutbox) {
                    let _ = std::fs::remove_dir_all(cluster.data.join(format!("n{number}")).join("outbox"));
                }
            }
            Some(ended) => {
                let why =
                    ended.err().map_or_else(|| "it was asked to stop".to_owned(), |error| error.to_string());
                cluster.world.log(format_args!("{host} ended: {why}"));
                slot.end(Duration::from_secs(2));
            }
        }
    }
}
