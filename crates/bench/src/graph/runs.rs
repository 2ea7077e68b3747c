//! Owns the loads on a server and real agents: chains, and many tasks at once.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use downbeat_api::Execution;
use downbeat_client::Feed;
use downbeat_core::Timestamp;
use serde_json::Value;

use super::super::agents::{Agents, Fleet};
use super::super::figures::{Figures, Latencies};
use super::super::server::{Server, next_event};
use super::super::shares::{Meter, changes_per_commit, cpu_seconds, ms_per_commit};
use super::super::site::{Site, Wanted, within};
use super::forks::{self, Rate};
use super::jobs::{self, Work};
use crate::Note;
use crate::failure::{Failure, Result};

/// One agent that always has a free slot while a result is being sent.
pub(super) const ONE: Fleet = Fleet { nodes: 1, slots: 32 };
/// One agent for process loads: with this many slots, each commit contains several results.
pub(super) const CROWDED: Fleet = Fleet { nodes: 1, slots: 128 };
/// As in `bench tasks`.
pub(super) const EIGHT: Fleet = Fleet { nodes: 8, slots: 256 };
/// How often the server is asked whether a run has ended, which limits the precision. Each request costs server time.
const LOOK: Duration = Duration::from_millis(10);
/// Runs that do not count: they warm up connections and caches.
const WARM_UP: u32 = 2;
/// Processes that measure the machine's own rate, before and after; no more than the load has.
const FORKS: u32 = 3_000;

/// A load on a fresh store, with its own agents.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub work: Work,
    pub steps: usize,
    pub rounds: u32,
    pub fleet: Fleet,
}

impl Load {
    /// Measures a chain: each task after the previous one.
    pub(super) async fn sequential(self, store: &str, note: Note) -> Result<Figures> {
        self.within(store, async |site: &Site, agents: &Agents| self.chain(site, agents, note).await).await
    }

    /// Measures all tasks at once.
    pub(super) async fn parallel(self, store: &str, note: Note) -> Result<Figures> {
        self.within(store, async |site: &Site, agents: &Agents| self.wide(site, agents, note).await).await
    }

    async fn within(
        self,
        store: &str,
        load: impl AsyncFnOnce(&Site, &Agents) -> Result<Figures>,
    ) -> Result<Figures> {
        within(&[Wanted::new(store, 1)], async |sites: &mut [Site]| {
            let agents = Agents::join(&sites[0], self.fleet).await?;
            load(&sites[0], &agents).await
        })
        .await
    }

    async fn chain(&self, site: &Site, agents: &Agents, note: Note) -> Result<Figures> {
        let server = site.first();
        let definition = jobs::chain(self.work, self.steps);
        let mut feed = server.events().await?;
        for _ in 0..WARM_UP {
            until_ended(server, &mut feed, &definition).await?;
        }
        let spent = Spent::begin(site, agents).await?;
        let (mut gaps, mut total, mut work) = (Latencies::default(), Duration::ZERO, Duration::ZERO);
        for round in 1..=self.rounds {
            let (run, took) = until_ended(server, &mut feed, &definition).await?;
            let chain = Chain::of(server, &run, self.steps).await?;
            chain.gaps.iter().for_each(|gap| gaps.add(*gap));
            let name = self.work.name();
            note(&format!(
                "{} × {name} one after the other, round {round} of {}: {:.1} ms, of which {:.1} ms are work",
                self.steps,
                self.rounds,
                took.as_secs_f64() * 1e3,
                chain.work.as_secs_f64() * 1e3,
            ));
            total += took;
            work += chain.work;
        }
        let n = self.steps as u64 * u64::from(self.rounds);
        let ms_per_step = |time: Duration| time.as_secs_f64() * 1e3 / n as f64;
        let mut figures = spent.figures(site, agents, n, self.fleet, total, &gaps).await?;
        figures.more.extend([
            ("rounds", f64::from(self.rounds)),
            ("work ms per step", ms_per_step(work)),
            ("overhead ms per step", ms_per_step(total.saturating_sub(work))),
        ]);
        Ok(figures)
    }

    async fn wide(&self, site: &Site, agents: &Agents, note: Note) -> Result<Figures> {
        let server = site.first();
        for _ in 0..WARM_UP {
            server.round(&jobs::wide(self.work, self.steps.min(100)), self.fleet.nodes, LOOK).await?;
        }
        let definition = jobs::wide(self.work, self.steps);
        let spent = Spent::begin(site, agents).await?;
        let (mut rounds, mut submits, mut total) =
            (Latencies::default(), Latencies::default(), Duration::ZERO);
        for round in 1..=self.rounds {
            let (submitted, took) = server.round(&definition, self.fleet.nodes, LOOK).await?;
            let (name, ms) = (self.work.name(), took.as_secs_f64() * 1e3);
            note(&format!("{} × {name} at once, round {round} of {}: {ms:.0} ms", self.steps, self.rounds));
            rounds.add(took);
            submits.add(submitted);
            total += took;
        }
        let n = self.steps as u64 * u64::from(self.rounds);
        let mut figures = spent.figures(site, agents, n, self.fleet, total, &rounds).await?;
        figures.more.extend([
            ("rounds", f64::from(self.rounds)),
            ("slots per node", f64::from(self.fleet.slots)),
            ("submit p50 ms", submits.ms(0.5)),
            ("best per second", self.steps as f64 * 1e3 / rounds.least_ms()),
        ]);
        Ok(figures)
    }
}

