//! `bench fleet`: barrier steps over many simulated nodes, each with its own connection and session.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use clap::Args;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde_json::{Value, json};

use super::figures::{Figures, Latencies};
use super::node::Node;
use super::server::cannot;
use super::shares::Meter;
use super::site::{Site, Wanted, within};
use super::tasks::own_cpu_seconds;
use crate::exit::Failure;
use crate::out::Out;

/// Nodes that join at the same time: the listener's queue is short.
const JOINING: usize = 64;

#[derive(Debug, Args)]
pub(crate) struct FleetArgs {
    /// Simulated nodes
    #[arg(long, default_value_t = 1_000)]
    nodes: u32,
    /// Steps in the list; each is a barrier
    #[arg(long, default_value_t = 1)]
    steps: u32,
    /// How often the list is run
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// sqlite (a fresh file), or a PostgreSQL, in which a database is made and dropped: postgres://…
    #[arg(long, default_value = "sqlite")]
    store: String,
}

pub(super) async fn measure(args: FleetArgs, out: Out) -> Result<Figures, Failure> {
    within(&[Wanted::new(&args.store, 1)], async |sites: &mut [Site]| load(&sites[0], &args, out).await).await
}

async fn load(site: &Site, args: &FleetArgs, out: Out) -> Result<Figures, Failure> {
    let server = site.first();
    out.note(&format!("{} nodes join", args.nodes));
    let nodes: Vec<Node> = stream::iter(0..args.nodes)
        .map(|index| Node::join(&server.grpc, format!("sim-{index:05}")))
        .buffer_unordered(JOINING)
        .try_collect()
        .await
        .map_err(|fault| cannot("join", &fault))?;
    let serving: Vec<_> = nodes.into_iter().map(|node| tokio::spawn(node.serve())).collect();
    server.reached("downbeat_polls_parked", f64::from(args.nodes), Duration::from_millis(20)).await?;

    let ended = r#"downbeat_runs{state="completed"}"#;
    let mut latencies = Latencies::new()?;
    let meter = Meter::begin(site).await?;
    let (mut total, cpu_before, own_before) = (Duration::ZERO, site.cpu_seconds(), own_cpu_seconds());
    for round in 0..args.rounds {
        out.note(&format!("round {} of {}", round + 1, args.rounds));
        let before = server.metrics().await?.get(ended);
        let begun = Instant::now();
        server.submit(&job(args.steps)).await?;
        server.reached(ended, before + 1.0, Duration::from_millis(2)).await?;
        latencies.add(begun.elapsed());
        total += begun.elapsed();
        server.reached("downbeat_polls_parked", f64::from(args.nodes), Duration::from_millis(5)).await?;
    }
    let n = u64::from(args.nodes) * u64::from(args.steps) * u64::from(args.rounds);
    let per_round = total.as_secs_f64() / f64::from(args.rounds.max(1));
    let figures = Figures {
        load: "fleet",
        counted: "executions",
        store: site.store.clone(),
        n,
        nodes: args.nodes,
        seconds: total.as_secs_f64(),
        per_second: n as f64 / total.as_secs_f64(),
        p50_ms: latencies.ms(0.5),
        p99_ms: latencies.ms(0.99),
        server_rss_bytes: site.rss_bytes(),
        server_cpu_seconds: site.cpu_seconds() - cpu_before,
        more: BTreeMap::from([
            ("seconds per run", per_round),
            ("us per execution", total.as_secs_f64() * 1e6 / n.max(1) as f64),
            ("nodes' cpu", own_cpu_seconds() - own_before),
        ]),
        servers: meter.end(site).await?,
    };
    serving.iter().for_each(tokio::task::JoinHandle::abort);
    Ok(figures)
}

fn job(steps: u32) -> Value {
    let step = json!({"backend": "test", "action": "noop"});
    json!({"name": "fleet", "target": "all", "tasks": vec![step; steps as usize]})
}
