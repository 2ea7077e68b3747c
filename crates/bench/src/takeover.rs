//! `bench takeover`: `kill -9` of servers that own runs, and how long those runs stand still until another server
//! continues them. Finished executions must not run again.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use clap::Args;
use downbeat_core::execution::Status;
use downbeat_core::{Dice, Span, limits};
use serde_json::{Value, json};

use super::figures::{Figures, Latencies};
use super::process::own_cpu_seconds;
use super::server::{STUCK, Server};
use super::sightings::Sightings;
use super::site::{Site, Wanted, within};
use crate::Note;
use crate::failure::{Failure, Result};

/// How often a condition is checked. The time of the events is measured, not the time of the check.
const LOOK: Duration = Duration::from_millis(5);

#[derive(Debug, Args)]
pub(crate) struct TakeoverArgs {
    /// A PostgreSQL in which a database is created and dropped: postgres://…
    #[arg(long)]
    store: String,
    /// Servers that share the database
    #[arg(long, default_value_t = 3)]
    servers: u32,
    /// How many servers are killed, one after the other, each chosen at random
    #[arg(long, default_value_t = 20)]
    rounds: u32,
    /// The servers' server_stale_after
    #[arg(long, value_name = "DURATION", default_value = "2s")]
    stale_after: Span,
    /// Running runs on each server
    #[arg(long, default_value_t = 4)]
    runs: u32,
    /// How long one task of a run takes
    #[arg(long, value_name = "DURATION", default_value = "100ms")]
    task: Span,
    /// Number of agents
    #[arg(long, default_value_t = 6)]
    nodes: u32,
}

pub(super) async fn measure(args: TakeoverArgs, note: Note) -> Result<Figures> {
    if args.servers < 2 {
        return Err(Failure::bad_input("--servers must be at least 2: another server has to take over"));
    }
    if args.task.0.is_zero() || args.stale_after.0.is_zero() {
        return Err(Failure::bad_input("--task and --stale-after must be longer than nothing"));
    }
    let mut wanted = Wanted::new(&args.store, args.servers);
    wanted.needs_postgres()?;
    wanted.flags = vec!["--server-stale-after".to_owned(), args.stale_after.to_string()];
    within(&[wanted], async |sites: &mut [Site]| load(&mut sites[0], &args, note).await).await
}

/// The results of all rounds.
#[derive(Default)]
struct Findings {
    /// From the kill to the event that names the new owner.
    taken: Latencies,
    /// From the kill to the first event that only the new owner can have committed.
    moved_on: Latencies,
    /// Executions of a step that had already succeeded.
    repeated: u64,
    /// Lost attempts: their step was retried, which does not repeat finished work.
    lost: u64,
    /// Runs that were taken from a living server.
    taken_from_living: u64,
    finished: u64,
}

async fn load(site: &mut Site, args: &TakeoverArgs, note: Note) -> Result<Figures> {
    // Every run has a running task; each needs a slot, even if only one node is left.
    let agents = site.join(args.nodes, args.servers * args.runs).await?;
    let mut dice = Dice::new(uuid::Uuid::new_v4().as_u64_pair().0);
    let mut findings = Findings::default();
    let (begun, cpu_before, own_before) = (Instant::now(), site.cpu_seconds(), own_cpu_seconds());
    for number in 1..=args.rounds {
        let summary = round(site, args, &mut dice, &mut findings).await?;
        note(&format!("round {number} of {}: {summary}", args.rounds));
    }
    let figures = figures(site, args, &findings, begun.elapsed(), cpu_before, own_before);
    drop(agents);
    if findings.repeated > 0 {
        let text = format!("{} executions of steps that had succeeded before", findings.repeated);
        return Err(Failure { measured: figures.page(), ..Failure::bug(text) });
    }
    Ok(figures)
}

fn figures(
    site: &Site,
    args: &TakeoverArgs,
    findings: &Findings,
    elapsed: Duration,
    cpu_before: f64,
    own_before: f64,
) -> Figures {
    let (taken, moved_on) = (&findings.taken, &findings.moved_on);
    let stale_ms = args.stale_after.0.as_secs_f64() * 1e3;
    let more = BTreeMap::from([
        ("agents and bench cpu", own_cpu_seconds() - own_before),
        ("executions finished", findings.finished as f64),
        ("finished steps repeated", findings.repeated as f64),
        ("lost attempts", findings.lost as f64),
        ("max ms", moved_on.most_ms()),
        ("max of stale_after", moved_on.most_ms() / stale_ms),
        ("p50 of stale_after", moved_on.ms(0.5) / stale_ms),
        ("p99 of stale_after", moved_on.ms(0.99) / stale_ms),
        ("rounds", f64::from(args.rounds)),
        ("runs taken from a living server", findings.taken_from_living as f64),
        ("stale_after ms", stale_ms),
        ("taken max ms", taken.most_ms()),
        ("taken p50 ms", taken.ms(0.5)),
        ("taken p99 ms", taken.ms(0.99)),
    ]);
    let (name, n, seconds) = (("takeover", "runs taken over"), moved_on.count(), elapsed.as_secs_f64());
    // Without the servers' shares: the counters of a killed server start again at 0.
    Figures {
        server_rss_bytes: site.rss_bytes(),
        server_cpu_seconds: site.cpu_seconds() - cpu_before,
        more,
        ..Figures::new(name, &site.store, n, args.nodes, seconds, moved_on)
    }
}

