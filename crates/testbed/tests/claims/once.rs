//! 8 agents and 10,000 placed tasks: each runs once, none is lost, and the metrics add up.

use std::collections::{BTreeMap, BTreeSet};

use downbeat_core::execution::Status;
use downbeat_testbed::Database;

use crate::site::{Site, fan};

const AGENTS: usize = 8;
/// Few, so that most executions are pending and get claimed.
const SLOTS: u32 = 32;
const RUNS: usize = 10;
const TASKS: usize = 1_000;

async fn every_task_is_done_once(site: Site) -> Site {
    let mut runs = Vec::new();
    for number in 0..RUNS {
        runs.push(site.submit(number, fan(TASKS)).await);
    }
    for run in &runs {
        site.until(|| site.is_ended(run)).await;
    }
    let mut recorded = BTreeMap::new();
    for run in &runs {
        let executions = site.executions(run).await;
        let steps: BTreeSet<u32> = executions.iter().map(|each| each.step()).collect();
        assert_eq!((executions.len(), steps.len()), (TASKS, TASKS), "one execution for each step");
        for execution in executions {
            assert_eq!(
                (execution.state.status(), execution.attempt),
                (Status::Succeeded, 1),
                "{execution:?}"
            );
            recorded.insert(execution.id, execution.node().unwrap());
        }
    }
    // The agents' work matches the records: each execution once, and nothing else.
    let mut done: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    let mut workers = BTreeSet::new();
    for (identity, worker) in site.book.entries() {
        assert_eq!(identity.attempt, 1);
        done.entry(identity.execution).or_default().push(worker);
        workers.insert(worker);
    }
    let twice: Vec<_> = done.iter().filter(|(_, workers)| workers.len() > 1).collect();
    assert!(twice.is_empty(), "executed more than once: {twice:?}");
    assert_eq!(done.len(), RUNS * TASKS);
    assert!(done.keys().eq(recorded.keys()), "the agents' work and the records differ");
    assert_eq!(workers.len(), AGENTS, "every agent had work");

    let claims = site.per_server("downbeat_node_claims_total").await;
    let contention = site.per_server("downbeat_node_claim_contention_total").await;
    assert_eq!(claims.iter().sum::<u64>(), (RUNS * TASKS) as u64, "claims per server: {claims:?}");
    assert_eq!(site.per_server("downbeat_node_leases_expired_total").await.iter().sum::<u64>(), 0);
    // Every change that is not refused is an event; a refused change need not be a claim.
    let events = site.servers[0].server.service().views().last_seq().await.unwrap();
    let mut changes = 0;
    for server in &site.servers {
        changes += server.figure("downbeat_commit_batch_size_sum").await;
    }
    let refused = changes - events;
    assert!(contention.iter().sum::<u64>() <= refused, "{contention:?} of {refused} refused changes");
    println!("claims per server {claims:?}, contention {contention:?} of {refused} refused");
    site
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_tasks_are_done_once_each_on_sqlite() {
    let site = every_task_is_done_once(Site::start(None, 1, AGENTS, SLOTS).await).await;
    let contention = site.per_server("downbeat_node_claim_contention_total").await;
    assert_eq!(contention, [0], "a single server has no contention");
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_tasks_are_done_once_each_by_two_servers_on_postgres() {
    let database = Database::create().await;
    let site = Site::start(Some(&database.url), 2, AGENTS, SLOTS).await;
    let site = every_task_is_done_once(site).await;
    let claims = site.per_server("downbeat_node_claims_total").await;
    assert!(claims.iter().all(|claims| *claims > 0), "both servers claim: {claims:?}");
    // The last tasks of a run are claimed by any server with room, so both soon claim the same one.
    let mut more = 0;
    while site.per_server("downbeat_node_claim_contention_total").await.contains(&0) {
        let run = site.submit(more, fan(100)).await;
        site.until(|| site.is_ended(&run)).await;
        more += 1;
        assert!(more < 200, "no claim was ever refused");
    }
    site.stop().await;
    database.drop().await;
}
