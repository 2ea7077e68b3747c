//! A full disk under the store: a clear error, nothing is lost, and work continues when there is room again.

use downbeat_testbed::{SmallDisk, Store, eventually};
use serde_json::json;

use crate::site::Site;

#[tokio::test]
async fn a_full_disk_refuses_runs_clearly_and_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let disk = SmallDisk::mount(&directory.path().join("disk"), 6);
    let store = Store::SqliteAt(disk.path.join("downbeat.db"));
    let site = Site::start(Site::build().store(store).agents(&["web-1"])).await;
    let definition = json!({"target": "all", "tasks": [site.entry("a", "0")]});
    let first = site.submit(&definition, "first").await;
    assert_eq!(site.ended(&first).await["status"], "completed");

    // A run is active when the disk fills: its result waits at the agent.
    let slow = json!({"target": "all", "tasks": [site.entry("b", "1")]});
    let active = site.submit(&slow, "active").await;
    eventually("it began", || async { (site.done().len() == 2).then_some(()) }).await;
    disk.fill();
    let tasks: Vec<_> = (0..200).map(|index| site.entry(&format!("x{index}"), "0")).collect();
    let big = json!({"target": "all", "tasks": tasks});
    let refused = eventually("a run is refused", || async {
        let (status, problem) = site.post("runs", &big, None).await?;
        (status == 503).then_some(problem)
    })
    .await;
    let detail = refused["detail"].as_str().unwrap_or_default();
    assert!(detail.contains("no space left"), "the error says what is wrong: {refused}");
    assert!(site.server.is_running());
    let ready = site.client.ask(0, "/readyz").await.unwrap();
    let why = ready.body.to_string();
    assert!(ready.status == 503 && why.contains("no space left"), "readiness says so: {ready:?}");
    let status = site.get("status").await.unwrap();
    let problem = status["store_problem"].as_str().unwrap_or_default();
    assert!(problem.contains("no space left"), "{status:#}");
    assert!(site.get(&format!("runs/{first}")).await.is_some(), "what was recorded can be read");

    disk.empty();
    let ready = || async { site.client.ask(0, "/readyz").await.filter(|answer| answer.status == 200) };
    eventually("it is ready again", ready).await;
    let view = site.ended(&active).await;
    assert_eq!(view["status"], "completed", "{view:#}");
    let last = site.submit(&definition, "last").await;
    assert_eq!(site.ended(&last).await["status"], "completed");
    site.check(&[first, active, last]).await;
}