/// Starts runs on every server, kills one server, waits until its runs continue and all runs complete. Returns a line
/// about the round.
async fn round(
    site: &mut Site,
    args: &TakeoverArgs,
    dice: &mut Dice,
    findings: &mut Findings,
) -> Result<String> {
    let count = site.servers.len();
    let victim = usize::try_from(dice.below(count as u64)).unwrap_or(0);
    let living: Vec<usize> = (0..count).filter(|index| *index != victim).collect();
    let witness = living[usize::try_from(dice.below(living.len() as u64)).unwrap_or(0)];
    let seen = Sightings::follow(site.servers[witness].events().await?);

    let definition = job(args);
    let (mut runs, mut of_victim) = (Vec::new(), None);
    for (index, server) in site.servers.iter().enumerate() {
        for _ in 0..args.runs {
            let run = server.submit(&definition).await?;
            if index == victim {
                of_victim = Some(run.clone());
            }
            runs.push(run);
        }
    }
    until("every run to finish a step", &seen, || runs.iter().all(|run| seen.of(run).finished > 0)).await?;
    // At a random time between two heartbeats.
    tokio::time::sleep(dice.up_to(args.stale_after.0 / 2)).await;

    findings.taken_from_living += seen.reset();
    let victims_id = of_victim.and_then(|run| seen.of(&run).creator);
    let (orphans, others): (Vec<&String>, Vec<&String>) =
        runs.iter().partition(|run| seen.of(run).owner == victims_id);
    let killed = Instant::now();
    site.servers[victim].kill();
    until("its runs to move on", &seen, || orphans.iter().all(|run| seen.of(run).moved_on.is_some())).await?;
    let mut longest = Duration::ZERO;
    for run in &orphans {
        let sight = seen.of(run);
        let since = |moment: Option<Instant>| moment.map(|moment| moment.saturating_duration_since(killed));
        if let (Some(taken), Some(moved_on)) = (since(sight.taken), since(sight.moved_on)) {
            findings.taken.add(taken);
            findings.moved_on.add(moved_on);
            longest = longest.max(moved_on);
        }
    }
    let name = site.servers[victim].name().to_owned();
    site.servers[victim].start_again().await?;

    until("every run to end", &seen, || runs.iter().all(|run| seen.of(run).status.is_some())).await?;
    findings.taken_from_living += others.iter().filter(|run| seen.of(run).taken.is_some()).count() as u64;
    for run in &runs {
        let status = seen.of(run).status;
        if status.as_deref() != Some("completed") {
            return Err(Failure::bug(format!("run {run} ended as {}", status.unwrap_or_default())));
        }
        look_for_repetitions(&site.servers[witness], run, findings).await?;
    }
    Ok(format!("{name} killed, its {} runs moved on within {} ms", orphans.len(), longest.as_millis()))
}

/// One task after the other, for longer than a take-over may take.
fn job(args: &TakeoverArgs) -> Value {
    let whole = args.stale_after.0 * 3 + Duration::from_secs(2);
    let steps = (whole.as_secs_f64() / args.task.0.as_secs_f64())
        .ceil()
        .clamp(3.0, limits::STEPS_PER_RUN as f64) as usize;
    let step = json!({"backend": "test", "action": "sleep", "params": {"duration": args.task.to_string()}});
    json!({"name": "takeover", "tasks": vec![step; steps]})
}

async fn look_for_repetitions(server: &Server, run: &str, findings: &mut Findings) -> Result<()> {
    let mut attempts = Attempts::default();
    for execution in server.executions(run).await? {
        attempts.take(execution.step, execution.status);
    }
    findings.finished += attempts.succeeded.len() as u64;
    findings.repeated += attempts.repeated;
    findings.lost += attempts.lost;
    Ok(())
}

/// The attempts of one run, in the order of creation.
#[derive(Debug, Default)]
struct Attempts {
    /// The steps that succeeded.
    succeeded: HashSet<u32>,
    /// Every attempt after a success repeats it.
    repeated: u64,
    lost: u64,
}

impl Attempts {
    fn take(&mut self, step: u32, status: Status) {
        self.repeated += u64::from(self.succeeded.contains(&step));
        self.lost += u64::from(status == Status::Lost);
        if status == Status::Succeeded {
            self.succeeded.insert(step);
        }
    }
}

async fn until(what: &str, seen: &Sightings, mut holds: impl FnMut() -> bool) -> Result<()> {
    let (mut events, mut since) = (seen.events(), Instant::now());
    while !holds() {
        if let Some(failure) = seen.failure() {
            return Err(failure);
        }
        if seen.events() > events {
            (events, since) = (seen.events(), Instant::now());
        }
        if since.elapsed() > STUCK {
            return Err(Failure::bug(format!(
                "waited in vain for {what}: no event for {} s",
                STUCK.as_secs()
            )));
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_after_a_success_is_a_repetition_and_one_after_a_loss_is_not() {
        let mut attempts = Attempts::default();
        use Status::{Lost, Running, Succeeded};
        for (step, status) in [(0, Succeeded), (1, Lost), (1, Succeeded), (0, Running), (1, Succeeded)] {
            attempts.take(step, status);
        }
        assert_eq!((attempts.repeated, attempts.lost, attempts.succeeded.len()), (2, 1, 2));
    }
}