/// Runs the load between two measurements of the machine's own rate, which other machines on the same host may change.
pub(super) async fn beside_forks(load: &Load, store: &str, note: Note) -> Result<Figures> {
    let processes = u32::try_from(load.steps).unwrap_or(FORKS).min(FORKS);
    let rate = async || {
        let counted = tokio::task::spawn_blocking(move || Rate::count(processes)).await;
        let rate = counted.map_err(|error| Failure::bug(format!("counting processes failed: {error}")))??;
        note(&format!(
            "fork+exec of /bin/true in tight loops: {:.0} per second with a thread per core, {:.0} with more",
            rate.per_core, rate.crowded
        ));
        Ok::<Rate, Failure>(rate)
    };
    let before = rate().await?;
    let mut figures = load.parallel(store, note).await?;
    let after = rate().await?;
    figures.more.extend([
        ("fork+exec per second before", before.most()),
        ("fork+exec per second after", after.most()),
        ("of fork+exec", figures.per_second / f64::midpoint(before.most(), after.most())),
        ("fork+exec per second before, a thread per core", before.per_core),
        ("fork+exec per second after, a thread per core", after.per_core),
        (
            "of fork+exec, a thread per core",
            figures.per_second / f64::midpoint(before.per_core, after.per_core),
        ),
        ("cores", forks::cores() as f64),
    ]);
    Ok(figures)
}

/// Submits, and waits for the end as a client does: on the live stream.
async fn until_ended(server: &Server, feed: &mut Feed, definition: &Value) -> Result<(String, Duration)> {
    let begun = Instant::now();
    let run = server.submit(definition).await?;
    loop {
        let message = next_event(feed, || format!("run {run} has not ended")).await?;
        if message.name != "run_moved" || !message.data.contains(&run) {
            continue;
        }
        let took = begun.elapsed();
        let event: Value = message.decode()?;
        match event["data"]["status"].as_str() {
            Some("completed") => return Ok((run, took)),
            Some("failed" | "cancelled") => {
                return Err(Failure::bug(format!("run {run} did not complete: {event}")));
            }
            _ => {}
        }
    }
}

/// The times of an ended chain that its agent reported.
#[derive(Debug, Default, PartialEq)]
struct Chain {
    /// The time in which a task ran.
    work: Duration,
    /// From the end of each task to the start of the next.
    gaps: Vec<Duration>,
}

impl Chain {
    async fn of(server: &Server, run: &str, steps: usize) -> Result<Self> {
        let ran = |execution: Execution| Some((execution.started_at?, execution.finished_at?));
        let spans: Vec<_> = server.executions(run).await?.into_iter().filter_map(ran).collect();
        if spans.len() != steps {
            return Err(Failure::bug(format!(
                "run {run} has {} executions that ran, not {steps}",
                spans.len()
            )));
        }
        Ok(Self::through(spans))
    }

    fn through(mut spans: Vec<(Timestamp, Timestamp)>) -> Self {
        spans.sort_unstable();
        let between =
            |from: Timestamp, to: Timestamp| Duration::try_from(to.duration_since(from)).unwrap_or_default();
        Self {
            work: spans.iter().map(|(start, end)| between(*start, *end)).sum(),
            gaps: spans.windows(2).map(|pair| between(pair[0].1, pair[1].0)).collect(),
        }
    }
}

/// The usage of server and agents when a load started.
struct Spent {
    meter: Meter,
    agents: f64,
    work: f64,
}

impl Spent {
    async fn begin(site: &Site, agents: &Agents) -> Result<Self> {
        let meter = Meter::begin(site).await?;
        Ok(Self { meter, agents: agents.cpu_seconds(), work: agents.work_cpu_seconds() })
    }

    async fn figures(
        &self,
        site: &Site,
        agents: &Agents,
        n: u64,
        fleet: Fleet,
        total: Duration,
        latencies: &Latencies,
    ) -> Result<Figures> {
        let servers = self.meter.end(site).await?;
        let (agents_cpu, work_cpu) =
            (agents.cpu_seconds() - self.agents, agents.work_cpu_seconds() - self.work);
        let us_per = |seconds: f64| seconds * 1e6 / n as f64;
        let seconds = total.as_secs_f64();
        let figures = Figures::new(("graph", "tasks"), &site.store, n, fleet.nodes, seconds, latencies);
        Ok(Figures {
            more: BTreeMap::from([
                ("ms per task", seconds * 1e3 / n as f64),
                ("commits per task", servers.iter().map(|share| share.commits).sum::<f64>() / n as f64),
                ("changes per commit", changes_per_commit(&servers)),
                ("ms per commit", ms_per_commit(&servers)),
                ("server cpu us per task", us_per(cpu_seconds(&servers))),
                ("agents cpu us per task", us_per(agents_cpu)),
                ("work cpu us per task", us_per(work_cpu)),
                ("agents rss bytes", agents.rss_bytes() as f64),
            ]),
            ..figures.of_servers(site, servers)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_is_work_and_what_lies_between() {
        let at = |ms: i64| Timestamp::from_millisecond(ms).unwrap();
        let chain = Chain::through(vec![(at(30), at(35)), (at(10), at(20)), (at(36), at(36))]);
        assert_eq!(chain.work, Duration::from_millis(15));
        assert_eq!(chain.gaps, [Duration::from_millis(10), Duration::from_millis(1)]);
    }
}
