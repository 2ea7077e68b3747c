//! `bench claims`: a steady full load of placed no-ops over a table with many finished executions, and whether claims
//! become slower with time. Dead rows are the known problem of queues in PostgreSQL, and an open transaction prevents
//! their removal.

use std::time::{Duration, Instant};

use clap::Args;
use downbeat_agent::Handle;
use futures_util::future::try_join_all;
use tokio_postgres::Client;

use super::process::own_cpu_seconds;
use super::server::{COMPLETED, STUCK, SUCCEEDED, cannot};
use super::shares::Meter;
use super::site::{Site, Wanted, within};
use super::soak::{Side, Soak, Window};
use super::tables::{self, Tables};
use super::tasks::job;
use crate::Note;
use crate::failure::{Failure, Result};

/// How often to check for ended runs and submit the next ones.
const LOOK: Duration = Duration::from_millis(20);
const LEASED: &str = "downbeat_pending_to_leased_seconds_count";

#[derive(Debug, Args)]
pub(crate) struct ClaimsArgs {
    /// A PostgreSQL in which a database is created and dropped: postgres://…
    #[arg(long)]
    store: String,
    /// How long the load runs
    #[arg(long, default_value_t = 30.0)]
    minutes: f64,
    /// How many executions have finished before the load; they really run
    #[arg(long, default_value_t = 1_000_000)]
    finished: u64,
    /// Another connection keeps a transaction with a snapshot open from before the load to its end
    #[arg(long)]
    held_transaction: bool,
    /// Two loads at the same time on two databases: one with an open transaction, one without
    #[arg(long, conflicts_with = "held_transaction")]
    both: bool,
    /// How many parts of the time are reported separately
    #[arg(long, default_value_t = 10)]
    windows: u32,
    /// Servers of each load
    #[arg(long, default_value_t = 1)]
    servers: u32,
    /// Agents of each load
    #[arg(long, default_value_t = 8)]
    nodes: u32,
    /// Slots of each agent: fewer than there are executions, so that most wait for a claim
    #[arg(long, default_value_t = 64)]
    slots: u32,
    /// Executions in one run
    #[arg(long, default_value_t = 1_000)]
    per_run: u64,
    /// Active runs at once
    #[arg(long, default_value_t = 4)]
    runs: u64,
}

pub(super) async fn measure(args: ClaimsArgs, note: Note) -> Result<Soak> {
    if !(args.minutes > 0.0 && args.windows > 0 && args.runs > 0 && args.per_run > 0) {
        return Err(Failure::bad_input("--minutes, --windows, --runs and --per-run must be more than 0"));
    }
    let wanted = Wanted::new(&args.store, args.servers);
    wanted.needs_postgres()?;
    let held: &[bool] = if args.both { &[false, true] } else { &[args.held_transaction] };
    let wanted = vec![wanted; held.len()];
    within(&wanted, async |sites: &mut [Site]| {
        let mut loads = Vec::new();
        for (site, held) in sites.iter().zip(held) {
            loads.push(Load::prepare(site, &args, *held, note).await?);
        }
        let begun = Instant::now();
        try_join_all(loads.iter_mut().map(Load::preload)).await?;
        let preloaded = begun.elapsed();
        for load in &mut loads {
            load.settle_down().await?;
        }
        let own_before = own_cpu_seconds();
        let sides = try_join_all(loads.iter_mut().map(Load::run)).await?;
        let own_cpu_seconds = own_cpu_seconds() - own_before;
        Ok(Soak::of(sites[0].store.clone(), args.nodes, preloaded, own_cpu_seconds, sides))
    })
    .await
}

/// The load on one site. Its memory does not grow with the number of executions.
struct Load<'a> {
    site: &'a Site,
    args: &'a ClaimsArgs,
    note: Note,
    /// The connection for table statistics.
    client: Client,
    /// The connection whose transaction has a snapshot, and the number of runs in it.
    holder: Option<(Client, i64)>,
    held: bool,
    submitted: u64,
    _agents: Vec<Handle>,
}

impl<'a> Load<'a> {
    async fn prepare(site: &'a Site, args: &'a ClaimsArgs, held: bool, note: Note) -> Result<Self> {
        let agents = site.join(args.nodes, args.slots).await?;
        let client = site.database()?.connect().await?;
        Ok(Self { site, args, note, client, holder: None, held, submitted: 0, _agents: agents })
    }

