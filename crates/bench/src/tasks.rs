//! `bench tasks`: no-op executions, placed on real agents, from submit to durable result.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use clap::Args;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde_json::{Value, json};

use super::figures::{Figures, Latencies};
use super::process::own_cpu_seconds;
use super::server::{SUCCEEDED, Server, next_event};
use super::shares::{Meter, changes_per_commit, ms_per_commit};
use super::site::{Site, Wanted, within};
use crate::failure::Result;
use crate::{Note, cleaning};

#[derive(Clone, Debug, Args)]
pub(crate) struct TasksArgs {
    /// Number of executions
    #[arg(long, default_value_t = 100_000)]
    pub(super) n: u64,
    /// Number of agents, each with its own connection
    #[arg(long, default_value_t = 8)]
    pub(super) nodes: u32,
    /// Slots of each agent
    #[arg(long, default_value_t = 256)]
    pub(super) slots: u32,
    /// Executions in one run
    #[arg(long, default_value_t = 1_000)]
    per_run: u64,
    /// Runs that are submitted at once
    #[arg(long, default_value_t = 4)]
    submitters: usize,
    /// Single tasks in sequence, for the latency
    #[arg(long, default_value_t = 500)]
    singles: u32,
    /// Servers that share the store; agents and submitters are spread over them
    #[arg(long, default_value_t = 1)]
    pub(super) servers: u32,
    /// sqlite (a fresh file), or a PostgreSQL in which a database is created and dropped: postgres://…
    #[arg(long, default_value = "sqlite")]
    pub(super) store: String,
    /// Measure in turns without and with the removal of old executions at the same time, and show what it costs
    #[arg(long)]
    beside_cleaning: bool,
    /// Old executions in the store, with --beside-cleaning
    #[arg(long, default_value_t = 1_000_000, requires = "beside_cleaning")]
    pub(super) old: u64,
    /// Measurements of each kind, with --beside-cleaning
    #[arg(long, default_value_t = 3, requires = "beside_cleaning")]
    pub(super) rounds: u32,
}

/// The first tasks of a server warm up connections and caches.
const WARM_UP: u32 = 20;

pub(super) async fn measure(args: TasksArgs, note: Note) -> Result<Figures> {
    if args.beside_cleaning {
        return cleaning::measure(&args, note).await;
    }
    let wanted = Wanted::new(&args.store, args.servers);
    within(&[wanted], async |sites: &mut [Site]| load(&sites[0], &args, note).await).await
}

async fn load(site: &Site, args: &TasksArgs, note: Note) -> Result<Figures> {
    let agents = site.join(args.nodes, args.slots).await?;
    let figures = load_agents(site, args, note).await;
    drop(agents);
    figures
}

/// Measures a site that agents have joined.
pub(super) async fn load_agents(site: &Site, args: &TasksArgs, note: Note) -> Result<Figures> {
    note(&format!("{} single tasks, one after the other", args.singles));
    let mut latencies = Latencies::default();
    let servers = u32::try_from(site.servers.len()).unwrap_or(u32::MAX);
    for (server, number) in site.servers.iter().zip(0..) {
        let share = args.singles / servers + u32::from(number < args.singles % servers);
        singles(server, share, &mut latencies).await?;
    }

    note(&format!("{} executions in runs of {}", args.n, args.per_run));
    let server = site.first();
    let before = server.metrics().await?.get(SUCCEEDED);
    let (meter, events_before) = (Meter::begin(site).await?, server.last_seq().await?);
    let own_before = own_cpu_seconds();
    let begun = Instant::now();
    let per_run = args.per_run.max(1);
    let runs = (0..args.n.div_ceil(per_run)).map(|run| (run, per_run.min(args.n - run * per_run)));
    stream::iter(runs)
        .map(|(run, size)| async move { site.server(run).submit(&job(size)).await.map(drop) })
        .buffer_unordered(args.submitters)
        .try_collect::<()>()
        .await?;
    let submitted = begun.elapsed();
    server.reached(SUCCEEDED, before + args.n as f64, Duration::from_millis(10)).await?;
    let seconds = begun.elapsed().as_secs_f64();

    let (shares, events) = (meter.end(site).await?, server.last_seq().await? - events_before);
    let changes: f64 = shares.iter().map(|share| share.changes).sum();
    let more = BTreeMap::from([
        // Mostly changes that another server committed first. Every accepted change is an event.
        ("changes refused", (changes - events as f64).max(0.0)),
        ("submitted after seconds", submitted.as_secs_f64()),
        ("changes per commit", changes_per_commit(&shares)),
        ("ms per commit", ms_per_commit(&shares)),
        ("agents and bench cpu", own_cpu_seconds() - own_before),
    ]);
    let name = ("tasks", "executions");
    let figures = Figures::new(name, &site.store, args.n, args.nodes, seconds, &latencies);
    Ok(Figures { more, ..figures.of_servers(site, shares) })
}

/// Returns parallel no-ops: a root, and all others after it.
pub(super) fn job(size: u64) -> Value {
    let mut tasks = vec![json!({"name": "root", "backend": "test", "action": "noop"})];
    tasks.extend((1..size).map(|index| {
        json!({"name": format!("t{index}"), "backend": "test", "action": "noop", "depends_on": ["root"]})
    }));
    json!({"name": "bench", "tasks": tasks})
}

/// Submits one task after the other, and waits for each result as a client does: on the live stream.
async fn singles(server: &Server, count: u32, latencies: &mut Latencies) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    let mut events = server.events().await?;
    let definition = json!({"name": "single", "tasks": [{"backend": "test", "action": "noop"}]});
    for round in 0..count + WARM_UP {
        let begun = Instant::now();
        let id = server.submit(&definition).await?;
        loop {
            let event = next_event(&mut events, || format!("run {id} has no result")).await?;
            if event.name == "execution_finished" && event.data.contains(&id) {
                break;
            }
        }
        if round >= WARM_UP {
            latencies.add(begun.elapsed());
        }
    }
    Ok(())
}
