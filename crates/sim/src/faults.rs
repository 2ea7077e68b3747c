//! Owns the faults: a seed draws which kinds occur, then they occur at random until everything heals.

use std::sync::Arc;
use std::time::Duration;

use downbeat_core::ids::ServerId;
use downbeat_core::retention::Excess;
use downbeat_core::{Dice, level};
use downbeat_store::{DirectWrites, Events, ServerRecord};
use jiff::SignedDuration;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::network::NetworkFaults;
use crate::seed::Broken;
use crate::world::{HostId, World};
use crate::{client, stranger};

/// The kinds of faults of a seed. A few kinds at a time find more than all at once.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Kinds {
    pub(crate) server_crashes: bool,
    pub(crate) agent_crashes: bool,
    pub(crate) restarts: bool,
    pub(crate) partitions: bool,
    pub(crate) weather: bool,
    pub(crate) store: bool,
    pub(crate) clocks: bool,
    pub(crate) drains: bool,
    pub(crate) deletions: bool,
    pub(crate) strangers: bool,
    pub(crate) pruning: bool,
    pub(crate) rejections: bool,
    pub(crate) older_servers: bool,
}

impl Kinds {
    pub(crate) fn draw(world: &World) -> Self {
        let often = || world.below(3) > 0;
        Self {
            server_crashes: often(),
            agent_crashes: often(),
            restarts: world.below(3) == 0,
            partitions: often(),
            weather: often(),
            store: often(),
            clocks: world.below(2) == 0,
            drains: world.below(4) == 0,
            deletions: world.below(4) == 0,
            strangers: world.below(4) == 0,
            pruning: world.below(4) == 0,
            rejections: world.below(6) == 0,
            older_servers: world.below(6) == 0,
        }
    }
}

/// Injects faults for `duration`. Lasting faults end by themselves or with `heal`. Returns the people and strangers who are
/// not finished by then: what they do later changes what is left to do, as the end of a drain does.
pub(crate) async fn inject(cluster: &Arc<Cluster>, kinds: Kinds, duration: Duration) -> Vec<JoinHandle<()>> {
    let world = cluster.world.clone();
    let mut people = Vec::new();
    let until = Instant::now() + duration;
    let between = Duration::from_secs(1) + world.up_to(Duration::from_secs(12));
    while Instant::now() < until {
        tokio::time::sleep(world.up_to(between)).await;
        let host = any(&world, cluster);
        let last = |seconds| world.up_to(Duration::from_secs(seconds));
        match world.below(14) {
            0 if kinds.server_crashes => cluster.crash(server(&world, cluster), last(20)),
            1 if kinds.agent_crashes => cluster.crash(agent(&world, cluster), last(25)),
            2 if kinds.restarts => cluster.stop(host),
            3 | 4 if kinds.partitions => partition(cluster, last(40)),
            5 if kinds.weather => change_weather(cluster),
            6 | 7 if kinds.store => trouble_store(cluster, last(15)),
            8 if kinds.clocks && world.below(2) == 0 => {
                let by_us = jump_us(&world);
                world.truth(|truth| truth.counts.clock_jumps += 1);
                if world.below(3) == 0 {
                    world.log(format_args!("the clock of the store jumps by {by_us} µs"));
                    cluster.store_clock.jump(by_us);
                } else {
                    world.log(format_args!("the clock of {host} jumps by {by_us} µs"));
                    cluster.clock(host).jump(by_us);
                }
            }
            8 if kinds.drains => {
                let number = world.index(cluster.shape.all_agents());
                people.push(tokio::spawn(client::drain(cluster.clone(), number, last(30))));
            }
            9 if kinds.deletions => {
                let number = world.index(cluster.shape.all_agents());
                people.push(tokio::spawn(client::delete(cluster.clone(), number)));
            }
            10 if kinds.strangers => {
                let number = world.index(cluster.shape.agents);
                people.push(tokio::spawn(stranger::register(
                    cluster.clone(),
                    number,
                    server(&world, cluster),
                )));
            }
            11 if kinds.pruning => prune(cluster).await,
            12 if kinds.rejections => reject(cluster, last(15)),
            13 if kinds.older_servers => {
                people.push(tokio::spawn(join_as_older_server(cluster.clone(), last(30))));
            }
            _ => {}
        }
    }
    people
}

