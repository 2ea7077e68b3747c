//! `bench schedules`: stored jobs that start by themselves. Measures the memory of a stored job, what the server costs while no
//! job is due, how long it takes until all jobs of one second have started, and how late starts are over a longer time; and
//! checks by the list of runs that no time was missed and none started twice.

mod firings;
mod starts;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use clap::Args;
use downbeat_core::{Span, Timestamp};
use futures_util::{StreamExt, TryStreamExt, stream};
use jiff::SignedDuration;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use self::firings::Firings;
use self::starts::Starts;
use super::figures::Figures;
use super::server::{COMPLETED, Server};
use super::shares::Meter;
use super::site::{Site, Wanted, within};
use crate::Note;
use crate::failure::{Failure, Result};

/// Jobs that are applied at the same time.
const APPLYING: usize = 32;
/// Each job of the steady load starts this often.
const PERIOD_S: u32 = 10;
/// How long a server may settle after its start, before its memory and its CPU time count.
const SETTLE: Duration = Duration::from_secs(3);
/// The longest time without work whose CPU time is measured.
const IDLE: Duration = Duration::from_secs(60);
/// The time between the last change of a job and the second in which many start.
const AHEAD: SignedDuration = SignedDuration::from_secs(3);
/// How often to check for ended runs.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Debug, Args)]
pub(crate) struct SchedulesArgs {
    /// Stored jobs, all with schedules
    #[arg(long, default_value_t = 10_000)]
    jobs: u32,
    /// How many of them start in the same second
    #[arg(long, default_value_t = 1_000)]
    at_once: u32,
    /// Starts in each second of the steady load
    #[arg(long, default_value_t = 100)]
    rate: u32,
    /// How long the steady load lasts
    #[arg(long = "for", value_name = "DURATION", default_value = "10m")]
    length: Span,
    #[arg(long, default_value_t = 4)]
    nodes: u32,
    /// Slots of each agent
    #[arg(long, default_value_t = 64)]
    slots: u32,
    /// Servers, each of which starts runs; several need a PostgreSQL
    #[arg(long, default_value_t = 1)]
    servers: u32,
    /// sqlite (a fresh file), or a PostgreSQL in which a database is created and dropped: postgres://…
    #[arg(long, default_value = "sqlite")]
    store: String,
}

pub(super) async fn measure(args: SchedulesArgs, note: Note) -> Result<Figures> {
    let steady = args.rate.saturating_mul(PERIOD_S);
    if args.rate == 0 || args.at_once == 0 || args.nodes == 0 || args.length.0 < Duration::from_secs(1) {
        return Err(Failure::bad_input(
            "--rate, --at-once, --nodes must be more than 0, and --for at least 1s",
        ));
    }
    if args.jobs < args.at_once.saturating_add(steady) {
        return Err(Failure::bad_input(format!(
            "--jobs must be at least {}: {} that start at once, and {steady} that start every {PERIOD_S} s",
            u64::from(args.at_once) + u64::from(steady),
            args.at_once,
        )));
    }
    let wanted = Wanted::new(&args.store, args.servers);
    within(&[wanted], async |sites: &mut [Site]| load(&mut sites[0], &args, note).await).await
}

async fn load(site: &mut Site, args: &SchedulesArgs, note: Note) -> Result<Figures> {
    let mut more = BTreeMap::new();
    more.extend([("jobs", f64::from(args.jobs)), ("at_once", f64::from(args.at_once))]);
    tokio::time::sleep(SETTLE).await;
    let without = site.first().rss_bytes();
    note(&format!("{} jobs are stored", args.jobs));
    let begun = Instant::now();
    apply(site, 0..args.jobs, |_| "0 3 1 1 *".to_owned()).await?;
    more.insert("applied_per_second", f64::from(args.jobs) / begun.elapsed().as_secs_f64());
    // A server that has just started has in memory what it needs, and nothing else.
    for server in &mut site.servers {
        server.kill();
        server.start_again().await?;
    }
    tokio::time::sleep(SETTLE).await;
    let with = site.first().rss_bytes();
    more.insert("bytes_per_job", with.saturating_sub(without) as f64 / f64::from(args.jobs));

    let agents = site.join(args.nodes, args.slots).await?;
    tokio::time::sleep(SETTLE).await;
    note("no job is due");
    let idle = (args.length.0 / 10).clamp(SETTLE, IDLE);
    let (begun, cpu) = (Instant::now(), site.cpu_seconds());
    tokio::time::sleep(idle).await;
    let cores = (site.cpu_seconds() - cpu) / begun.elapsed().as_secs_f64();
    more.insert("idle_cpu_percent", 100.0 * cores / f64::from(args.servers));

    let starts = Starts::follow(site.first().new_runs().await?);
    more.extend(at_once(site, args, &starts, note).await?);
    let figures = steady(site, args, &starts, note).await?;
    drop(agents);
    let failed = figures.more.get("missed").copied().unwrap_or(0.0)
        + figures.more.get("twice").copied().unwrap_or(0.0);
    let figures = Figures { more: figures.more.into_iter().chain(more).collect(), ..figures };
    match failed > 0.0 {
        true => {
            Err(Failure { measured: figures.page(), ..Failure::bug("times were missed, or started twice") })
        }
        false => Ok(figures),
    }
}

