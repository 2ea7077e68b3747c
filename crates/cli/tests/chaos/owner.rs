//! A run's owner dies: the run continues on another server, from where it was. And a server can cancel a run that it
//! does not own.

use std::time::Instant;

use downbeat_testbed::{eventually, processes};
use serde_json::json;

use crate::book::{Book, task};
use crate::cluster::{Cluster, Plan};
use crate::outage::assert_true;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_whose_owner_is_killed_goes_on_elsewhere_from_where_it_was() {
    let cluster = Cluster::start(Plan { servers: 3, agents: 2, special: false }).await;
    let book = cluster.book();
    let tasks: Vec<_> = (0..4).map(|step| task(&book, &format!("t{step}"), 0.4, 1)).collect();
    let run = cluster.submit(1, &json!({"name": "k", "target": "all", "tasks": tasks}), "k").await;
    let owner = cluster.owner(&run).await;
    eventually("it is in its second step", || async {
        (Book::read(&book).ends().count() >= 3).then_some(())
    })
    .await;
    cluster.servers[owner].kill();
    let killed = Instant::now();
    let taken = eventually("another server takes it", || async {
        let now = cluster.direct.get_any(owner + 1, &format!("runs/{run}")).await?;
        let servers = cluster.direct.get_any(owner + 1, "servers").await?;
        let name =
            servers["data"].as_array()?.iter().find(|server| server["id"] == now["owner"])?["name"].clone();
        (name != cluster.servers[owner].name.as_str()).then(|| killed.elapsed())
    })
    .await;
    let view = cluster.ended((owner + 1) % 3, &run).await;
    assert_eq!(view["status"], "completed", "{view:#}");
    println!("an owner was killed; its run was taken over after {:.1} s", taken.as_secs_f64());
    cluster.heal().await;
    let evidence = assert_true(&cluster, &[("k", &run)]).await;
    let executions = &evidence.runs[&run].executions;
    assert_eq!(executions.len(), 8, "no step that had finished is repeated");
    assert!(executions.iter().all(|execution| execution.status == "succeeded" && execution.attempt == 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_cancelled_through_a_server_that_does_not_own_it() {
    let cluster = Cluster::start(Plan { servers: 3, agents: 2, special: false }).await;
    let book = cluster.book();
    let tasks = json!([task(&book, "long", 600.0, 1), task(&book, "never", 0.0, 1)]);
    let run = cluster.submit(0, &json!({"name": "k", "target": "all", "tasks": tasks}), "k").await;
    eventually("it runs everywhere", || async { (Book::read(&book).lines.len() == 2).then_some(()) }).await;
    assert!(processes::of_executions(&cluster.site()).len() >= 2, "the processes can be seen");
    let owner = cluster.owner(&run).await;
    let other = (owner + 1) % 3;
    let answer = cluster.client.post(other, &format!("runs/{run}/cancel"), &json!({}), None).await.unwrap();
    assert!(answer.status < 300, "{answer:?}");
    let asked = Instant::now();
    eventually("its processes are gone", || async {
        processes::of_executions(&cluster.site()).is_empty().then_some(())
    })
    .await;
    println!("cancelled through another server: processes gone after {:.1} s", asked.elapsed().as_secs_f64());
    let view = cluster.ended(other, &run).await;
    assert_eq!(view["status"], "cancelled", "{view:#}");
    assert_true(&cluster, &[("k", &run)]).await;
}
