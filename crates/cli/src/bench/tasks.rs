//! `bench tasks`: no-op executions, placed on real agents, from submit to durable result.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use downbeat_agent::{Agent, Grpc, Handle, Settings};
use futures_util::{StreamExt, TryStreamExt, stream};
use serde_json::{Value, json};

use super::figures::{Figures, Latencies};
use super::site::{STUCK, Site, cannot};
use crate::exit::Failure;
use crate::out::Out;

#[derive(Debug, Args)]
pub(crate) struct TasksArgs {
    /// Executions
    #[arg(long, default_value_t = 100_000)]
    n: u64,
    /// Agents, each with a connection of its own
    #[arg(long, default_value_t = 8)]
    nodes: u32,
    /// Slots of each agent
    #[arg(long, default_value_t = 256)]
    slots: u32,
    /// Executions in one run
    #[arg(long, default_value_t = 1_000)]
    per_run: u64,
    /// Runs that are submitted at once
    #[arg(long, default_value_t = 4)]
    submitters: usize,
    /// Single tasks, one after the other, for the latency
    #[arg(long, default_value_t = 500)]
    singles: u32,
    /// sqlite (a fresh file), or a location as `server --store` takes it
    #[arg(long, default_value = "sqlite")]
    store: String,
}

pub(super) async fn measure(args: TasksArgs, out: Out) -> Result<Figures, Failure> {
    let site = Site::start(&args.store).await?;
    let agents: Vec<Handle> = (0..args.nodes).map(|index| agent(&site, index, args.slots)).collect();
    site.reached(r#"downbeat_nodes{status="online"}"#, f64::from(args.nodes), Duration::from_millis(20))
        .await?;

    out.note(&format!("{} single tasks, one after the other", args.singles));
    let latencies = singles(&site, args.singles).await?;

    out.note(&format!("{} executions in runs of {}", args.n, args.per_run));
    let done = r#"downbeat_executions_total{outcome="succeeded"}"#;
    let before = site.metric(done).await?;
    let cpu_before = site.cpu_seconds();
    let own_before = own_cpu_seconds();
    let begun = Instant::now();
    let per_run = args.per_run.max(1);
    let sizes = (0..args.n.div_ceil(per_run)).map(|run| per_run.min(args.n - run * per_run));
    stream::iter(sizes)
        .map(|size| {
            let site = &site;
            async move { site.submit(&job(size)).await.map(drop) }
        })
        .buffer_unordered(args.submitters)
        .try_collect::<()>()
        .await?;
    let submitted = begun.elapsed();
    site.reached(done, before + args.n as f64, Duration::from_millis(10)).await?;
    let seconds = begun.elapsed().as_secs_f64();

    let batches = site.metric("downbeat_commit_batch_size_count").await?;
    let changes = site.metric("downbeat_commit_batch_size_sum").await?;
    let commit_seconds = site.metric("downbeat_commit_seconds_sum").await?;
    let more = BTreeMap::from([
        ("submitted after seconds", submitted.as_secs_f64()),
        ("changes per commit", changes / batches.max(1.0)),
        ("ms per commit", commit_seconds * 1e3 / batches.max(1.0)),
        ("agents and bench cpu", own_cpu_seconds() - own_before),
    ]);
    let figures = Figures {
        load: "tasks",
        store: site.store.clone(),
        n: args.n,
        nodes: args.nodes,
        seconds,
        per_second: args.n as f64 / seconds,
        p50_ms: latencies.ms(0.5),
        p99_ms: latencies.ms(0.99),
        server_rss_bytes: site.rss_bytes(),
        server_cpu_seconds: site.cpu_seconds() - cpu_before,
        more,
    };
    drop(agents);
    Ok(figures)
}

fn agent(site: &Site, index: u32, slots: u32) -> Handle {
    let hostname = format!("bench-{index}");
    let mut settings = Settings::new(site.data(&hostname));
    settings.servers = vec![site.grpc.clone()];
    settings.hostname = hostname;
    settings.slots = slots;
    Agent::start(settings, Arc::new(Grpc))
}

/// Parallel no-ops: a root, and all others after it.
fn job(size: u64) -> Value {
    let mut tasks = vec![json!({"name": "root", "backend": "test", "action": "noop"})];
    tasks.extend((1..size).map(|index| {
        json!({"name": format!("t{index}"), "backend": "test", "action": "noop", "depends_on": ["root"]})
    }));
    json!({"name": "bench", "tasks": tasks})
}

/// Submits one task after the other, and waits for each result as a client does: on the live stream.
async fn singles(site: &Site, count: u32) -> Result<Latencies, Failure> {
    let mut latencies = Latencies::new()?;
    let mut events = site.events().await?;
    let definition = json!({"name": "single", "tasks": [{"backend": "test", "action": "noop"}]});
    let mut text = String::new();
    for round in 0..count + 20 {
        let begun = Instant::now();
        let id = site.submit(&definition).await?;
        let wanted = |line: &str| line.contains("execution_finished") && line.contains(&id);
        while !text.lines().any(wanted) {
            let chunk = tokio::time::timeout(STUCK, events.chunk()).await;
            let chunk = chunk
                .map_err(|_| Failure::bug(format!("run {id} has no result after {} s", STUCK.as_secs())))?;
            let chunk = chunk.map_err(|error| cannot("follow events", &error))?;
            let chunk = chunk.ok_or_else(|| Failure::bug("the event stream ended"))?;
            text.push_str(&String::from_utf8_lossy(&chunk));
        }
        // The first ones warm up connections and caches.
        if round >= 20 {
            latencies.add(begun.elapsed());
        }
        text.clear();
    }
    Ok(latencies)
}

/// User and system time of this process, which holds the agents.
pub(super) fn own_cpu_seconds() -> f64 {
    use nix::sys::resource::{UsageWho, getrusage};
    use nix::sys::time::TimeValLike;
    getrusage(UsageWho::RUSAGE_SELF).map_or(0.0, |usage| {
        (usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64 / 1e6
    })
}
