//! A machine that was suspended: its timers stopped, the server's did not.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use downbeat_agent::{Agent, Disk, Host, Surroundings};
use downbeat_backends::{Backend, Identity, Test};
use downbeat_core::execution::Verdict;
use serde_json::Value;

use crate::fake::{Dial, Server, settings, sleep, unique};

/// A machine whose time since boot the test sets.
#[derive(Debug)]
struct Laptop(Mutex<Duration>);

#[async_trait]
impl Host for Laptop {
    fn backends(&self) -> Vec<Arc<dyn Backend>> {
        vec![Arc::new(Test)]
    }

    fn capabilities(&self) -> BTreeMap<String, Value> {
        BTreeMap::new()
    }

    async fn sweep(&self, _: Duration) -> Vec<Identity> {
        Vec::new()
    }

    fn boot_time(&self) -> Option<Duration> {
        Some(*self.0.lock().unwrap())
    }
}

#[tokio::test]
async fn an_agent_that_wakes_up_does_not_grant_itself_the_rest_of_a_term_that_is_over() {
    let server = Server::with(|server| server.lease_ttl = Duration::from_secs(3_600));
    let data = tempfile::tempdir().unwrap();
    let laptop = Arc::new(Laptop(Mutex::new(Duration::from_secs(1_000))));
    let surroundings = Surroundings {
        wall: Arc::new(jiff::Timestamp::now),
        seed: 1,
        disk: Disk::Thread,
        host: laptop.clone(),
    };
    let agent = Agent::start_within(settings(data.path()), Arc::new(Dial(server.clone())), surroundings);
    let number = unique();
    let mut work = sleep(number, "1h");
    work.stop_on_disconnect = true;
    server.give([work]);
    server.until("it began", |state| (!state.started.is_empty()).then_some(())).await;
    server.change(|state| state.down = true);
    *laptop.0.lock().unwrap() += Duration::from_secs(7_200);
    let outbox = data.path().join("outbox");
    crate::fake::eventually("the work is ended", || {
        std::fs::read_dir(&outbox).unwrap().flatten().any(|entry| entry.metadata().unwrap().len() > 0)
    })
    .await;
    server.change(|state| state.down = false);
    let outcome = server.result(number).await.outcome;
    assert_eq!(outcome.verdict, Verdict::Failed);
    assert!(outcome.error.unwrap().starts_with("stopped: no server could be reached for "));
    agent.drain_and_stop().await.unwrap();
}
