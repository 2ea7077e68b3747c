//! Owns the servers and agents of one simulation: each is kept alive by a task that starts it again after every end,
//! as an init system would. A crash closes the gate of the life that it ends.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use downbeat_agent::{Agent, Disk};
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
use crate::seed::Broken;
use crate::store::{Health, Herald, Reached};
use crate::world::{Place, World};

/// How one cluster is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) servers: usize,
    /// One server may have an embedded store, which has no clock of its own.
    pub(crate) is_shared: bool,
    pub(crate) server_stale_after: Duration,
    pub(crate) agents: usize,
    pub(crate) slots: u32,
    pub(crate) heartbeat_interval: Duration,
    pub(crate) grace: Duration,
    /// The most that a host's clock is off at the start.
    pub(crate) clock_error: Duration,
    /// The same for an agent's, when that is more.
    pub(crate) agent_clock_error: Duration,
    pub(crate) drift_ppm: u64,
    pub(crate) max_concurrent_runs: Option<u32>,
}

impl Shape {
    pub(crate) fn lease_ttl(&self) -> Duration {
        self.heartbeat_interval * 3
    }

    pub(crate) fn stale_after(&self) -> Duration {
        self.heartbeat_interval * 3
    }
}

#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) world: Arc<World>,
    pub(crate) network: Arc<Network>,
    pub(crate) health: Arc<Health>,
    herald: Arc<Herald>,
    pub(crate) memory: Arc<MemoryStore>,
    pub(crate) shape: Shape,
    broken: Option<Broken>,
    seed: u64,
    data: PathBuf,
    servers: Vec<Slot>,
    agents: Vec<Slot>,
}

/// One host over all its lives.
#[derive(Debug)]
struct Slot {
    pub(crate) clock: HostClock,
    life: Mutex<Life>,
    /// To end in order.
    stop: Notify,
    orphans: Arc<Mutex<CancellationToken>>,
}

#[derive(Debug)]
struct Life {
    number: u64,
    gate: Gate,
    service: Option<Service>,
    /// When the next life may begin.
    down_until: Instant,
}

impl Slot {
    fn new(clock: HostClock) -> Self {
        let life = Life { number: 0, gate: Gate::default(), service: None, down_until: Instant::now() };
        Self { clock, life: Mutex::new(life), stop: Notify::new(), orphans: Arc::default() }
    }

    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the host may be up, and begins a life.
    async fn begin(&self) -> (u64, Gate) {
        loop {
            let until = self.life().down_until;
            if until <= Instant::now() {
                break;
            }
            tokio::time::sleep_until(until).await;
        }
        let mut life = self.life();
        life.number += 1;
        life.gate = Gate::default();
        (life.number, life.gate.clone())
    }

    fn end(&self, down_for: Duration) {
        let mut life = self.life();
        life.down_until = life.down_until.max(Instant::now() + down_for);
        life.service = None;
        life.gate.close();
    }
}

