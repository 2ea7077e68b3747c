//! Owns one seed from its beginning to its verdict: draws what there is, lets it run, heals it, waits for the end, and
//! has it checked.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Once;
use std::time::Duration;

use downbeat_store::Runs;
use tokio::time::Instant;

use crate::check::{Checker, Evidence, Violation, check};
use crate::client;
use crate::cluster::{Cluster, Shape};
use crate::faults::{self, Kinds};
use crate::truth::Counts;
use crate::world::World;

/// How long runs may take to end once everything is well: longer than any wait in the product.
const PATIENCE: Duration = Duration::from_secs(45 * 60);
/// For the last words: receipts, feeds.
const AFTERMATH: Duration = Duration::from_secs(15);

/// What is broken on purpose, to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The late result of a lost attempt counts for the next one.
    NoFencing,
    /// A server that lost a run may still change it.
    NoEpochGuard,
    /// A commit is acknowledged and not made.
    LostCommit,
    /// The feed leaves events out.
    FeedGap,
    /// Results on an agent's disk do not survive its crash.
    LostOutbox,
}

/// What to simulate.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub seed: u64,
    pub broken: Option<Broken>,
    /// Without faults it has to go well, and fast.
    pub faults: bool,
    /// The product's own log goes into the trace.
    pub log: bool,
}

impl Setup {
    pub fn new(seed: u64) -> Self {
        Self { seed, broken: None, faults: true, log: false }
    }
}

/// What came of it.
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

/// A task that panics is only a task to tokio; here it is a failure of the seed whose thread it is.
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

/// Runs one seed on a thread of its own, so that nothing is left of the one before.
pub fn run(setup: Setup) -> Outcome {
    notice_panics();
    let simulation = std::thread::Builder::new().name(format!("seed-{}", setup.seed)).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without IO needs nothing of the system");
        let mut outcome = runtime.block_on(simulate(setup));
        drop(runtime);
        if PANICKED.with(Cell::get) {
            let what = "a part of the product panicked; the output above says where".to_owned();
            outcome.violations.insert(0, Violation { checker: Checker::Panics, what });
        }
        outcome
    });
    simulation.expect("a thread can be started").join().expect("what panics in a seed panics in a task")
}

/// In memory where there is such a place: a seed's disks are small, and nobody reads them afterwards.
fn disks() -> tempfile::TempDir {
    let memory = PathBuf::from("/dev/shm");
    let within = if memory.is_dir() { memory } else { std::env::temp_dir() };
    tempfile::Builder::new()
        .prefix("downbeat-sim-")
        .tempdir_in(within)
        .expect("there is room for a directory")
}

fn shape(world: &World, seed: u64) -> Shape {
    let interval_s = [1, 2, 5][usize::try_from(world.below(3)).expect("an index fits")];
    let servers = 1 + usize::try_from(world.below(3)).expect("it is small");
    Shape {
        servers,
        is_shared: servers > 1 || world.below(2) == 0,
        server_stale_after: Duration::from_secs(5 + world.below(10)),
        agents: 2 + usize::try_from(world.below(3)).expect("it is small"),
        slots: 1 + u32::try_from(world.below(3)).expect("it is small"),
        heartbeat_interval: Duration::from_secs(interval_s),
        // At most half of a term: else what must not overlap cannot be ended in time.
        grace: world.up_to(Duration::from_secs(interval_s)),
        clock_error: Duration::from_secs(world.below(4)),
        // In every third seed agents are hours off: what they say of time decides nothing.
        agent_clock_error: if seed.is_multiple_of(3) {
            Duration::from_secs(7 * 3600)
        } else {
            Duration::ZERO
        },
        drift_ppm: world.below(2) * 500,
        max_concurrent_runs: match world.below(3) {
            0 => Some(1 + u32::try_from(world.below(3)).expect("it is small")),
            _ => None,
        },
    }
}

async fn simulate(setup: Setup) -> Outcome {
    let world = World::new(setup.seed);
    let _log = setup.log.then(|| crate::trace::log_into(world.clone()));
    let disks = disks();
    let mut shape = shape(&world, setup.seed);
    let kinds = if setup.faults { Kinds::draw(&world) } else { Kinds::none() };
    if !kinds.clocks {
        (shape.clock_error, shape.agent_clock_error, shape.drift_ppm) = (Duration::ZERO, Duration::ZERO, 0);
    }
    world.say(format_args!("seed {}: {shape:?} {kinds:?}", setup.seed));
    let cluster = Cluster::start(&world, setup.seed, shape, disks.path(), setup.broken);
    let faulty = Duration::from_secs(30) + world.up_to(Duration::from_secs(90));
    let clients: Vec<_> = (0..2 + world.below(5))
        .map(|number| {
            let cancel = world.below(4) == 0;
            let number = usize::try_from(number).expect("it is small");
            tokio::spawn(client::submit(cluster.clone(), number, faulty / 2, cancel))
        })
        .collect();
    if setup.faults {
        faults::strike(&cluster, kinds, faulty).await;
    }
    faults::heal(&cluster);
    let healed = Instant::now();
    let mut violations = Vec::new();
    loop {
        let open = cluster.memory.open_runs().await.expect("memory answers");
        if open.is_empty() && clients.iter().all(|client| client.is_finished()) {
            break;
        }
        if healed.elapsed() > PATIENCE {
            let open: Vec<String> = open.iter().map(|run| run.id.to_string()).collect();
            let what =
                format!("{PATIENCE:?} after all healed these runs have not ended: {}", open.join(", "));
            violations.push(Violation { checker: Checker::Ends, what });
            break;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    tokio::time::sleep(AFTERMATH).await;
    violations.extend(check(&Evidence::gather(&cluster, setup.broken).await));
    let simulated = world.clock.elapsed();
    let counts = world.truth(|truth| truth.counts);
    Outcome { seed: setup.seed, trace: world.trace.take(), violations, counts, simulated }
}
