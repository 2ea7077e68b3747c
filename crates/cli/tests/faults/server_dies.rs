//! `kill -9` of the server at random moments: the run ends, every execution has one result, nothing ran twice.

use std::time::{Duration, Instant};

use downbeat_core::Dice;
use downbeat_testbed::{Store, eventually, seed};
use serde_json::json;

use crate::site::Site;

async fn the_server_is_killed_again_and_again(store: Store) {
    let soak = std::env::var("DOWNBEAT_TEST_SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    let until = Instant::now() + Duration::from_secs(soak.unwrap_or(0));
    let mut dice = Dice::new(seed());
    let site = Site::start(Site::build().store(store).agents(&["web-1", "web-2", "web-3"])).await;
    let mut runs = Vec::new();
    let mut kills = 0;
    while kills < 8 || Instant::now() < until {
        let fleet = json!({"name": "fleet", "target": "group:web", "tasks": [
            site.entry("a", "0.05"),
            {"tasks": [site.entry("b", "0.02"), site.entry("c", "0.02")]},
            site.entry("d", "0")
        ]});
        let mut root = site.entry("root", "0");
        root["depends_on"] = json!([]);
        let graph: Vec<_> = (0..6)
            .map(|index| {
                let mut task = site.entry(&format!("t{index}"), "0.03");
                task["depends_on"] = json!(["root"]);
                task
            })
            .collect();
        let tasks = [vec![root], graph].concat();
        let graph = json!({"name": "graph", "tasks": tasks});
        for definition in [fleet, graph] {
            runs.push(site.submit(&definition, &format!("run-{}", runs.len())).await);
        }
        for _ in 0..2 {
            tokio::time::sleep(Duration::from_millis(dice.below(250))).await;
            site.server.kill();
            kills += 1;
            site.server.serve();
        }
        for run in &runs[runs.len() - 2..] {
            let view = site.ended(run).await;
            assert_eq!(view["status"], "completed", "{view:#}");
        }
    }
    let checked = site.check(&runs).await;
    assert_eq!(checked.lost, 0, "agents that live lose nothing when only the server dies");
    assert_eq!(checked.executions, site.done().len());
    println!("{kills} kills, {} runs, {} executions", runs.len(), checked.executions);
}

#[tokio::test]
async fn runs_whose_submitter_hung_up_end_all_the_same() {
    let mut dice = Dice::new(seed());
    let site = Site::with_agents(&["web-1"]).await;
    let definition = json!({"target": "all", "tasks": [site.entry("a", "0"), site.entry("b", "0")]});
    for _ in 0..40 {
        let patience = Duration::from_micros(dice.below(6_000));
        // The run may or may not be accepted before the client hangs up.
        let _ = tokio::time::timeout(patience, site.post("runs", &definition, None)).await;
    }
    // Some submissions are still in flight: all have arrived when every line of the book belongs to an ended run.
    let ids = eventually("every run ends", || async {
        let runs = site.get("runs?limit=1000").await?;
        let runs = runs["data"].as_array()?;
        let ended = runs.iter().all(|run| run["status"] == "completed");
        let ids = runs.iter().map(|run| run["id"].as_str().unwrap().to_owned());
        (ended && site.done().len() == 2 * runs.len()).then(|| ids.collect::<Vec<_>>())
    })
    .await;
    println!("{} of 40 were accepted", ids.len());
    site.check(&ids).await;
}

#[tokio::test]
async fn kill_9_of_the_server_loses_nothing_and_repeats_nothing_on_sqlite() {
    the_server_is_killed_again_and_again(Store::Sqlite).await;
}

#[tokio::test]
async fn kill_9_of_the_server_loses_nothing_and_repeats_nothing_on_postgres() {
    the_server_is_killed_again_and_again(Store::Postgres).await;
}