impl Cluster {
    /// Starts everything.
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
            herald: Arc::default(),
            memory: Arc::new(MemoryStore::new()),
            shape,
            broken,
            seed,
            data: data.to_owned(),
            servers: (0..shape.servers).map(|_| Slot::new(clock(shape.clock_error))).collect(),
            agents: (0..shape.agents)
                .map(|_| Slot::new(clock(shape.clock_error.max(shape.agent_clock_error))))
                .collect(),
        });
        for number in 0..shape.servers {
            tokio::spawn(keep_server(cluster.clone(), number));
        }
        for number in 0..shape.agents {
            tokio::spawn(keep_agent(cluster.clone(), number));
        }
        cluster
    }

    pub(crate) fn clock(&self, place: Place) -> &HostClock {
        &self.slot(place).clock
    }

    fn slot(&self, place: Place) -> &Slot {
        match place {
            Place::Server(number) => &self.servers[number],
            Place::Agent(number) => &self.agents[number],
        }
    }

    /// As kill -9 or a power cut would; it is up again after `down_for`.
    pub(crate) fn crash(&self, place: Place, down_for: Duration) {
        self.world.say(format_args!("{place} crashes, for {down_for:?}"));
        self.world.truth(|truth| match place {
            Place::Server(_) => truth.counts.server_crashes += 1,
            Place::Agent(_) => truth.counts.agent_crashes += 1,
        });
        if let Place::Server(_) = place {
            self.network.hang_up(place);
        }
        self.slot(place).end(down_for);
    }

    /// As an operator would.
    pub(crate) fn stop(&self, place: Place) {
        self.world.say(format_args!("{place} is told to stop"));
        self.slot(place).stop.notify_one();
    }

    pub(crate) fn service(&self, server: usize) -> Option<(Service, Gate)> {
        let life = self.servers[server].life();
        Some((life.service.clone()?, life.gate.clone()))
    }

    pub(crate) fn set_clocks_right(&self) {
        for slot in self.servers.iter().chain(&self.agents) {
            slot.clock.set_right();
        }
    }

    fn chance(&self, place: Place, life: u64) -> u64 {
        let (kind, number) = match place {
            Place::Server(number) => (1, number),
            Place::Agent(number) => (2, number),
        };
        let mut dice = Dice::new(self.seed ^ (kind << 60) ^ ((number as u64) << 48) ^ (life << 16));
        dice.next_u64()
    }

    fn server_settings(&self, number: usize) -> downbeat_server::Settings {
        let interval = self.shape.heartbeat_interval;
        downbeat_server::Settings {
            name: format!("s{number}"),
            heartbeat_interval: Span(interval),
            node_stale_after: Span(self.shape.stale_after()),
            node_offline_after: Span(interval * 10),
            server_stale_after: Span(self.shape.server_stale_after),
            lease_ttl: Span(self.shape.lease_ttl()),
            shutdown_grace: Span(Duration::from_secs(5)),
            max_concurrent_runs: self.shape.max_concurrent_runs,
            ..downbeat_server::Settings::default()
        }
    }

    pub(crate) fn agent_settings(&self, number: usize) -> downbeat_agent::Settings {
        let servers = self.shape.servers;
        let mut settings = downbeat_agent::Settings::new(self.data.join(format!("n{number}")));
        settings.servers =
            (0..servers).map(|turn| address(Place::Server((number + turn) % servers))).collect();
        settings.hostname = format!("n{number}");
        settings.groups = vec![if number.is_multiple_of(2) { "even" } else { "odd" }.to_owned()];
        settings.slots = self.shape.slots;
        settings.grace = self.shape.grace;
        settings.drain_timeout = Duration::from_secs(10);
        settings
    }

    /// What is on an agent's disk that no server acknowledged.
    fn note_kept(&self, number: usize) {
        let dir = self.data.join(format!("n{number}")).join("outbox");
        let mut files: Vec<PathBuf> =
            std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        files.sort();
        for file in files {
            let bytes = std::fs::read(file).unwrap_or_default();
            let mut rest = bytes.as_slice();
            // Length, checksum, result.
            while let Some((header, tail)) = rest.split_at_checked(8) {
                let length = u32::from_le_bytes(header[..4].try_into().expect("it has four bytes"));
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
    let place = Place::Server(number);
    let slot = &cluster.servers[number];
    loop {
        let (life, gate) = slot.begin().await;
        let store = Arc::new(Wrapped(Reached {
            inner: cluster.memory.clone(),
            world: cluster.world.clone(),
            health: cluster.health.clone(),
            place,
            gate: gate.clone(),
            broken: cluster.broken,
            news: cluster.herald.listen(place, &gate),
            herald: cluster.herald.clone(),
            is_shared: cluster.shape.is_shared,
        }));
        let clock = slot.clock.clone();
        let surroundings = downbeat_server::Surroundings {
            wall: Arc::new(move || clock.now()),
            seed: cluster.chance(place, life),
        };
        let started = tokio::select! {
            biased;
            () = gate.closed() => continue,
            started = start_within(cluster.server_settings(number), store, surroundings) => started,
        };
        let server = match started {
            Ok(server) => server,
            Err(error) => {
                cluster.world.say(format_args!("{place} does not start: {error}"));
                slot.end(Duration::from_secs(1));
                continue;
            }
        };
        cluster.world.say(format_args!("{place} is up, life {life}"));
        slot.life().service = Some(server.service().clone());
        cluster.network.listen(place, server.link(), gate.clone());
        tokio::select! {
            biased;
            () = gate.closed() => continue,
            () = slot.stop.notified() => {}
        }
        slot.life().service = None;
        tokio::select! {
            biased;
            () = gate.closed() => continue,
            () = server.stop() => {}
        }
        cluster.world.say(format_args!("{place} stopped"));
        cluster.network.hang_up(place);
        slot.end(Duration::from_secs(1));
    }
}

async fn keep_agent(cluster: Arc<Cluster>, number: usize) {
    let place = Place::Agent(number);
    let slot = &cluster.agents[number];
    loop {
        let (life, gate) = slot.begin().await;
        let machine = Machine {
            world: cluster.world.clone(),
            agent: number,
            incarnation: life,
            gate: gate.clone(),
            seed: cluster.seed,
            orphans: slot.orphans.clone(),
        };
        let clock = slot.clock.clone();
        let surroundings = downbeat_agent::Surroundings {
            wall: Arc::new(move || clock.now()),
            seed: cluster.chance(place, life),
            disk: Disk::Inline,
            host: Arc::new(machine),
        };
        let dial = Dial { network: cluster.network.clone(), from: place, gate: gate.clone() };
        let mut handle = Agent::start_within(cluster.agent_settings(number), Arc::new(dial), surroundings);
        let ended = tokio::select! {
            biased;
            () = gate.closed() => None,
            () = slot.stop.notified() => {
                handle.drain();
                tokio::select! {
                    biased;
                    () = gate.closed() => None,
                    ended = handle.wait() => Some(ended),
                }
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
                let why = ended.err().map_or_else(|| "it was told to".to_owned(), |error| error.to_string());
                cluster.world.say(format_args!("{place} ended: {why}"));
                slot.end(Duration::from_secs(2));
            }
        }
    }
}
