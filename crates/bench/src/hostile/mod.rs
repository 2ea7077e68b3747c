//! `bench hostile`: what one client, run or fleet can do to a server. Each attack has a fresh server; small runs and
//! health checks go on beside it, first without the attack and then with it.

mod attacks;
mod probe;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde::Serialize;

use self::attacks::{Attack, LEAST, MOST, Target};
use self::probe::Beside;
use super::figures::Latencies;
use super::nodes::Nodes;
use super::process;
use super::server::ONLINE;
use super::site::{Site, Wanted, within};
use crate::Note;
use crate::failure::{Failure, Result};
use crate::page::Part;

#[derive(Debug, Args)]
pub(crate) struct HostileArgs {
    /// The size of the attacks: the largest fleet has this many nodes, and all other sizes are in proportion
    #[arg(long, default_value_t = MOST)]
    n: u32,
    /// Only these attacks; default: all
    #[arg(long, value_enum)]
    only: Vec<Attack>,
    /// How long the server is observed without an attack, and with it at least, in seconds
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// How long an attack may take before it is given up, in seconds
    #[arg(long, default_value_t = 60.0)]
    patience: f64,
    /// The program whose servers are attacked, for example an older release; default: this one
    #[arg(long)]
    program: Option<PathBuf>,
    /// sqlite (a fresh file), or a PostgreSQL in which a database is created and dropped: postgres://…
    #[arg(long, default_value = "sqlite")]
    store: String,
}

/// The result of one attack.
#[derive(Debug, Serialize)]
struct Scenario {
    attack: &'static str,
    what: String,
    nodes: u32,
    /// How the attack ended.
    outcome: String,
    seconds: f64,
    idle: Beside,
    beside: Beside,
    /// The peak of the server's memory, and the latency of small runs, relative to those without the attack.
    memory_of_idle: f64,
    p50_of_idle: f64,
    p99_of_idle: f64,
}

/// The whole result.
#[derive(Debug, Serialize)]
pub(super) struct Hostile {
    load: &'static str,
    store: String,
    n: u32,
    nodes: u32,
    seconds: f64,
    /// Small runs beside all attacks.
    per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// The highest peak.
    server_rss_bytes: u64,
    scenarios: Vec<Scenario>,
}

pub(super) async fn measure(args: HostileArgs, note: Note) -> Result<Hostile> {
    if !(LEAST..=MOST).contains(&args.n) {
        return Err(Failure::bad_input(format!("--n: {} is not from {LEAST} to {MOST}", args.n)));
    }
    let times =
        Times { rest: time("--seconds", args.seconds)?, patience: time("--patience", args.patience)? };
    // Servers run in a directory of their own.
    let absolute = |path: &PathBuf| {
        let error =
            |error| Failure::bad_input(format!("--program: cannot find `{}`: {error}", path.display()));
        path.canonicalize().map_err(error)
    };
    let program = args.program.as_ref().map(absolute).transpose()?;
    let all = if args.only.is_empty() { Attack::value_variants() } else { &args.only };
    let (mut scenarios, mut latencies, mut store) = (Vec::new(), Latencies::default(), String::new());
    for attack in all {
        let nodes = attack.nodes(args.n);
        process::make_room_for(nodes)?;
        let wanted = Wanted { program: program.clone(), ..Wanted::new(&args.store, 1) };
        let load = async |sites: &mut [Site]| {
            store.clone_from(&sites[0].store);
            one(&sites[0], *attack, args.n, times, note).await
        };
        let (scenario, runs) = within(&[wanted], load).await?;
        note(&scenario.line());
        latencies.add_all(&runs);
        scenarios.push(scenario);
    }
    let seconds: f64 = scenarios.iter().map(|scenario| scenario.seconds).sum();
    Ok(Hostile {
        load: "hostile",
        store,
        n: args.n,
        nodes: scenarios.iter().map(|scenario| scenario.nodes).max().unwrap_or(0),
        seconds,
        per_second: latencies.count() as f64 / seconds.max(f64::MIN_POSITIVE),
        p50_ms: latencies.ms(0.5),
        p99_ms: latencies.ms(0.99),
        server_rss_bytes: scenarios.iter().map(|scenario| scenario.beside.rss_bytes).max().unwrap_or(0),
        scenarios,
    })
}

/// How long the server is observed at least, and how long an attack may take.
#[derive(Clone, Copy, Debug)]
struct Times {
    rest: Duration,
    patience: Duration,
}