    fn name(&self) -> &'static str {
        if self.held { "held transaction" } else { "no held transaction" }
    }

    /// Runs the executions that finish before the load.
    async fn preload(&mut self) -> Result<()> {
        (self.note)(&format!("{}: {} executions first", self.name(), self.args.finished));
        let full = self.args.finished / self.args.per_run;
        let rest = self.args.finished % self.args.per_run;
        self.submit_while(self.args.per_run, |submitted| submitted < full).await?;
        if rest > 0 {
            self.submit_while(rest, |submitted| submitted <= full).await?;
        }
        self.until_all_ended().await?;
        // Counts the added rows: a lost or repeated execution would show.
        let done = self.site.first().metrics().await?.get(SUCCEEDED);
        if done < self.args.finished as f64 {
            return Err(Failure::bug(format!("{done} of {} executions succeeded", self.args.finished)));
        }
        Ok(())
    }

    /// Starts both loads with clean tables, then opens the transaction.
    async fn settle_down(&mut self) -> Result<()> {
        let vacuumed = self.client.batch_execute("VACUUM (ANALYZE)").await;
        vacuumed.map_err(|error| cannot("vacuum", &error))?;
        if self.held {
            let client = self.site.database()?.connect().await?;
            let begun = client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY").await;
            begun.map_err(|error| cannot("hold a transaction", &error))?;
            let runs = tables::count_runs(&client).await?;
            self.holder = Some((client, runs));
        }
        Ok(())
    }

    async fn run(&mut self) -> Result<Side> {
        let (site, args) = (self.site, self.args);
        let length = Duration::from_secs_f64(args.minutes * 60.0);
        (self.note)(&format!("{}: load for {} s", self.name(), length.as_secs()));
        let meter = Meter::begin(site).await?;
        let from = tables::now(&self.client).await?;
        let begun = Instant::now();
        let sampler =
            Sampler { site, client: site.database()?.connect().await?, name: self.name(), note: self.note };
        let sampling = sampler.run(begun, length, args.windows);
        let pumping = self.submit_while(args.per_run, |_| begun.elapsed() < length);
        let (windows, ()) = tokio::try_join!(sampling, pumping)?;
        let until = tables::now(&self.client).await?;
        let servers = meter.end(site).await?;
        self.until_all_ended().await?;
        self.still_held().await?;
        let waits = tables::waits(&self.client, from, until, args.windows).await?;
        let side = Side {
            held_transaction: self.held,
            finished: args.finished,
            server_rss_bytes: site.rss_bytes(),
            windows,
            servers,
            tables: Tables::read(&self.client).await?,
            ..Side::default()
        };
        Ok(side.with_claims(&waits, until - from))
    }

    /// Keeps this many runs active, until enough have run.
    async fn submit_while(&mut self, size: u64, more: impl Fn(u64) -> bool) -> Result<()> {
        let definition = job(size);
        let (mut last, mut since) = (0, Instant::now());
        while more(self.submitted) {
            let completed = self.site.first().metrics().await?.get(COMPLETED) as u64;
            if completed > last {
                (last, since) = (completed, Instant::now());
            }
            if since.elapsed() > STUCK {
                let (all, seconds) = (self.submitted, STUCK.as_secs());
                return Err(Failure::bug(format!(
                    "{completed} of {all} runs completed, and none for {seconds} s"
                )));
            }
            let open = self.submitted.saturating_sub(completed);
            let (site, definition, first) = (self.site, &definition, self.submitted);
            let next = (open..self.args.runs)
                .zip(first..)
                .map(|(_, number)| number)
                .take_while(|number| more(*number));
            let submissions: Vec<_> =
                next.map(|number| async move { site.server(number).submit(definition).await }).collect();
            let count = submissions.len() as u64;
            tokio::time::timeout(STUCK, try_join_all(submissions)).await.map_err(|_| {
                Failure::bug(format!("runs were not accepted within {} s", STUCK.as_secs()))
            })??;
            self.submitted += count;
            if count == 0 {
                tokio::time::sleep(LOOK).await;
            }
        }
        Ok(())
    }

    async fn until_all_ended(&self) -> Result<()> {
        self.site.first().reached(COMPLETED, self.submitted as f64, LOOK).await
    }

    /// Checks that the snapshot is unchanged, which proves that the transaction was open.
    async fn still_held(&self) -> Result<()> {
        let Some((client, runs)) = &self.holder else { return Ok(()) };
        let now = tables::count_runs(client).await?;
        if now == *runs {
            return Ok(());
        }
        Err(Failure::bug(format!("the held snapshot showed {runs} runs, and now {now}")))
    }
}

/// Reads servers and tables at the end of each window.
struct Sampler<'a> {
    site: &'a Site,
    client: Client,
    name: &'static str,
    note: Note,
}

impl Sampler<'_> {
    async fn run(self, begun: Instant, length: Duration, windows: u32) -> Result<Vec<Window>> {
        let mut all = Vec::new();
        let mut meter = Meter::begin(self.site).await?;
        let mut leased = self.site.first().metrics().await?.get(LEASED);
        let seconds = length.as_secs_f64() / f64::from(windows);
        for number in 1..=windows {
            let end = begun + length.mul_f64(f64::from(number) / f64::from(windows));
            tokio::time::sleep_until(end.into()).await;
            let shares = meter.end(self.site).await?;
            meter = Meter::begin(self.site).await?;
            let leased_now = self.site.first().metrics().await?.get(LEASED);
            let tables = Tables::read(&self.client).await?;
            let window = Window::of(begun.elapsed(), &shares, &tables, self.site.rss_bytes());
            let rate = (leased_now - leased) / seconds;
            leased = leased_now;
            (self.note)(&format!(
                "{}: window {number} of {windows}: {rate:.0} claims/s, {:.1} ms per commit, {} dead rows, {:.0} MiB",
                self.name,
                window.ms_per_commit,
                window.dead_rows,
                window.database_bytes as f64 / 1_048_576.0,
            ));
            all.push(window);
        }
        Ok(all)
    }
}
