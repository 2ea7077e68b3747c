//! Whole graphs: several workers share one, and a worker or the server dies in the middle.

use std::collections::BTreeSet;

use downbeat_testbed::eventually;
use downbeat_testbed::processes::is_alive;
use serde_json::{Value, json};

use super::{parallel, rows, site};
use crate::site::Site;

/// A root, six tasks that wait for the gate, and one that joins them.
fn fan(site: &Site) -> Value {
    let mut definition = parallel((0..6).map(|index| site.gated(&format!("t{index}"), "gate")).collect());
    let mut join = site.entry("join", "0");
    join["depends_on"] = json!((0..6).map(|index| format!("t{index}")).collect::<Vec<_>>());
    definition["tasks"].as_array_mut().unwrap().push(join);
    definition
}

#[tokio::test]
async fn one_graph_is_carried_out_by_several_workers_at_once() {
    let site = site(&["web-1", "web-2", "web-3"]).await;
    let run = site.submit(&fan(&site), "k").await;
    // They wait for each other: all six slots must be in use, or this never ends.
    let first = site.have_begun(6).await;
    for node in ["web-1", "web-2", "web-3"] {
        let work = site.work(node).await;
        assert_eq!(
            (&work["slots"]["free"], work["held"].as_array().unwrap().len()),
            (&json!(0), 2),
            "{work}"
        );
    }
    site.open("gate");
    assert_eq!(site.ended(&run).await["status"], "completed");
    let begun = site.begun();
    assert_eq!((&begun[..6], begun.len()), (&first[..], 7), "the join begins when all have ended, and once");
    let executions = site.executions(&run).await;
    assert!(rows(&executions).iter().all(|(_, attempt, status, _)| (*attempt, *status) == (1, "succeeded")));
}

#[tokio::test]
async fn a_worker_that_dies_in_the_middle_costs_its_attempts_and_nothing_else() {
    let site = site(&["web-1", "web-2", "web-3"]).await;
    let run = site.submit(&fan(&site), "k").await;
    site.have_begun(6).await;
    site.agent("web-2").kill();
    // The others are full: its work waits until there is room.
    site.work_until("web-2", |work| work["expired_leases"] == 2).await;
    site.open("gate");
    assert_eq!(site.ended(&run).await["status"], "completed");
    let executions = site.executions(&run).await;
    let rows = rows(&executions);
    let lost: Vec<_> = rows.iter().filter(|(_, _, status, _)| *status == "lost").collect();
    assert!(lost.iter().all(|(_, attempt, _, node)| (*attempt, *node) == (1, "web-2")), "{rows:?}");
    assert_eq!(lost.len(), 2);
    let again: BTreeSet<u64> =
        rows.iter().filter(|(_, attempt, ..)| *attempt == 2).map(|(step, ..)| *step).collect();
    assert_eq!(again, lost.iter().map(|(step, ..)| *step).collect());
    assert_eq!(rows.iter().filter(|(_, _, status, _)| *status == "succeeded").count(), 7);
    assert_eq!(site.begun().len(), rows.len(), "every attempt began once");
}

#[tokio::test]
async fn work_goes_on_while_the_server_is_away_and_its_results_count() {
    let site = site(&["web-1", "web-2", "web-3"]).await;
    let run = site.submit(&fan(&site), "k").await;
    let begun = site.have_begun(6).await;
    site.server.kill();
    site.open("gate");
    for name in &begun {
        let pid = site.pid_of(name);
        eventually("it ends by itself", || async { (!is_alive(pid)).then_some(()) }).await;
    }
    assert_eq!(site.begun(), begun, "nothing new is given out without a server");
    site.server.serve();
    assert_eq!(site.ended(&run).await["status"], "completed");
    let executions = site.executions(&run).await;
    assert!(rows(&executions).iter().all(|(_, attempt, status, _)| (*attempt, *status) == (1, "succeeded")));
    assert_eq!(site.begun().len(), 7);
}