/// Crashes all servers for longer than any attempt and its report may take, while agents have work.
pub(crate) async fn outage(cluster: &Cluster, within: Duration) {
    let world = &cluster.world;
    tokio::time::sleep(within / 2 + world.up_to(within / 2)).await;
    let duration = Duration::from_secs(2 * 3600);
    (0..cluster.shape.servers).for_each(|number| cluster.crash(HostId::Server(number), duration));
    tokio::time::sleep(duration).await;
}

/// Draws a jump: by seconds, or by hours.
pub(crate) fn jump_us(world: &World) -> i64 {
    let most_us = if world.below(2) == 0 { 20_000_000 } else { 3 * 3_600_000_000 };
    i64::try_from(world.below(2 * most_us)).unwrap_or(0) - i64::try_from(most_us).unwrap_or(0)
}

/// Ends all faults, except that the clocks stay wrong: nothing may depend on them.
pub(crate) fn heal(cluster: &Cluster) {
    cluster.world.log(format_args!("everything heals"));
    cluster.heal();
    cluster.world.truth(|truth| truth.healed = Some(cluster.world.now()));
    cluster.network.set_weather(NetworkFaults::default());
    cluster.network.unblock_all();
    cluster.health.set(|troubles| *troubles = crate::store::StoreFaults::default());
}

fn server(world: &World, cluster: &Cluster) -> HostId {
    HostId::Server(world.index(cluster.shape.servers))
}

fn agent(world: &World, cluster: &Cluster) -> HostId {
    HostId::Agent(world.index(cluster.shape.all_agents()))
}

fn any(world: &World, cluster: &Cluster) -> HostId {
    if world.below(2) == 0 { server(world, cluster) } else { agent(world, cluster) }
}

/// Cuts some directions: between two hosts or around one, in both directions or one.
fn partition(cluster: &Arc<Cluster>, duration: Duration) {
    let world = &cluster.world;
    let (one, other) = (server(world, cluster), agent(world, cluster));
    let mut pairs: Vec<(HostId, HostId)> = match world.below(3) {
        0 => vec![(other, one)],
        1 => (0..cluster.shape.servers).map(|number| (other, HostId::Server(number))).collect(),
        _ => (0..cluster.shape.all_agents()).map(|number| (HostId::Agent(number), one)).collect(),
    };
    match world.below(4) {
        // Only to the server, or only from it.
        0 => {}
        1 => pairs.iter_mut().for_each(|pair| *pair = (pair.1, pair.0)),
        _ => pairs.extend(pairs.clone().into_iter().map(|(from, to)| (to, from))),
    }
    world.truth(|truth| truth.counts.partitions += 1);
    let named: Vec<String> = pairs.iter().map(|(from, to)| format!("{from}→{to}")).collect();
    world.log(format_args!("cut for {duration:?}: {}", named.join(" ")));
    pairs.iter().for_each(|(from, to)| cluster.network.block(*from, *to));
    let cluster = cluster.clone();
    tokio::spawn(async move {
        tokio::time::sleep(duration).await;
        pairs.iter().for_each(|(from, to)| cluster.network.unblock(*from, *to));
    });
}

fn change_weather(cluster: &Cluster) {
    let world = &cluster.world;
    let weather = NetworkFaults {
        delay: world.up_to(Duration::from_millis(1 << world.below(11))),
        late_permille: world.below(2) * world.below(60),
        lost_permille: world.below(2) * world.below(150),
        doubled_permille: world.below(2) * world.below(150),
        bytes_per_second: match world.below(8) {
            0 => Some(20_000),
            1 => Some(100_000),
            2 => Some(1_000_000),
            _ => None,
        },
    };
    world.log(format_args!("{weather:?}"));
    cluster.network.set_weather(weather);
}

