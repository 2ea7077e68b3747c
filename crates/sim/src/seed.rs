//! Owns one seed from start to verdict: draws the cluster and the faults, runs it, heals it, waits for the end, and
//! checks it.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Once;
use std::time::Duration;

use downbeat_core::ids::NodeId;
use downbeat_store::{Nodes, Runs};
use tokio::time::Instant;

use crate::check::{Checker, Contents, Evidence, Follower, Violation, check};
use crate::client;
use crate::cluster::{Cluster, Shape, Which};
use crate::detection;
use crate::faults::{self, Kinds};
use crate::mute;
use crate::schedules;
use crate::standing::{self, People};
use crate::truth::Counts;
use crate::world::World;

/// How long runs may take to end after everything has healed: longer than any timeout in the product.
const END_TIMEOUT: Duration = Duration::from_secs(45 * 60);
/// How long a replica may take to catch up after that: several pauses and timeouts of its connection.
const COPY_TIMEOUT: Duration = Duration::from_secs(120);
/// The time for the last receipts and feeds.
const DRAIN_TIME: Duration = Duration::from_secs(15);

/// A deliberate defect, to prove that the checkers find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The late result of a lost attempt is applied to the next one.
    NoFencing,
    /// A server that lost a run may still change it.
    NoEpochGuard,
    /// A commit is acknowledged but not made.
    LostCommit,
    /// The feed omits events.
    FeedGap,
    /// Results on an agent's disk do not survive its crash.
    LostOutbox,
    /// Heartbeats are recorded with a time in the future.
    LastingHeartbeats,
    /// Heartbeats are recorded with a time in the past.
    OldHeartbeats,
    /// The end of a run is acknowledged but not recorded.
    LostEnd,
    /// A result is acknowledged to the server, which acts on it, but it is not recorded.
    LostResult,
    /// Leases end earlier than servers promise to agents.
    ShortLeases,
    /// Nodes are taken for silent too early.
    EarlySilence,
    /// Exclusive runs are admitted without holding their nodes.
    NoHolds,
    /// Servers ignore the limit of concurrent runs.
    NoRunLimit,
    /// Agents offer more slots than their hosts have.
    TooManySlots,
    /// Work goes on after its agent has stopped it.
    DeafWork,
    /// A replica gets other results than its primary has.
    ForgedCopy,
    /// Pruning removes runs and events that have to be kept.
    GreedyPrune,
    /// Decisions by an outdated list of standing tasks are committed.
    NoVersionGuard,
    /// Decisions for an outdated session of a node are committed.
    NoSessionGuard,
    /// The task after the last one is committed although the last one did not end like that.
    NoAfterGuard,
    /// A node starts another standing task than the next one.
    OutOfOrder,
    /// A node gets two standing tasks at once.
    SecondStep,
    /// A server does not know the results of standing tasks from before its start.
    ForgottenResults,
    /// The rows of a deleted cluster are not removed.
    KeptRows,
    /// The runs of an outdated decision about schedules are committed.
    NoFiringGuard,
    /// The run of a schedule is acknowledged but not recorded.
    LostFiring,
    /// A time that has a run gets another one with another id.
    SecondFiring,
    /// The constraints of a run are recorded as met, whatever was found.
    ForgedCheck,
    /// The feed does not have the last state of some runs.
    ForgedMove,
    /// A call of the store panics.
    Panic,
}

impl Broken {
    pub const ALL: [Self; Self::Panic as usize + 1] = [
        Self::NoFencing,
        Self::NoEpochGuard,
        Self::LostCommit,
        Self::FeedGap,
        Self::LostOutbox,
        Self::LastingHeartbeats,
        Self::OldHeartbeats,
        Self::LostEnd,
        Self::LostResult,
        Self::ShortLeases,
        Self::EarlySilence,
        Self::NoHolds,
        Self::NoRunLimit,
        Self::TooManySlots,
        Self::DeafWork,
        Self::ForgedCopy,
        Self::GreedyPrune,
        Self::NoVersionGuard,
        Self::NoSessionGuard,
        Self::NoAfterGuard,
        Self::OutOfOrder,
        Self::SecondStep,
        Self::ForgottenResults,
        Self::KeptRows,
        Self::NoFiringGuard,
        Self::LostFiring,
        Self::SecondFiring,
        Self::ForgedCheck,
        Self::ForgedMove,
        Self::Panic,
    ];
}

