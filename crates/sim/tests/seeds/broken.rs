//! Each deliberate defect is found by its checker, and each checker finds a defect. `DOWNBEAT_TEST_SIM_BROKEN=Firing` tries
//! only the defects with this in their names.

use downbeat_sim::{Broken, Checker, Setup, run};

/// The maximum number of seeds: CI would not find it later either.
const SEEDS: u64 = 200;

/// Returns the checker that must find a defect.
fn finder(broken: Broken) -> Checker {
    match broken {
        Broken::NoFencing | Broken::LostCommit | Broken::LostOutbox => Checker::Results,
        Broken::NoEpochGuard => Checker::Attempts,
        Broken::FeedGap => Checker::Feed,
        Broken::LastingHeartbeats => Checker::Detection,
        Broken::LostEnd | Broken::GreedyPrune => Checker::Ends,
        Broken::LostResult => Checker::Order,
        Broken::ShortLeases | Broken::OldHeartbeats => Checker::Terms,
        Broken::EarlySilence => Checker::Nodes,
        Broken::NoHolds | Broken::NoRunLimit => Checker::Holds,
        Broken::TooManySlots => Checker::Limits,
        Broken::DeafWork => Checker::Work,
        Broken::ForgedCopy => Checker::Replica,
        Broken::NoVersionGuard
        | Broken::NoSessionGuard
        | Broken::NoAfterGuard
        | Broken::OutOfOrder
        | Broken::SecondStep
        | Broken::ForgottenResults => Checker::Standing,
        Broken::KeptRows => Checker::Clusters,
        Broken::NoFiringGuard | Broken::LostFiring | Broken::SecondFiring => Checker::Schedules,
        Broken::ForgedCheck | Broken::ForgedMove => Checker::Life,
        Broken::Panic => Checker::Panics,
    }
}

/// Returns the first seed with which the checker of a defect finds it.
fn found(broken: Broken) -> Option<u64> {
    let finds = |seed: &u64| {
        let outcome = run(Setup { broken: Some(broken), ..Setup::new(*seed) });
        outcome.violations.iter().any(|violation| violation.checker == finder(broken))
    };
    (0..SEEDS).find(finds)
}

#[test]
fn every_checker_has_a_defect() {
    for checker in Checker::ALL {
        assert!(Broken::ALL.iter().any(|broken| finder(*broken) == checker), "no defect is for {checker:?}");
    }
}

#[test]
fn every_defect_is_found() {
    let part = std::env::var("DOWNBEAT_TEST_SIM_BROKEN").unwrap_or_default();
    let all: Vec<Broken> =
        Broken::ALL.into_iter().filter(|broken| format!("{broken:?}").contains(&part)).collect();
    let (first, second) = all.split_at(all.len() / 2);
    let search = |defects: &[Broken]| -> Vec<(Broken, Option<u64>)> {
        defects.iter().map(|broken| (*broken, found(*broken))).collect()
    };
    let found = std::thread::scope(|scope| {
        let other = scope.spawn(|| search(second));
        let mut found = search(first);
        found.extend(other.join().expect("the seeds run on threads of their own"));
        found
    });
    for (broken, seed) in &found {
        println!("{broken:?} is found by {:?} with seed {seed:?}", finder(*broken));
    }
    let missed: Vec<Broken> =
        found.iter().filter(|(_, seed)| seed.is_none()).map(|(broken, _)| *broken).collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
}
