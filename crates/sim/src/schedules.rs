//! Owns the people who apply, change, pause, resume and delete jobs with schedules, and the faults that only schedules
//! notice: clocks that are set by an hour, and a server that is suspended. What happens here has dice of its own, so that a
//! seed without stored jobs stays as it was before there were any.

use std::sync::Arc;
use std::time::Duration;

use downbeat_core::Dice;
use downbeat_core::backend::Catalogue;
use downbeat_core::ids::ClusterId;
use downbeat_core::job::JobKey;
use downbeat_core::spec::{Definition, from_json};
use downbeat_server::{Class, Error, Mode, Service};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::client::{SIM, ask};
use crate::cluster::Cluster;
use crate::jobs::stored_job;
use crate::world::HostId;

/// Makes these dice differ from those of the rest of the seed.
const STREAM: u64 = 0x5c4e_d01e_5c4e_d01e;
/// The most jobs: few, so that their runs leave room for others.
const JOBS: u64 = 3;
const HOUR_US: i64 = 3_600_000_000;
/// How long schedules go on after everything has healed: longer than [`SETTLE`].
const AFTERWARDS: Duration = Duration::from_secs(85);
/// How long after the healing schedules may be behind: servers start, and a server of an earlier release leaves.
pub(crate) const SETTLE: Duration = Duration::from_secs(60);

/// What a seed has of schedules.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// None in most seeds.
    pub(crate) jobs: u64,
    /// Clocks are set by an hour, also while no server runs.
    sets_clocks: bool,
    suspends: bool,
    seed: u64,
}

impl Plan {
    pub(crate) fn draw(seed: u64, has_faults: bool) -> Self {
        let mut dice = Dice::new(seed ^ STREAM);
        let jobs = if dice.below(3) == 0 { 1 + dice.below(JOBS) } else { 0 };
        let has_faults = has_faults && jobs > 0;
        let (sets_clocks, suspends) = (dice.below(2) == 0, dice.below(2) == 0);
        Self {
            jobs,
            sets_clocks: has_faults && sets_clocks,
            suspends: has_faults && suspends,
            seed: dice.next_u64(),
        }
    }

    fn dice(&self, of: u64) -> Dice {
        Dice::new(self.seed ^ (of << 32))
    }
}

/// Starts everybody. They finish some time after everything has healed.
pub(crate) fn start(cluster: &Arc<Cluster>, plan: Plan, within: Duration) -> Vec<JoinHandle<()>> {
    let mut all: Vec<_> = (0..plan.jobs)
        .map(|number| tokio::spawn(keep_job(cluster.clone(), number, plan.dice(number), within)))
        .collect();
    if plan.sets_clocks {
        all.push(tokio::spawn(set_clocks(cluster.clone(), plan.dice(JOBS), within)));
    }
    if plan.suspends {
        all.push(tokio::spawn(suspend(cluster.clone(), plan.dice(JOBS + 1), within)));
    }
    all
}

#[derive(Clone, Debug)]
enum Act {
    Apply(Box<Definition>),
    Pause(bool),
    Delete,
}

fn seconds(dice: &mut Dice, most: u64) -> Duration {
    dice.up_to(Duration::from_secs(most))
}

/// Looks after one job: changes it until everything heals, lets it run for a while, and ends it.
async fn keep_job(cluster: Arc<Cluster>, number: u64, mut dice: Dice, within: Duration) {
    let key = JobKey::new(ClusterId::DEFAULT, format!("j{number}"));
    let until = Instant::now() + within;
    tokio::time::sleep(dice.up_to(within / 8)).await;
    let pause = 2 + dice.below(25);
    while Instant::now() < until {
        let act = match dice.below(10) {
            0..4 => Act::Apply(Box::new(definition(&key, &mut dice))),
            4 | 5 => Act::Pause(true),
            6..9 => Act::Pause(false),
            _ => Act::Delete,
        };
        carry_out(&cluster, &key, act).await;
        tokio::time::sleep(seconds(&mut dice, pause)).await;
    }
    while !cluster.is_healed() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    until_done(&cluster, &key, Act::Apply(Box::new(definition(&key, &mut dice)))).await;
    until_done(&cluster, &key, Act::Pause(false)).await;
    tokio::time::sleep(AFTERWARDS).await;
    let end = if dice.below(2) == 0 { Act::Pause(true) } else { Act::Delete };
    until_done(&cluster, &key, end).await;
}

fn definition(key: &JobKey, dice: &mut Dice) -> Definition {
    let job = stored_job(&key.name, dice);
    from_json(&job, &Catalogue::builtin())
        .unwrap_or_else(|problems| panic!("a random stored job is invalid: {problems:?} in {job:#}"))
}

/// Asks a server. Returns whether one has decided, whatever it decided.
async fn carry_out(cluster: &Cluster, key: &JobKey, act: Act) -> bool {
    let shown = match &act {
        Act::Apply(definition) => serde_json::to_string(&definition.schedule).unwrap_or_default(),
        other => format!("{other:?}"),
    };
    let answer = ask(cluster, |service| perform(service, key.clone(), act)).await;
    let is_decided = match &answer {
        Some(Ok(())) => true,
        Some(Err(error)) => !matches!(error.class(), Class::Unavailable | Class::Busy),
        None => false,
    };
    let answer = answer.map(|answer| answer.map_err(|error| error.to_string()));
    cluster.world.log(format_args!("job {}: {shown}: {answer:?}", key.name));
    is_decided
}

async fn perform(service: Service, key: JobKey, act: Act) -> Result<(), Error> {
    match act {
        Act::Apply(definition) => service.apply_job(&SIM, *definition, Mode::Commit).await.map(drop),
        Act::Pause(paused) => service.pause_job(&SIM, &key, paused).await.map(drop),
        Act::Delete => service.delete_job(&SIM, &key).await,
    }
}

async fn until_done(cluster: &Cluster, key: &JobKey, act: Act) {
    while !carry_out(cluster, key, act.clone()).await {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Sets the clocks of the store and of all servers by an hour. Servers that run do not follow such a step; those that start
/// do, so that sometimes all of them start after it.
async fn set_clocks(cluster: Arc<Cluster>, mut dice: Dice, within: Duration) {
    let until = Instant::now() + within;
    let world = &cluster.world;
    loop {
        tokio::time::sleep(within / 6 + dice.up_to(within / 2)).await;
        if Instant::now() >= until {
            return;
        }
        let by_us = if dice.below(2) == 0 { HOUR_US } else { -HOUR_US };
        world.log(format_args!("the clocks of the store and of all servers are set by {by_us} µs"));
        world.truth(|truth| truth.counts.clock_jumps += 1);
        cluster.jump_servers(|| by_us);
        if dice.below(2) == 0 {
            let gone = seconds(&mut dice, 20);
            (0..cluster.shape.servers).for_each(|number| cluster.crash(HostId::Server(number), gone));
        }
    }
}

/// Suspends servers: nothing enters or leaves them for a while, and then their clock has jumped.
async fn suspend(cluster: Arc<Cluster>, mut dice: Dice, within: Duration) {
    let until = Instant::now() + within;
    loop {
        tokio::time::sleep(within / 8 + dice.up_to(within / 3)).await;
        if Instant::now() >= until {
            return;
        }
        let server = usize::try_from(dice.below(cluster.shape.servers as u64)).expect("it is small");
        let (duration, jump) = (seconds(&mut dice, 30), dice.below(2) == 0);
        cluster.suspend(server, duration);
        tokio::time::sleep(duration).await;
        if jump {
            cluster.clock(HostId::Server(server)).jump(HOUR_US);
        }
    }
}
