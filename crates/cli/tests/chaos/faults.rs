//! Owns the faults: their kinds, how each is injected, and that each heals.

use std::sync::Arc;
use std::time::Duration;

use downbeat_core::Dice;
use downbeat_testbed::{processes::signal, within};
use nix::sys::signal::Signal;

use crate::cluster::Cluster;
use crate::network::Cut;
use crate::proxy::{Mode, Proxy};

/// How long the recovery from an outage may take.
const RECOVERY: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    ServerKilled,
    ServerFrozen,
    /// Longer than a server may be silent before its runs are taken over.
    ServerFrozenLong,
    ServersRestarted,
    AgentKilled,
    AgentFrozen,
    AgentDiskFull,
    AgentCutOff,
    AgentHalfCutOff,
    NodeDeleted,
    WireDelayed,
    WireSlow,
    WireStalled,
    WireHalfStalled,
    WireReset,
    WireRefused,
    WireHalfOpen,
    BackendFrozen,
    BackendsTerminated,
    PostgresRestarted,
    PostgresCrashed,
    PostgresKilled,
    PostgresAway,
    PostgresFrozen,
    PostgresDiskFull,
}

impl Fault {
    pub(crate) const ALL: [Fault; 25] = [
        Fault::ServerKilled,
        Fault::ServerFrozen,
        Fault::ServerFrozenLong,
        Fault::ServersRestarted,
        Fault::AgentKilled,
        Fault::AgentFrozen,
        Fault::AgentDiskFull,
        Fault::AgentCutOff,
        Fault::AgentHalfCutOff,
        Fault::NodeDeleted,
        Fault::WireDelayed,
        Fault::WireSlow,
        Fault::WireStalled,
        Fault::WireHalfStalled,
        Fault::WireReset,
        Fault::WireRefused,
        Fault::WireHalfOpen,
        Fault::BackendFrozen,
        Fault::BackendsTerminated,
        Fault::PostgresRestarted,
        Fault::PostgresCrashed,
        Fault::PostgresKilled,
        Fault::PostgresAway,
        Fault::PostgresFrozen,
        Fault::PostgresDiskFull,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Fault::ServerKilled => "server: kill -9",
            Fault::ServerFrozen => "server: SIGSTOP, 1-6 s",
            Fault::ServerFrozenLong => "server: SIGSTOP, 11-14 s",
            Fault::ServersRestarted => "servers: rolling restart by SIGTERM",
            Fault::AgentKilled => "agent: kill -9",
            Fault::AgentFrozen => "agent: SIGSTOP, 0-6 s",
            Fault::AgentDiskFull => "agent: disk full",
            Fault::AgentCutOff => "agent: network down",
            Fault::AgentHalfCutOff => "agent: network drops one direction",
            Fault::NodeDeleted => "node: deleted by force, agent started again",
            Fault::WireDelayed => "proxy: delay",
            Fault::WireSlow => "proxy: 20 kB/s to 1 MB/s",
            Fault::WireStalled => "proxy: stall",
            Fault::WireHalfStalled => "proxy: stall of one direction",
            Fault::WireReset => "proxy: reset",
            Fault::WireRefused => "proxy: refuse",
            Fault::WireHalfOpen => "proxy: half open",
            Fault::BackendFrozen => "PostgreSQL: SIGSTOP of a connection's process",
            Fault::BackendsTerminated => "PostgreSQL: pg_terminate_backend",
            Fault::PostgresRestarted => "PostgreSQL: restart",
            Fault::PostgresCrashed => "PostgreSQL: immediate stop, recovery",
            Fault::PostgresKilled => "PostgreSQL: kill -9, recovery",
            Fault::PostgresAway => "PostgreSQL: away for 3-8 s",
            Fault::PostgresFrozen => "PostgreSQL: SIGSTOP, 1-6 s",
            Fault::PostgresDiskFull => "PostgreSQL: disk full",
        }
    }
}

/// All kinds in a random order; when they are used up, again.
#[derive(Debug)]
pub(crate) struct Deck {
    pub(crate) dice: Dice,
    left: Vec<Fault>,
}

impl Deck {
    pub(crate) fn new(seed: u64) -> Self {
        Self { dice: Dice::new(seed), left: Vec::new() }
    }