fn trouble_store(cluster: &Arc<Cluster>, duration: Duration) {
    let world = &cluster.world;
    world.truth(|truth| truth.counts.outages += 1);
    let kind = world.below(4);
    let one = server(world, cluster);
    let delay = world.up_to(Duration::from_millis(300));
    let (slow, before, after) = (world.below(100), world.below(150), world.below(150));
    cluster.health.set(|troubles| match kind {
        0 => troubles.away_from = (0..cluster.shape.servers).map(HostId::Server).collect(),
        1 => troubles.away_from = vec![one],
        2 => (troubles.delay, troubles.slow_permille) = (delay, slow),
        _ => (troubles.fail_before_permille, troubles.fail_after_permille) = (before, after),
    });
    world.log(format_args!("the store has fault {kind} for {duration:?} ({one})"));
    let cluster = cluster.clone();
    tokio::spawn(async move {
        tokio::time::sleep(duration).await;
        cluster.health.set(|troubles| *troubles = crate::store::StoreFaults::default());
    });
}

/// Removes what is older than a minute, as a server does with runs that are older than the retention; or only some of it, as
/// with runs, events and output of which the store holds too much.
async fn prune(cluster: &Cluster) {
    let world = &cluster.world;
    let before = world.now() - SignedDuration::from_secs(60);
    let is_greedy = cluster.broken == Some(Broken::GreedyPrune);
    let end = if is_greedy { world.now() } else { before };
    // Dice of their own: those of the world give the same as without them.
    let mut dice = Dice::new(cluster.seed ^ world.now().as_microsecond().unsigned_abs());
    if dice.below(2) == 0 && !is_greedy {
        let last = cluster.memory.last_seq().await.expect("the memory store does not fail");
        let (runs, output_bytes) = (dice.below(4), dice.below(2) * 1_000);
        let excess = Excess { before, runs, events_upto: dice.below(last + 1), output_bytes };
        let removed =
            cluster.memory.prune_excess(&excess, 100).await.expect("the memory store does not fail");
        world.log(format_args!("{removed:?} of {excess:?}"));
    } else {
        let runs = cluster.memory.prune(end, 100).await.expect("the memory store does not fail");
        world.log(format_args!("{runs} runs before {end} are removed"));
    }
    world.truth(|truth| truth.pruned_before = truth.pruned_before.max(Some(before)));
}

/// Lets the store refuse the work of some runs for good. Some of the servers that asked crash before they have ended
/// the run.
fn reject(cluster: &Arc<Cluster>, duration: Duration) {
    cluster.world.log(format_args!("the store rejects work of some runs for {duration:?}"));
    cluster.health.set(|troubles| troubles.rejects = true);
    let cluster = cluster.clone();
    tokio::spawn(async move {
        let world = &cluster.world;
        let until = Instant::now() + duration;
        let mut known = world.truth(|truth| truth.rejected.len());
        while Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let Some(host) = world.truth(|truth| truth.rejected.get(known).copied()) else { continue };
            known += 1;
            if world.below(2) == 0 {
                tokio::time::sleep(world.up_to(Duration::from_secs(2))).await;
                cluster.crash(host, world.up_to(Duration::from_secs(10)));
            }
        }
        cluster.health.set(|troubles| troubles.rejects = false);
    });
}

/// Registers as a server of an older release, which owns nothing.
async fn join_as_older_server(cluster: Arc<Cluster>, duration: Duration) {
    if !cluster.shape.is_shared {
        return;
    }
    let world = &cluster.world;
    let level =
        level::FIRST + u32::try_from(world.below(u64::from(level::LEVEL - level::FIRST))).unwrap_or(0);
    world.log(format_args!("a server of level {level} is there for {duration:?}"));
    world.truth(|truth| truth.counts.older_servers += 1);
    let until = Instant::now() + duration;
    let mut record = ServerRecord {
        id: ServerId(world.draw(downbeat_core::Dice::uuid)),
        name: "older".to_owned(),
        http: String::new(),
        grpc: String::new(),
        version: "0.0.1".to_owned(),
        started_at: world.now(),
        seen_at: world.now(),
        level,
    };
    while Instant::now() < until {
        record.seen_at = world.now();
        cluster.memory.put_server(&record).await.expect("the memory store does not fail");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    cluster.memory.remove_server(record.id).await.expect("the memory store does not fail");
}
