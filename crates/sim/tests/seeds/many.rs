//! Runs many seeds. `DOWNBEAT_TEST_SEED=n` runs exactly one and prints its trace (including the product's log with
//! `DOWNBEAT_TEST_SIM_LOG=1`), `DOWNBEAT_TEST_SIM_SEEDS=n` sets the number of seeds, `DOWNBEAT_TEST_SIM_FIRST=n` the
//! first one, and `DOWNBEAT_TEST_SIM_SECONDS=n` runs new seeds for this long.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use downbeat_sim::{Outcome, Setup, run};

/// The number of seeds in CI.
const SEEDS: u64 = 1_000;
/// Leaves the other cores to other tests.
const THREADS: usize = 2;
/// The number of lines of a failing seed's trace.
const TAIL: usize = 60;
/// More failures at once do not help.
const FAILURES: usize = 5;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not `{text}`")))
}

pub(crate) fn report(outcome: &Outcome) -> String {
    let seed = outcome.seed;
    let violations: Vec<String> = outcome.violations.iter().map(ToString::to_string).collect();
    let tail = outcome.trace[outcome.trace.len().saturating_sub(TAIL)..].join("\n");
    format!(
        "seed {seed} does not hold:\n  {}\nthe end of its trace:\n{tail}\n\
         again: DOWNBEAT_TEST_SEED={seed} cargo test -p downbeat-sim --test seeds every_seed_holds -- --nocapture",
        violations.join("\n  ")
    )
}

/// Returns the first seed, the number of seeds, and the deadline.
fn which() -> (u64, u64, Option<Instant>) {
    if let Some(seconds) = number("DOWNBEAT_TEST_SIM_SECONDS") {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let fresh = now.as_secs() * 1_000_000;
        return (fresh, u64::MAX / 2, Some(Instant::now() + Duration::from_secs(seconds)));
    }
    let first = number("DOWNBEAT_TEST_SIM_FIRST").unwrap_or(0);
    (first, number("DOWNBEAT_TEST_SIM_SEEDS").unwrap_or(SEEDS), None)
}

#[test]
fn every_seed_holds() {
    if let Some(seed) = number("DOWNBEAT_TEST_SEED") {
        let log = number("DOWNBEAT_TEST_SIM_LOG").is_some_and(|log| log > 0);
        let outcome = run(Setup { log, ..Setup::new(seed) });
        println!("{}\n{:#?}", outcome.trace.join("\n"), outcome.counts);
        assert!(outcome.violations.is_empty(), "{}", report(&outcome));
        return;
    }
    let (first, count, until) = which();
    println!("seeds from {first} on, at most {count}");
    let begun = Instant::now();
    let next = AtomicU64::new(first);
    let failures: Mutex<Vec<Outcome>> = Mutex::default();
    let simulated: Mutex<Duration> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while failures.lock().unwrap().len() < FAILURES {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count || until.is_some_and(|until| Instant::now() >= until) {
                        return;
                    }
                    let outcome = run(Setup::new(seed));
                    *simulated.lock().unwrap() += outcome.simulated;
                    if !outcome.violations.is_empty() {
                        failures.lock().unwrap().push(outcome);
                    }
                }
            });
        }
    });
    let hours = simulated.into_inner().unwrap().as_secs_f64() / 3600.0;
    let seeds = next.into_inner().saturating_sub(first).min(count);
    println!("{seeds} seeds, {hours:.1} hours in {:.1} s", begun.elapsed().as_secs_f64());
    let mut failures = failures.into_inner().unwrap();
    failures.sort_by_key(|outcome| outcome.seed);
    for outcome in &failures {
        println!("{}\n", report(outcome));
    }
    let seeds: Vec<u64> = failures.iter().map(|outcome| outcome.seed).collect();
    assert!(seeds.is_empty(), "failing seeds: {seeds:?}");
}

#[test]
fn without_faults_it_goes_well() {
    for seed in 0..20 {
        let outcome = run(Setup { faults: false, ..Setup::new(seed) });
        assert!(outcome.violations.is_empty(), "{}", report(&outcome));
        assert_eq!(outcome.counts.lost, 0, "seed {seed}");
    }
}

#[test]
fn no_result_is_lost_while_no_server_runs() {
    for seed in 0..20 {
        let outcome = run(Setup { faults: false, outage: true, ..Setup::new(seed) });
        assert!(outcome.violations.is_empty(), "{}", report(&outcome));
        assert_eq!(outcome.counts.lost, 0, "seed {seed}");
    }
}

#[test]
fn the_work_of_an_agent_that_never_reports_is_ended() {
    let mut unreported = 0;
    for seed in 0..3 {
        let outcome = run(Setup { faults: false, mute: true, ..Setup::new(seed) });
        assert!(outcome.violations.is_empty(), "{}", report(&outcome));
        unreported += outcome.counts.unreported;
    }
    assert!(unreported > 0, "the agents had no work");
}