fn time(flag: &str, seconds: f64) -> Result<Duration> {
    let time = Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero());
    time.ok_or_else(|| {
        Failure::bad_input(format!(
            "{flag}: {seconds:?} is not a valid time; write seconds, such as 0.5 or 60"
        ))
    })
}

async fn one(
    site: &Site,
    attack: Attack,
    n: u32,
    Times { rest, patience }: Times,
    note: Note,
) -> Result<(Scenario, Latencies)> {
    let nodes = attack.nodes(n);
    note(&format!("{}: {nodes} nodes join", attack.name()));
    let server = site.first();
    // The agent that does the small runs. It is real: the simulated nodes do nothing.
    let agents = site.join(1, 64).await?;
    let simulated = (nodes > 0).then(|| Nodes::start(&server.grpc, nodes)).transpose()?;
    server.reached(ONLINE, f64::from(nodes + 1), Duration::from_millis(20)).await?;
    let target = Target::new(site, n, rest)?;
    attack.prepare(&target).await?;
    target.warm_up().await?;
    let ((), idle, _) = probe::beside(&target, tokio::time::sleep(rest)).await;
    note(&format!("{}: {}", attack.name(), attack.what(n)));
    let whole = async {
        let begun = Instant::now();
        let outcome = match tokio::time::timeout(patience, attack.run(&target)).await {
            Ok(outcome) => outcome,
            Err(_) => format!("given up after {:.0} s", patience.as_secs_f64()),
        };
        let took = begun.elapsed();
        tokio::time::sleep(rest.saturating_sub(took)).await;
        (outcome, took)
    };
    let ((outcome, took), beside, latencies) = probe::beside(&target, whole).await;
    drop((simulated, agents));
    let of = |found: f64, idle: f64| found / idle.max(f64::MIN_POSITIVE);
    let scenario = Scenario {
        attack: attack.name(),
        what: attack.what(n),
        nodes,
        outcome,
        seconds: took.as_secs_f64(),
        memory_of_idle: of(beside.rss_bytes as f64, idle.rss_bytes as f64),
        p50_of_idle: of(beside.p50_ms, idle.p50_ms),
        p99_of_idle: of(beside.p99_ms, idle.p99_ms),
        idle,
        beside,
    };
    Ok((scenario, latencies))
}

impl Scenario {
    fn line(&self) -> String {
        format!(
            "{}: {} after {:.1} s, memory {:.1} ×, small runs p50 {:.1} × and p99 {:.1} ×, /healthz at most {:.0} ms",
            self.attack,
            self.outcome,
            self.seconds,
            self.memory_of_idle,
            self.p50_of_idle,
            self.p99_of_idle,
            self.beside.healthz_most_ms
        )
    }
}

impl Hostile {
    pub(super) fn page(&self) -> Vec<Part> {
        let facts = vec![
            ("load", self.load.to_owned()),
            ("store", self.store.clone()),
            ("n", self.n.to_string()),
            ("small runs", format!("p50 {:.1} ms, p99 {:.1} ms", self.p50_ms, self.p99_ms)),
        ];
        let mib = |bytes: u64| format!("{:.0} MiB", bytes as f64 / 1_048_576.0);
        let table = Part::table(
            &self.scenarios,
            &[
                ("attack", &|one| one.attack.to_owned()),
                ("seconds", &|one| format!("{:.1}", one.seconds)),
                ("outcome", &|one| one.outcome.clone()),
                ("memory", &|one| format!("{} → {}", mib(one.idle.rss_bytes), mib(one.beside.rss_bytes))),
                ("of idle", &|one| format!("{:.1} ×", one.memory_of_idle)),
                ("small run p50", &|one| format!("{:.1} → {:.1} ms", one.idle.p50_ms, one.beside.p50_ms)),
                ("p99", &|one| format!("{:.1} → {:.1} ms", one.idle.p99_ms, one.beside.p99_ms)),
                ("of idle", &|one| format!("{:.1} ×", one.p99_of_idle)),
                ("failed", &|one| one.beside.failed.to_string()),
                ("/healthz p99", &|one| format!("{:.1} ms", one.beside.healthz_p99_ms)),
                ("most", &|one| format!("{:.0} ms", one.beside.healthz_most_ms)),
            ],
        );
        vec![Part::Facts(facts), table]
    }
}
