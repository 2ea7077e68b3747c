//! Everything at once: server and agents are killed, frozen and started at random while runs go on.

use std::time::{Duration, Instant};

use downbeat_core::Dice;
use downbeat_testbed::{Store, seed};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::site::Site;

const NAMES: [&str; 3] = ["web-1", "web-2", "web-3"];

async fn anything_may_die(store: Store) {
    let soak = std::env::var("DOWNBEAT_TEST_SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    let until = Instant::now() + Duration::from_secs(soak.unwrap_or(0));
    let mut dice = Dice::new(seed());
    let mut site = Site::start(Site::build().store(store).agents(&NAMES)).await;
    let mut runs = Vec::new();
    let mut faults = 0;
    while faults < 12 || Instant::now() < until {
        let mut tasks: Vec<_> = (0..3).map(|index| site.entry(&format!("t{index}"), "0.05")).collect();
        tasks[1]["retry"] = json!({"max": 2, "delay": "50ms"});
        let mut definition = json!({"strategy": "continue", "tasks": tasks});
        if dice.below(2) == 0 {
            definition["target"] = json!("group:web");
        }
        runs.push(site.submit(&definition, &format!("run-{}", runs.len())).await);
        tokio::time::sleep(Duration::from_millis(dice.below(200))).await;
        let name = NAMES[usize::try_from(dice.below(3)).unwrap()];
        match dice.below(4) {
            0 => {
                site.server.kill();
                site.server.serve();
            }
            1 => {
                site.agent(name).kill();
                site.start_agent(name);
            }
            2 => {
                site.server.kill();
                site.agent(name).kill();
                site.start_agent(name);
                site.server.serve();
            }
            _ => {
                // Shorter than a lease: it must have no effect.
                site.agent(name).signal(Signal::SIGSTOP);
                tokio::time::sleep(Duration::from_millis(dice.below(800))).await;
                site.agent(name).signal(Signal::SIGCONT);
            }
        }
        faults += 1;
    }
    for run in &runs {
        site.ended(run).await;
    }
    let checked = site.check(&runs).await;
    println!("{faults} faults, {} runs: {checked:?}", runs.len());
}

#[tokio::test]
async fn whatever_dies_every_run_ends_and_the_records_are_true_on_sqlite() {
    anything_may_die(Store::Sqlite).await;
}

#[tokio::test]
async fn whatever_dies_every_run_ends_and_the_records_are_true_on_postgres() {
    anything_may_die(Store::Postgres).await;
}
