//! Random jobs, random outcomes and random losses: compares the engine with the tables, step by step.
//! `DOWNBEAT_TEST_SEED=n` repeats one case, `DOWNBEAT_TEST_CASES=n` runs n cases.

mod case;
mod compare;
mod counts;
mod parts;
mod rules;
mod story;
mod tables;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use downbeat_core::Dice;

use case::Case;
use counts::{Counts, KINDS};
use story::play;

const CASES: u64 = 100_000;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not `{text}`")))
}

fn case(seed: u64) -> Case {
    Case::random(&mut Dice::new(seed))
}

/// Returns a report when the engine and the tables differ, or when either panics.
fn differs(case: &Case, seed: u64, counts: &mut Counts) -> Option<String> {
    match catch_unwind(AssertUnwindSafe(|| play(case, seed, counts))) {
        Ok(played) => played.err(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
            let definition = serde_json::to_string(&case.definition).expect("it serialises");
            Some(format!("panic: {text}\non {} nodes: {definition}", case.nodes))
        }
    }
}

/// Shrinks a case: finds a smaller one that differs too, with the same story or a similar one.
fn shrink(mut case: Case, seed: u64, mut report: String) -> String {
    let smaller_that_differs = |case: &Case| {
        case.smaller().into_iter().find_map(|smaller| {
            let report =
                (seed..seed + 50).find_map(|seed| differs(&smaller, seed, &mut Counts::default()))?;
            Some((smaller, report))
        })
    };
    while let Some((smaller, smaller_report)) = smaller_that_differs(&case) {
        (case, report) = (smaller, smaller_report);
    }
    report
}

fn fail(seed: u64, report: &str) -> ! {
    let small = shrink(case(seed), seed, report.to_owned());
    panic!(
        "the engine and the tables differ; again: DOWNBEAT_TEST_SEED={seed} cargo test -p downbeat-core --test engine \
         model\n\n{report}\n\nin a smaller case:\n\n{small}"
    );
}

#[test]
fn every_run_ends_as_the_tables_say() {
    if let Some(seed) = number("DOWNBEAT_TEST_SEED") {
        if let Some(report) = differs(&case(seed), seed, &mut Counts::default()) {
            fail(seed, &report);
        }
        return;
    }
    let cases = number("DOWNBEAT_TEST_CASES").unwrap_or(CASES);
    let (next, total, found) = (AtomicU64::new(0), Mutex::new(Counts::default()), Mutex::new(None));
    let play_some = || {
        let mut counts = Counts::default();
        while found.lock().expect("nobody panics with it").is_none() {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= cases {
                break;
            }
            if let Some(report) = differs(&case(seed), seed, &mut counts) {
                found.lock().expect("nobody panics with it").get_or_insert((seed, report));
            }
        }
        total.lock().expect("nobody panics with it").add(&counts);
    };
    let threads = std::thread::available_parallelism().map_or(2, usize::from).min(8);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(play_some);
        }
    });
    if let Some((seed, report)) = found.into_inner().expect("nobody panics with it") {
        fail(seed, &report);
    }
    let total = total.into_inner().expect("nobody panics with it");
    println!("{cases} cases: {total:#?}");
    // With few stories, some situations may not occur.
    for what in KINDS.into_iter().filter(|_| cases >= 1_000) {
        let count = total.0.get(what).copied().unwrap_or(0);
        assert!(count >= cases / 200, "of {cases} stories only {count} had: {what}");
    }
}