/// Lets many jobs start in one second.
async fn at_once(
    site: &Site,
    args: &SchedulesArgs,
    starts: &Starts,
    note: Note,
) -> Result<[(&'static str, f64); 4]> {
    // The second has to be known before the jobs are changed, so that this takes no longer than it did once.
    let begun = Instant::now();
    apply(site, 0..args.at_once, |_| "0 4 1 1 *".to_owned()).await?;
    let ahead = AHEAD + SignedDuration::try_from(begun.elapsed() * 2).unwrap_or(AHEAD);
    let second = whole_second(Timestamp::now() + ahead);
    note(&format!("{} jobs start at {second}", args.at_once));
    let cron = once_at(second);
    apply(site, 0..args.at_once, |_| cron.clone()).await?;
    if Timestamp::now() >= second {
        return Err(Failure::bug(
            "this machine was too slow: the jobs were changed after they should have started",
        ));
    }
    let wait = second.duration_since(Timestamp::now()).unsigned_abs();
    tokio::time::sleep(wait).await;
    site.first().reached(COMPLETED, f64::from(args.at_once), LOOK).await?;
    let firings = Firings::read(site).await?;
    if firings.count() != u64::from(args.at_once) {
        return Err(Failure::bug(format!("{} of {} jobs started", firings.count(), args.at_once)));
    }
    let seen = starts.late(second, second)?;
    Ok([
        ("at_once_decided_ms", firings.created_since(second).most_ms()),
        ("at_once_started_ms", seen.most_ms()),
        ("at_once_started_p50_ms", seen.ms(0.5)),
        ("at_once_finished_ms", firings.finished.most_ms()),
    ])
}

/// Lets some jobs start in every second, for a long time.
async fn steady(site: &Site, args: &SchedulesArgs, starts: &Starts, note: Note) -> Result<Figures> {
    let jobs = args.jobs - args.rate * PERIOD_S..args.jobs;
    let first = jobs.start;
    let cron = |number: u32| format!("{}-59/{PERIOD_S} * * * * *", (number - first) % PERIOD_S);
    apply(site, jobs.clone(), cron).await?;
    let begun = Instant::now();
    let from = whole_second(Timestamp::now() + SignedDuration::from_secs(1));
    note(&format!("{} jobs start per second for {}", args.rate, args.length));
    let meter = Meter::begin(site).await?;
    tokio::time::sleep(args.length.0).await;
    let until = whole_second(Timestamp::now());
    let servers = meter.end(site).await?;
    let seconds = begun.elapsed().as_secs_f64();
    // Times up to the pause have started before it.
    each(site, jobs, async |server: &Server, number| server.pause_job(&name(number)).await).await?;
    let firings = Firings::ended(site, LOOK).await?;
    let expected = |at: Timestamp| {
        let offset = u32::try_from(at.as_second().rem_euclid(i64::from(PERIOD_S))).unwrap_or(0);
        (0..args.rate).map(move |of| name(first + of * PERIOD_S + offset))
    };
    let (missed, unexpected) = firings.compare(from, until, expected);
    let n = firings.within(from, until);
    let seen = starts.late(from, until)?;
    let decided = firings.created_since(from);
    let mut figures = Figures::new(("schedules", "starts"), &site.store, n, args.nodes, seconds, &seen)
        .of_servers(site, servers);
    figures.more.extend([
        ("rate", f64::from(args.rate)),
        ("late_max_ms", seen.most_ms()),
        ("decided_p50_ms", decided.ms(0.5)),
        ("decided_p99_ms", decided.ms(0.99)),
        ("missed", missed as f64),
        ("twice", unexpected as f64),
    ]);
    Ok(figures)
}

fn name(number: u32) -> String {
    format!("job-{number:05}")
}

/// Returns the definition of a job that a cron expression starts. Its work is next to nothing.
fn job(number: u32, cron: &str) -> Value {
    json!({
        "name": name(number), "schedule": cron,
        "tasks": [{"name": "noop", "backend": "test", "action": "noop"}],
    })
}

async fn apply(site: &Site, jobs: std::ops::Range<u32>, cron: impl Fn(u32) -> String) -> Result<()> {
    let cron = &cron;
    each(site, jobs, async move |server: &Server, number| server.apply_job(&job(number, &cron(number))).await)
        .await
}

/// Calls a server for each job, the servers in turn.
async fn each(
    site: &Site,
    jobs: std::ops::Range<u32>,
    call: impl AsyncFn(&Server, u32) -> Result<()>,
) -> Result<()> {
    let call = &call;
    stream::iter(jobs)
        .map(|number| async move { call(site.server(u64::from(number)), number).await })
        .buffer_unordered(APPLYING)
        .try_collect()
        .await
}

fn whole_second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

/// Returns an expression that has one time of this year.
fn once_at(at: Timestamp) -> String {
    let local = at.to_zoned(TimeZone::UTC);
    let (second, minute, hour) = (local.second(), local.minute(), local.hour());
    format!("{second} {minute} {hour} {} {} *", local.day(), local.month())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_names_one_second_of_the_year() {
        let at: Timestamp = "2026-11-18T09:05:07Z".parse().unwrap();
        assert_eq!(once_at(at), "7 5 9 18 11 *");
    }
}