    pub(crate) fn draw(&mut self) -> Fault {
        if self.left.is_empty() {
            self.left = Fault::ALL.to_vec();
        }
        let index = usize::try_from(self.dice.below(self.left.len() as u64)).unwrap();
        self.left.swap_remove(index)
    }
}

fn seconds(dice: &mut Dice, least_ms: u64, most_ms: u64) -> Duration {
    Duration::from_millis(least_ms + dice.below(most_ms - least_ms))
}

fn one<'a, T>(of: &'a [T], dice: &mut Dice) -> &'a T {
    &of[usize::try_from(dice.below(of.len() as u64)).unwrap()]
}

/// Injects a fault and heals it. Returns false if this fault is not possible here.
pub(crate) async fn inject(cluster: &Arc<Cluster>, fault: Fault, dice: &mut Dice) -> bool {
    match fault {
        Fault::ServerKilled | Fault::ServerFrozen | Fault::ServerFrozenLong | Fault::ServersRestarted => {
            server(cluster, fault, dice).await;
        }
        Fault::AgentKilled
        | Fault::AgentFrozen
        | Fault::AgentDiskFull
        | Fault::AgentCutOff
        | Fault::AgentHalfCutOff
        | Fault::NodeDeleted => return agent(cluster, fault, dice).await,
        Fault::WireDelayed
        | Fault::WireSlow
        | Fault::WireStalled
        | Fault::WireHalfStalled
        | Fault::WireReset
        | Fault::WireRefused
        | Fault::WireHalfOpen => {
            wire(cluster, fault, dice).await;
        }
        Fault::BackendFrozen
        | Fault::BackendsTerminated
        | Fault::PostgresRestarted
        | Fault::PostgresCrashed
        | Fault::PostgresKilled
        | Fault::PostgresAway
        | Fault::PostgresFrozen
        | Fault::PostgresDiskFull => return postgres(cluster, fault, dice).await,
    }
    true
}

async fn server(cluster: &Cluster, fault: Fault, dice: &mut Dice) {
    if fault == Fault::ServersRestarted {
        for (index, server) in cluster.servers.iter().enumerate() {
            let _hurt = server.hurt.lock().await;
            server.stop().await;
            server.start();
            // As an administrator would: the next one when this one is back, if the store lets it.
            let ready = || async {
                if server.reap() {
                    server.start();
                }
                cluster.direct.ask(index, "/readyz").await.filter(|answer| answer.status == 200)
            };
            within(Duration::from_secs(10), ready).await;
        }
        return;
    }
    let server = one(&cluster.servers, dice);
    let _hurt = server.hurt.lock().await;
    if fault == Fault::ServerKilled {
        server.kill();
        tokio::time::sleep(seconds(dice, 0, 3_000)).await;
        server.start();
        return;
    }
    let length = if fault == Fault::ServerFrozen { (1_000, 6_000) } else { (11_000, 14_000) };
    server.signal(Signal::SIGSTOP);
    tokio::time::sleep(seconds(dice, length.0, length.1)).await;
    server.signal(Signal::SIGCONT);
}

async fn agent(cluster: &Cluster, fault: Fault, dice: &mut Dice) -> bool {
    let fitting: Vec<_> = cluster
        .agents
        .iter()
        .filter(|agent| match fault {
            Fault::AgentDiskFull => agent.disk.is_some(),
            Fault::AgentCutOff | Fault::AgentHalfCutOff => agent.network.is_some(),
            _ => true,
        })
        .collect();
    if fitting.is_empty() {
        return false;
    }
    let agent = *one(&fitting, dice);
    let _hurt = agent.hurt.lock().await;
    match fault {
        Fault::AgentKilled => {
            agent.kill();
            tokio::time::sleep(seconds(dice, 0, 2_000)).await;
            agent.start();
        }
        Fault::NodeDeleted => {
            let path = format!("nodes/{}?force=1", agent.name);
            // Until a server responds: the request is idempotent.
            let deleted = || async {
                let answer = cluster.client.delete(0, &path).await;
                answer.filter(|answer| answer.status == 200).map(drop)
            };
            // Its agent ends when it learns of it.
            let ended = || async { agent.reap().then_some(()) };
            if within(RECOVERY, deleted).await.is_none() || within(RECOVERY, ended).await.is_none() {
                agent.kill();
            }
            agent.start();
        }
        Fault::AgentFrozen => {
            agent.signal(Signal::SIGSTOP);
            tokio::time::sleep(seconds(dice, 100, 6_000)).await;
            agent.signal(Signal::SIGCONT);
        }
        _ => {
            let length = seconds(dice, 1_000, 6_000);
            let cut = match fault {
                Fault::AgentCutOff => Cut::Both,
                _ if dice.below(2) == 0 => Cut::Up,
                _ => Cut::Down,
            };
            match (&agent.disk, &agent.network) {
                (Some(disk), _) if fault == Fault::AgentDiskFull => {
                    disk.fill();
                    tokio::time::sleep(length).await;
                    disk.empty();
                }
                (_, Some(network)) => {
                    network.cut(cut);
                    tokio::time::sleep(length).await;
                    network.heal();
                }
                _ => return false,
            }
        }
    }
    true
}

