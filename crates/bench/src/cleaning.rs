//! `bench tasks --beside-cleaning`: what the removal of old executions costs the others. Measures in turns without and with
//! it on one store, so that other work on the machine affects both.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::figures::Figures;
use super::fill::fill;
use super::server::{STUCK, SUCCEEDED, cannot};
use super::site::{Site, Wanted, within};
use super::tasks::{TasksArgs, load_agents};
use crate::Note;
use crate::failure::{Failure, Result};

/// Settings of servers that remove nothing, and of servers that remove what is old from the start on.
const KEEPING: [&str; 4] = ["--retention-days", "0", "--clean-every", "24h"];
const CLEANING: [&str; 4] = ["--retention-days", "1", "--clean-every", "100ms"];
const LOOK: Duration = Duration::from_millis(20);

/// One measurement.
struct Round {
    figures: Figures,
    /// Old executions that were removed while it was measured.
    removed: u64,
}

pub(super) async fn measure(args: &TasksArgs, note: Note) -> Result<Figures> {
    if args.rounds == 0 || args.old == 0 {
        return Err(Failure::bad_input("--rounds and --old must be at least 1"));
    }
    let wanted = Wanted::new(&args.store, args.servers);
    within(std::slice::from_ref(&wanted), async |sites: &mut [Site]| {
        let site = &mut sites[0];
        site.kill_servers();
        note(&format!("filling the store with {} old executions", args.old));
        let begun = Instant::now();
        fill(&site.location(&wanted), args.old).await?;
        if let Ok(database) = site.database() {
            let vacuumed = database.connect().await?.batch_execute("VACUUM (ANALYZE)").await;
            vacuumed.map_err(|error| cannot("vacuum", &error))?;
        }
        let filled = begun.elapsed().as_secs_f64();
        let (mut without, mut with, mut added) = (Vec::new(), Vec::new(), 0);
        for number in 1..=args.rounds {
            for (flags, rounds) in [(KEEPING, &mut without), (CLEANING, &mut with)] {
                let kind = if flags == CLEANING { "with" } else { "without" };
                note(&format!("round {number} of {} {kind} cleaning", args.rounds));
                let wanted = Wanted { flags: flags.map(str::to_owned).into(), ..wanted.clone() };
                rounds.push(round(site, &wanted, args, &mut added, note).await?);
            }
        }
        Ok(figures(args, filled, &without, with))
    })
    .await
}

/// Starts servers with these settings on the store, and measures. `added` counts the executions of all rounds.
async fn round(
    site: &mut Site,
    wanted: &Wanted,
    args: &TasksArgs,
    added: &mut u64,
    note: Note,
) -> Result<Round> {
    site.start(wanted).await?;
    let is_cleaning = wanted.flags.iter().eq(&CLEANING);
    let agents = site.join(args.nodes, args.slots).await?;
    let server = site.first();
    let (mut before, since) = (server.stored_successes().await?, Instant::now());
    let first = before;
    while is_cleaning && before == first {
        if since.elapsed() > STUCK {
            return Err(Failure::bug(format!("no old execution was removed within {} s", STUCK.as_secs())));
        }
        tokio::time::sleep(LOOK).await;
        before = server.stored_successes().await?;
    }
    let succeeded = server.metrics().await?.get(SUCCEEDED);
    let figures = load_agents(site, args, note).await?;
    let own = (server.metrics().await?.get(SUCCEEDED) - succeeded) as u64;
    let after = server.stored_successes().await?;
    *added += own;
    for agent in agents {
        agent.drain_and_stop().await.map_err(|error| cannot("stop an agent", &error))?;
    }
    site.kill_servers();
    let removed = (before + own).saturating_sub(after);
    if is_cleaning && after <= *added {
        return Err(Failure::bad_input(
            "all old executions were removed before a measurement was over; raise --old",
        ));
    }
    Ok(Round { figures, removed })
}

/// Returns the figures of the last measurement beside cleaning, with the comparison of all.
fn figures(args: &TasksArgs, filled: f64, without: &[Round], mut with: Vec<Round>) -> Figures {
    let rate = |rounds: &[Round]| median(rounds.iter().map(|round| round.figures.per_second));
    let p99 = |rounds: &[Round]| median(rounds.iter().map(|round| round.figures.p99_ms));
    let (alone, beside) = (rate(without), rate(&with));
    let removed: u64 = with.iter().map(|round| round.removed).sum();
    let more = BTreeMap::from([
        ("old executions", args.old as f64),
        ("filled after seconds", filled),
        ("removed meanwhile", removed as f64),
        ("per second without cleaning", alone),
        ("per second beside cleaning", beside),
        ("p99 ms without cleaning", p99(without)),
        ("p99 ms beside cleaning", p99(&with)),
        ("cost of cleaning in percent", cost_percent(alone, beside)),
    ]);
    let last = with.pop().expect("there is at least one round").figures;
    Figures { more, ..last }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        0 if middle > 0 => f64::midpoint(values[middle - 1], values[middle]),
        _ => values.get(middle).copied().unwrap_or_default(),
    }
}

/// Returns by how much a rate is lower than another; negative if it is higher.
fn cost_percent(alone: f64, beside: f64) -> f64 {
    if alone > 0.0 { 100.0 * (alone - beside) / alone } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_is_the_part_of_the_rate_that_is_missing() {
        for (alone, beside, cost) in
            [(200.0, 190.0, 5.0), (200.0, 200.0, 0.0), (100.0, 110.0, -10.0), (0.0, 1.0, 0.0)]
        {
            assert!((cost_percent(alone, beside) - cost).abs() < 1e-9, "{alone} {beside}");
        }
    }

    #[test]
    fn the_median_is_the_value_in_the_middle() {
        for (values, expected) in
            [(&[][..], 0.0), (&[3.0], 3.0), (&[9.0, 1.0, 2.0], 2.0), (&[4.0, 1.0, 2.0, 9.0], 3.0)]
        {
            assert!((median(values.iter().copied()) - expected).abs() < 1e-9, "{values:?}");
        }
    }
}
