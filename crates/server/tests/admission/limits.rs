//! Limits of tasks: never more than allowed at once, over all servers, and no slot is lost with a node.

use downbeat_core::Span;
use downbeat_server::Settings;
use downbeat_testbed::Database;
use downbeat_testbed::in_process::{Setup, settings};
use serde_json::{Value, json};

use crate::work::{Entry, Log, Worker};

fn quick(store: &str, name: &str) -> Settings {
    Settings {
        heartbeat_interval: Span::from_millis(500),
        node_stale_after: Span::from_secs(2),
        node_offline_after: Span::from_secs(600),
        lease_ttl: Span::from_secs(3),
        ..settings(store, name)
    }
}

/// Creates a job with this many items, each of which uses one slot of a limit.
fn limited(items: usize, limits: &Value) -> Value {
    let items: Vec<usize> = (0..items).collect();
    let task = json!({"name": "item", "backend": "test", "action": "noop", "for_each": {"items": items}, "limits": limits});
    json!({"tasks": [task]})
}

/// Returns the maximum number of executions that nodes had at once.
fn most_at_once(entries: &[Entry]) -> usize {
    let (mut now, mut most) = (0, 0);
    for entry in entries {
        if entry.began {
            now += 1;
        } else {
            now -= 1;
        }
        most = most.max(now);
    }
    most
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_together_give_out_no_more_than_a_limit_allows() {
    let database = Database::create().await;
    let one = Setup::with(settings(&database.url, "one")).await;
    let two = Setup::with(settings(&database.url, "two")).await;
    let log = Log::default();
    let mut workers = Vec::new();
    for node in 0..8 {
        let setup = if node % 2 == 0 { &one } else { &two };
        workers.push(Worker::at(setup, &format!("web-{node}"), &log).await);
    }
    let mut runs = Vec::new();
    for number in 0..4 {
        let setup = if number % 2 == 0 { &one } else { &two };
        runs.push(setup.submit(&limited(30, &json!({"db": 3}))).await);
    }
    for run in &runs {
        assert_eq!(one.ended(run).await["state"], "completed");
    }
    let entries = log.entries();
    assert_eq!(entries.len(), 2 * 4 * 30, "each once");
    assert!(most_at_once(&entries) <= 3, "{}", most_at_once(&entries));
    assert_eq!(one.server.service().views().uses().await.unwrap(), []);
    drop(workers);
    two.server.stop().await;
    one.server.stop().await;
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_node_of_another_server_holds_takes_a_place_until_it_ends() {
    let database = Database::create().await;
    let one = Setup::with(settings(&database.url, "one")).await;
    let two = Setup::with(settings(&database.url, "two")).await;
    let (mut here, mut there) = (one.agent("web-01", &[]).await, two.agent("web-02", &[]).await);
    let first = one.submit(&limited(2, &json!({"db": 1}))).await;
    let held = here.take().await;
    // The other server's node gets nothing of it, and the reason is shown.
    let why = |run: &Value| run["waiting"][0]["nodes"][0]["reason"] == "limit db: 1 of 1 in use";
    two.run_until(&first, why).await;
    assert!(there.take_soon().await.is_empty());
    // Work without this limit starts.
    let free = two.submit(&json!({"tasks": [{"backend": "test", "action": "noop"}]})).await;
    let other = there.take().await;
    assert_eq!(other.of.run().as_str(), free);
    there.finish(&other, 0).await;
    here.finish(&held, 0).await;
    let second = there.take().await;
    assert_eq!(second.of.run(), held.of.run());
    assert_ne!(second.execution, held.execution);
    there.finish(&second, 0).await;
    assert_eq!(two.ended(&first).await["state"], "completed");
    two.server.stop().await;
    one.server.stop().await;
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_place_of_a_node_that_fell_silent_is_free_when_its_lease_is_over() {
    let database = Database::create().await;
    let one = Setup::with(quick(&database.url, "one")).await;
    let two = Setup::with(quick(&database.url, "two")).await;
    let mut silent = one.agent("web-01", &[]).await;
    let run = one.submit(&limited(1, &json!({"db": 1}))).await;
    let lost = silent.take().await;
    let store = one.server.service().views();
    assert_eq!(store.uses().await.unwrap().len(), 1);
    // It sends no more heartbeats. Its slot goes to the next attempt, on a node of the other server.
    two.run_until(&run, |run| run["waiting"][0]["execution"].is_string()).await;
    let mut other = two.agent("web-02", &[]).await;
    let again = other.take().await;
    assert_eq!((again.of.run(), again.attempt), (lost.of.run(), lost.attempt + 1));
    assert_eq!(store.uses().await.unwrap().len(), 1);
    other.finish(&again, 0).await;
    assert_eq!(two.ended(&run).await["state"], "completed");
    assert_eq!(store.uses().await.unwrap(), [], "nothing leaks");
    two.server.stop().await;
    one.server.stop().await;
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_starts_knows_what_was_given_out_within_a_rate() {
    let database = Database::create().await;
    let one = Setup::with(settings(&database.url, "one")).await;
    let mut agent = one.agent("web-01", &[]).await;
    let first = one.submit(&limited(2, &json!({"api": "2/1h"}))).await;
    for _ in 0..2 {
        let work = agent.take().await;
        agent.finish(&work, 0).await;
    }
    assert_eq!(one.ended(&first).await["state"], "completed");
    one.server.stop().await;
    let two = Setup::with(settings(&database.url, "two")).await;
    let mut agent = two.agent("web-01", &[]).await;
    let second = two.submit(&limited(1, &json!({"api": "2/1h"}))).await;
    let why = |run: &Value| {
        let reason = run["waiting"][0]["nodes"][0]["reason"].as_str().unwrap_or_default();
        reason.starts_with("limit api: 2 started within 1h; next at ")
    };
    two.run_until(&second, why).await;
    assert!(agent.take_soon().await.is_empty());
    two.server.stop().await;
    database.drop().await;
}

#[tokio::test]
async fn a_limit_names_who_uses_it_and_who_waits() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let run = setup.submit(&limited(3, &json!({"db": 1, "api": "10/1m"}))).await;
    let work = agent.take().await;
    let limits = setup.ok("/limits").await;
    let [api, db] = &limits["data"].as_array().unwrap()[..] else { panic!("{limits}") };
    assert_eq!((&api["key"], &api["most"], &api["per"]), (&json!("api"), &json!(10), &json!("1m")));
    assert_eq!((&db["key"], &db["most"], &db["per"]), (&json!("db"), &json!(1), &json!(null)));
    for limit in [api, db] {
        assert_eq!((&limit["in_use"], &limit["waiting"]), (&json!(1), &json!(2)), "{limit}");
        let holder = &limit["holders"][0];
        assert_eq!((&holder["run"], &holder["node"]), (&json!(run), &json!("web-01")));
        assert_eq!(holder["execution"], json!(work.execution));
        assert_eq!(limit["waiters"].as_array().unwrap().len(), 2);
    }
    assert_eq!(setup.ok("/limits?limit=1&offset=1").await["data"][0]["key"], "db");
    setup.server.stop().await;
}