/// The parameters of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub seed: u64,
    pub broken: Option<Broken>,
    /// Without faults, all runs must succeed quickly.
    pub faults: bool,
    /// All servers are down for hours while agents work.
    pub outage: bool,
    /// An agent is alive and never reports, also without other faults.
    pub mute: bool,
    /// Includes the product's own log in the trace.
    pub log: bool,
}

impl Setup {
    pub fn new(seed: u64) -> Self {
        Self { seed, broken: None, faults: true, outage: false, mute: false, log: false }
    }
}

/// The result of a seed.
#[derive(Debug)]
pub struct Outcome {
    pub seed: u64,
    pub trace: Vec<String>,
    pub violations: Vec<Violation>,
    pub counts: Counts,
    pub simulated: Duration,
}

thread_local! {
    static PANICKED: Cell<bool> = const { Cell::new(false) };
}

/// Makes a panicking task fail the seed of its thread; tokio would only end the task.
fn notice_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let former = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICKED.with(|panicked| panicked.set(true));
            former(panic);
        }));
    });
}

/// Runs one seed on its own thread, so that nothing remains of the previous one.
pub fn run(setup: Setup) -> Outcome {
    notice_panics();
    let simulation = std::thread::Builder::new().name(format!("seed-{}", setup.seed)).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without IO cannot fail to start");
        let mut outcome = runtime.block_on(simulate(setup));
        drop(runtime);
        if PANICKED.with(Cell::get) {
            let what = "a part of the product panicked; the output above says where".to_owned();
            outcome.violations.insert(0, Violation { checker: Checker::Panics, what });
        }
        outcome
    });
    simulation.expect("a thread can be started").join().expect("panics happen in tasks")
}

/// Creates the agents' disks, in memory where possible: they are small and not needed afterwards.
fn disks() -> tempfile::TempDir {
    let memory = PathBuf::from("/dev/shm");
    let within = if memory.is_dir() { memory } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("downbeat-sim-").tempdir_in(within).expect("a directory can be created")
}

fn shape(world: &World, seed: u64) -> Shape {
    let interval_s = [1, 2, 5][world.index(3)];
    let servers = 1 + world.index(3);
    Shape {
        servers,
        is_shared: servers > 1 || world.below(2) == 0,
        server_stale_after: Duration::from_secs(5 + world.below(10)),
        // Some clusters are large.
        agents: if seed % 50 == 21 { 24 + world.index(17) } else { 2 + world.index(3) },
        others: if world.below(3) == 0 { 1 + world.index(2) } else { 0 },
        slots: 1 + u32::try_from(world.below(3)).expect("it is small"),
        heartbeat_interval: Duration::from_secs(interval_s),
        // At most half of a lease: otherwise work that must not overlap cannot be stopped in time.
        grace: world.up_to(Duration::from_secs(interval_s)),
        clock_error: Duration::from_secs(world.below(4)),
        // In every third seed the agents' clocks are hours off: their times must not decide anything.
        agent_clock_error: Duration::from_secs(if seed.is_multiple_of(3) { 7 * 3600 } else { 0 }),
        drift_ppm: world.below(2) * 500,
        max_concurrent_runs: match world.below(3) {
            0 => Some(1 + u32::try_from(world.below(3)).expect("it is small")),
            _ => None,
        },
        has_replica: world.below(3) == 0,
    }
}