async fn wire(cluster: &Cluster, fault: Fault, dice: &mut Dice) {
    let server = one(&cluster.servers, dice);
    let wires: [&Proxy; 3] = [&server.rest, &server.agents, &server.database];
    // Clients of a database need a fast line.
    let wire = if fault == Fault::WireSlow { &server.agents } else { *one(&wires, dice) };
    let _hurt = wire.hurt.lock().await;
    let mode = match fault {
        Fault::WireDelayed => Mode::Delay(seconds(dice, 5, 300)),
        Fault::WireSlow => Mode::Slow(*one(&[20_000, 100_000, 1_000_000], dice)),
        Fault::WireStalled => Mode::Stall,
        Fault::WireHalfStalled if dice.below(2) == 0 => Mode::StallUp,
        Fault::WireHalfStalled => Mode::StallDown,
        Fault::WireRefused => Mode::Refuse,
        Fault::WireHalfOpen => Mode::HalfOpen,
        _ => {
            for _ in 0..1 + dice.below(4) {
                wire.cut();
                tokio::time::sleep(seconds(dice, 50, 500)).await;
            }
            return;
        }
    };
    wire.set(mode);
    if mode == Mode::Refuse {
        wire.cut();
    }
    tokio::time::sleep(seconds(dice, 1_000, 6_000)).await;
    wire.set(Mode::Pass);
    // A half-dead wire goes unnoticed; some recover, some are cut here.
    if dice.below(2) == 0 {
        wire.cut();
    }
}

async fn postgres(cluster: &Cluster, fault: Fault, dice: &mut Dice) -> bool {
    let _hurt = cluster.hurt.lock().await;
    let postgres = &cluster.postgres;
    match fault {
        Fault::BackendFrozen => {
            let backends = postgres.backends().await;
            if backends.is_empty() {
                return false;
            }
            let pid = *one(&backends, dice);
            signal(pid, Signal::SIGSTOP);
            tokio::time::sleep(seconds(dice, 500, 4_000)).await;
            signal(pid, Signal::SIGCONT);
            return true;
        }
        Fault::BackendsTerminated => {
            for _ in 0..3 {
                let backends = postgres.backends().await;
                let some: Vec<i32> = backends.into_iter().filter(|_| dice.below(2) == 0).collect();
                postgres.terminate(&some).await;
                tokio::time::sleep(seconds(dice, 50, 500)).await;
            }
            return true;
        }
        Fault::PostgresRestarted => postgres.halt().await,
        Fault::PostgresCrashed => postgres.crash().await,
        Fault::PostgresKilled => postgres.kill().await,
        Fault::PostgresAway => {
            postgres.halt().await;
            tokio::time::sleep(seconds(dice, 3_000, 8_000)).await;
        }
        Fault::PostgresFrozen => {
            postgres.freeze();
            tokio::time::sleep(seconds(dice, 1_000, 6_000)).await;
            postgres.thaw();
        }
        _ => {
            let Some(disk) = &postgres.disk else { return false };
            disk.fill();
            tokio::time::sleep(seconds(dice, 2_000, 6_000)).await;
            disk.empty();
        }
    }
    // Out of disk it may have ended by itself, too.
    within(RECOVERY, || async { postgres.resume().await.ok() }).await.expect("PostgreSQL comes back");
    true
}
