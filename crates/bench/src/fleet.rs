//! `bench fleet`: barrier steps over many simulated nodes, each with its own connection and session, in a separate
//! process. Measures from submit to the end of the run, with every result durable.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};

use super::figures::{Figures, Latencies};
use super::nodes::Nodes;
use super::process;
use super::server::PARKED;
use super::shares::{Meter, cpu_seconds};
use super::site::{Site, Wanted, within};
use crate::Note;
use crate::failure::{Failure, Result};
use crate::page::Part;

/// The sizes of `--scale`: nodes, and steps of the list.
const SIZES: [(u32, u32); 6] = [(100, 1), (300, 1), (1_000, 1), (3_000, 1), (9_000, 1), (1_000, 10)];

#[derive(Debug, Args)]
pub(crate) struct FleetArgs {
    /// Number of simulated nodes
    #[arg(long, default_value_t = 1_000)]
    nodes: u32,
    /// Steps in the list; each is a barrier
    #[arg(long, default_value_t = 1)]
    steps: u32,
    /// How often to run the list
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// One step over 100, 300, 1,000, 3,000 and 9,000 nodes, and ten steps over 1,000: is the cost per node the same?
    #[arg(long, conflicts_with_all = ["nodes", "steps"])]
    scale: bool,
    /// sqlite (a fresh file), or a PostgreSQL in which a database is created and dropped: postgres://…
    #[arg(long, default_value = "sqlite")]
    store: String,
}

/// The result of one load, or of several with growing size.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Fleet {
    One(Figures),
    Scale {
        /// The largest size.
        #[serde(flatten)]
        largest: Box<Figures>,
        sizes: Vec<Figures>,
    },
}

impl Fleet {
    pub(super) fn page(&self) -> Vec<Part> {
        match self {
            Fleet::One(figures) => figures.page(),
            Fleet::Scale { sizes, .. } => vec![scale_table(sizes)],
        }
    }
}

pub(super) async fn measure(args: FleetArgs, note: Note) -> Result<Fleet> {
    if args.nodes == 0 || args.steps == 0 || args.rounds == 0 {
        return Err(Failure::bad_input("--nodes, --steps and --rounds must be more than 0"));
    }
    let sizes = if args.scale { &SIZES[..] } else { &[(args.nodes, args.steps)] };
    let mut all = Vec::new();
    for &(nodes, steps) in sizes {
        process::make_room_for(nodes)?;
        let wanted = [Wanted::new(&args.store, 1)];
        let size = Size { nodes, steps, rounds: args.rounds };
        all.push(within(&wanted, async |sites: &mut [Site]| size.load(&sites[0], note).await).await?);
    }
    let largest = (0..all.len()).max_by_key(|index| all[*index].nodes).unwrap_or(0);
    if !args.scale {
        return Ok(Fleet::One(all.swap_remove(largest)));
    }
    Ok(Fleet::Scale { largest: Box::new(all[largest].clone()), sizes: all })
}
struct Size {
    nodes: u32,
    steps: u32,
    rounds: u32,
}

impl Size {
    async fn load(&self, site: &Site, note: Note) -> Result<Figures> {
        let server = site.first();
        note(&format!("{} nodes join", self.nodes));
        let begun = Instant::now();
        let mut nodes = Nodes::start(&server.grpc, self.nodes)?;
        let process = nodes.id();
        tokio::select! {
            failure = nodes.failed() => Err(failure),
            figures = async {
                server.reached(PARKED, f64::from(self.nodes), Duration::from_millis(20)).await?;
                self.rounds(site, process, begun.elapsed(), note).await
            } => figures,
        }
    }

    async fn rounds(&self, site: &Site, nodes: u32, joined: Duration, note: Note) -> Result<Figures> {
        let (server, meter) = (site.first(), Meter::begin(site).await?);
        let nodes_before = process::cpu_seconds(nodes);
        let (mut latencies, mut total) = (Latencies::default(), Duration::ZERO);
        // A request costs the server time per node: the pause between requests limits the precision.
        let every = Duration::from_micros(u64::from(self.nodes)).clamp(LOOK_LEAST, LOOK_MOST);
        for round in 1..=self.rounds {
            let (_, took) = server.round(&job(self.steps), self.nodes, every).await?;
            note(&format!("round {round} of {}: {:.0} ms", self.rounds, took.as_secs_f64() * 1e3));
            latencies.add(took);
            total += took;
        }
        let n = u64::from(self.nodes) * u64::from(self.steps) * u64::from(self.rounds);
        let us_per = |seconds: f64| seconds * 1e6 / n as f64;
        let servers = meter.end(site).await?;
        let nodes_cpu_seconds = process::cpu_seconds(nodes) - nodes_before;
        let seconds = total.as_secs_f64();
        let figures = Figures::new(("fleet", "executions"), &site.store, n, self.nodes, seconds, &latencies);
        Ok(Figures {
            more: BTreeMap::from([
                ("steps", f64::from(self.steps)),
                ("rounds", f64::from(self.rounds)),
                ("min ms", latencies.least_ms()),
                ("max ms", latencies.most_ms()),
                ("seconds until all nodes were online", joined.as_secs_f64()),
                ("us per node", latencies.ms(0.5) * 1e3 / f64::from(self.nodes)),
                ("us per execution", latencies.ms(0.5) * 1e3 / f64::from(self.nodes * self.steps)),
                ("server cpu us per execution", us_per(cpu_seconds(&servers))),
                ("nodes cpu us per execution", us_per(nodes_cpu_seconds)),
                ("nodes cpu seconds", nodes_cpu_seconds),
            ]),
            ..figures.of_servers(site, servers)
        })
    }
}

const LOOK_LEAST: Duration = Duration::from_millis(1);
const LOOK_MOST: Duration = Duration::from_millis(10);

fn job(steps: u32) -> Value {
    let step = json!({"backend": "test", "action": "noop"});
    json!({"name": "fleet", "target": "all", "tasks": vec![step; steps as usize]})
}

fn scale_table(sizes: &[Figures]) -> Part {
    let more = |size: &Figures, name: &str| size.more.get(name).copied().unwrap_or_default();
    let micros = |size: &Figures, name: &str| format!("{:.0} µs", more(size, name));
    Part::table(
        sizes,
        &[
            ("nodes", &|size| size.nodes.to_string()),
            ("steps", &|size| format!("{:.0}", more(size, "steps"))),
            ("median", &|size| format!("{:.0} ms", size.p50_ms)),
            ("least", &|size| format!("{:.0} ms", more(size, "min ms"))),
            ("most", &|size| format!("{:.0} ms", more(size, "max ms"))),
            ("per execution", &|size| micros(size, "us per execution")),
            ("server cpu", &|size| micros(size, "server cpu us per execution")),
            ("nodes cpu", &|size| micros(size, "nodes cpu us per execution")),
            ("all online after", &|size| {
                format!("{:.1} s", more(size, "seconds until all nodes were online"))
            }),
            ("server memory", &|size| format!("{:.0} MiB", size.server_rss_bytes as f64 / 1_048_576.0)),
        ],
    )
}