async fn simulate(setup: Setup) -> Outcome {
    let world = World::new(setup.seed);
    let _log = setup.log.then(|| crate::trace::log_into(world.clone()));
    let disks = disks();
    let mut shape = shape(&world, setup.seed);
    let kinds = if setup.faults { Kinds::draw(&world) } else { Kinds::default() };
    if !kinds.clocks {
        (shape.clock_error, shape.agent_clock_error, shape.drift_ppm) = (Duration::ZERO, Duration::ZERO, 0);
    }
    world.log(format_args!("seed {}: {shape:?} {kinds:?}", setup.seed));
    let cluster = Cluster::start(&world, setup.seed, shape, disks.path(), setup.broken);
    let faulty = Duration::from_secs(30) + world.up_to(Duration::from_secs(90));
    let mut clients: Vec<_> = (0..2 + world.index(5))
        .map(|number| {
            let cancel = world.below(4) == 0;
            tokio::spawn(client::submit(cluster.clone(), Which::Default, number, faulty / 2, cancel))
        })
        .collect();
    let people = People::draw(&world, shape);
    world.log(format_args!("{people:?}"));
    clients.extend(standing::start(&cluster, people, faulty));
    let schedules = schedules::Plan::draw(setup.seed, setup.faults);
    if schedules.jobs > 0 {
        world.log(format_args!("{schedules:?}"));
        clients.extend(schedules::start(&cluster, schedules, faulty));
    }
    // Few seeds have a mute agent: it takes an hour of simulated time.
    let is_mute = setup.mute || (setup.faults && setup.seed % 40 == 17);
    let mute = is_mute.then(|| mute::start(&cluster, faulty / 2));
    if setup.faults {
        clients.extend(faults::inject(&cluster, kinds, faulty).await);
    } else if mute.is_some() {
        tokio::time::sleep(faulty).await;
    }
    if setup.outage {
        faults::outage(&cluster, faulty / 2).await;
    }
    faults::heal(&cluster);
    let mut violations = Vec::new();
    if kinds.clocks {
        violations.extend(detection::check(&cluster).await);
    }
    if let Some(agent) = mute {
        violations.extend(mute::check(&cluster, agent).await);
    }
    let healed = Instant::now();
    let mut follower = Follower::default();
    loop {
        let mut open = cluster.memory.open_runs().await.expect("the memory store does not fail");
        open.retain(|run| !run.id.is_standing());
        let is_over =
            open.is_empty() && clients.iter().all(|client| client.is_finished()) && cluster.has_started();
        let left = if is_over { left_to_do(&cluster, &mut follower).await } else { Vec::new() };
        if is_over && left.is_empty() {
            break;
        }
        if healed.elapsed() > END_TIMEOUT {
            let open: Vec<String> = open.iter().map(|run| run.id.to_string()).collect();
            let open = open.join(", ");
            let what = format!("{END_TIMEOUT:?} after everything healed these runs have not ended: {open}");
            violations.extend((!is_over).then_some(Violation { checker: Checker::Ends, what }));
            let late = |(checker, what): (Checker, String)| {
                let what = format!("{END_TIMEOUT:?} after everything healed, {what}");
                Violation { checker, what }
            };
            violations.extend(left.into_iter().map(late));
            break;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    world.truth(|truth| (truth.counts.steps, truth.counts.edits) = (follower.steps, follower.edits));
    tokio::time::sleep(DRAIN_TIME).await;
    violations.extend(replica_differs(&cluster).await);
    violations.extend(check(&Evidence::gather(&cluster, setup.broken).await));
    let simulated = world.clock.elapsed();
    let counts = world.truth(|truth| truth.counts);
    Outcome { seed: setup.seed, trace: world.trace.take(), violations, counts, simulated }
}

/// Returns what standing tasks and deleted clusters have left to do, each with the checker of it.
async fn left_to_do(cluster: &Cluster, follower: &mut Follower) -> Vec<(Checker, String)> {
    cluster.world.truth(|truth| {
        let seen = usize::try_from(follower.followed).expect("sequence numbers are small here");
        truth.commits[seen..].iter().for_each(|commit| follower.follow(&commit.event));
    });
    let mut left: Vec<(Checker, String)> =
        follower.unsettled().into_iter().map(|what| (Checker::Standing, what)).collect();
    let agents = (0..cluster.shape.all_agents())
        .filter(|agent| !cluster.may_be_deleted(cluster.cluster_of(*agent)))
        .filter_map(|agent| Some((agent, cluster.node(agent)?)));
    let offline = agents.filter(|(_, node): &(usize, NodeId)| !follower.is_online(*node));
    left.extend(offline.map(|(agent, _)| (Checker::Standing, format!("n{agent} is not online"))));
    for removed in cluster.memory.removed_clusters().await.expect("the memory store does not fail") {
        left.push((Checker::Clusters, format!("rows of {removed}, which was deleted, are left")));
    }
    left
}

/// Waits until the replica has a complete copy. Returns a violation if it does not get there.
async fn replica_differs(cluster: &Cluster) -> Option<Violation> {
    let copy = cluster.copy.as_ref()?;
    let asked = Instant::now();
    loop {
        let primary = Contents::of(&cluster.memory).await;
        let difference = Contents::of(copy).await.difference(&primary)?;
        if asked.elapsed() > COPY_TIMEOUT {
            let what = format!("{COPY_TIMEOUT:?} after the end the replica differs: {difference}");
            return Some(Violation { checker: Checker::Replica, what });
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
