//! Turns do not depend on the server that a run was submitted to, and none is lost with its server.

use std::collections::BTreeSet;

use downbeat_core::{Change, Portion, Span};
use downbeat_server::Settings;
use downbeat_store::EventFilter;
use downbeat_testbed::Database;
use downbeat_testbed::in_process::{Setup, settings};

use crate::exclusive::check_alone;
use crate::work::{Log, Worker, job, with};

fn server(store: &str, name: &str, most: Option<u32>) -> Settings {
    Settings { max_concurrent_runs: most, server_stale_after: Span::from_secs(1), ..settings(store, name) }
}

/// Returns the maximum number of active runs at once, from the events.
async fn most_active(setup: &Setup) -> usize {
    let events = setup
        .server
        .service()
        .views()
        .events(&EventFilter::default(), Portion::of_rows(usize::MAX))
        .await
        .unwrap();
    let (mut active, mut most) = (BTreeSet::new(), 0);
    for event in events {
        match event.change {
            Change::RunAdmitted { run, .. } => {
                active.insert(run);
            }
            Change::RunMoved { run, path, .. } => {
                match path.last() {
                    Some(state) if state.is_terminal() => active.remove(&run),
                    Some(_) => active.insert(run),
                    None => false,
                };
            }
            _ => {}
        }
        most = most.max(active.len());
    }
    most
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_holds_over_two_servers() {
    let database = Database::create().await;
    let one = Setup::with(server(&database.url, "one", Some(2))).await;
    let two = Setup::with(server(&database.url, "two", Some(2))).await;
    let log = Log::default();
    let _workers = [Worker::at(&one, "web-01", &log).await, Worker::at(&two, "web-02", &log).await];
    let mut runs = Vec::new();
    for number in 0..12 {
        let setup = if number % 2 == 0 { &one } else { &two };
        runs.push(setup.submit(&job("all", 2)).await);
    }
    for run in &runs {
        assert_eq!(two.ended(run).await["state"], "completed");
    }
    assert_eq!(most_active(&one).await, 2);
    two.server.stop().await;
    one.server.stop().await;
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exclusive_runs_of_two_servers_do_not_interleave() {
    let database = Database::create().await;
    let one = Setup::with(server(&database.url, "one", None)).await;
    let two = Setup::with(server(&database.url, "two", None)).await;
    let log = Log::default();
    let _workers = [Worker::at(&one, "web-01", &log).await, Worker::at(&two, "web-02", &log).await];
    let (mut runs, mut alone) = (Vec::new(), Vec::new());
    for number in 0..8 {
        let setup = if number % 2 == 0 { &one } else { &two };
        alone.push(setup.submit(&with(job("all", 2), "exclusive", true)).await);
        runs.push(setup.submit(&job("all", 2)).await);
    }
    for run in runs.iter().chain(&alone) {
        assert_eq!(one.ended(run).await["state"], "completed");
    }
    let entries = log.entries();
    alone.iter().for_each(|run| check_alone(&entries, run));
    assert_eq!(one.server.service().views().holds().await.unwrap(), []);
    two.server.stop().await;
    one.server.stop().await;
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_whose_server_dies_while_it_waits_is_let_in_by_another() {
    let database = Database::create().await;
    let two = Setup::with(server(&database.url, "two", Some(1))).await;
    let mut agent = two.agent("web-01", &["web"]).await;
    let first = two.submit(&job("all", 1)).await;
    let work = agent.take().await;
    // A server that is killed.
    let dying = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let settings = server(&database.url, "one", Some(1));
    let one = dying.spawn(async move { Setup::with(settings).await }).await.unwrap();
    let orphans =
        [one.submit(&with(job("all", 1), "exclusive", true)).await, one.submit(&job("all", 1)).await];
    dying.shutdown_background();
    for run in &orphans {
        two.run_until(run, |run| run["owner"] == two.server.service().server_id().to_string()).await;
        assert_eq!(two.ok(&format!("/runs/{run}")).await["state"], "pending");
    }
    agent.finish(&work, 0).await;
    let log = Log::default();
    let _worker = Worker::of(agent, "web-01", &log);
    for run in orphans.iter().chain([&first]) {
        assert_eq!(two.ended(run).await["state"], "completed");
    }
    assert_eq!(log.runs(), orphans);
    two.server.stop().await;
    std::mem::forget(one);
    database.drop().await;
}
