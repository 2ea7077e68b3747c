//! Servers on one store, and agents that record their work.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use downbeat_agent::{Agent, Disk, Grpc, Handle, Host, Settings, Surroundings};
use downbeat_backends::{Backend, Call, Finish, Identity};
use downbeat_core::backend::{BackendSchema, Catalogue};
use downbeat_core::execution::Execution;
use downbeat_core::ids::RunId;
use downbeat_server::{Caller, Submit};
use downbeat_testbed::DEADLINE;
use downbeat_testbed::in_process::{Setup, settings};
use jiff::Timestamp;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The executed attempts, each with its agent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Book(Arc<Mutex<Vec<(Identity, usize)>>>);

impl Book {
    fn lines(&self) -> std::sync::MutexGuard<'_, Vec<(Identity, usize)>> {
        self.0.lock().unwrap()
    }

    pub(crate) fn len(&self) -> usize {
        self.lines().len()
    }

    pub(crate) fn entries(&self) -> Vec<(Identity, usize)> {
        self.lines().clone()
    }
}

/// A machine whose only backend records its calls.
#[derive(Clone, Debug)]
struct Machine {
    number: usize,
    book: Book,
}

#[async_trait]
impl Host for Machine {
    fn backends(&self) -> Vec<Arc<dyn Backend>> {
        vec![Arc::new(self.clone())]
    }

    fn capabilities(&self) -> BTreeMap<String, Value> {
        BTreeMap::new()
    }

    async fn sweep(&self, _: Duration) -> Vec<Identity> {
        Vec::new()
    }
}

#[async_trait]
impl Backend for Machine {
    fn schema(&self) -> BackendSchema {
        Catalogue::builtin().backend("test").expect("the catalogue has `test`").clone()
    }

    async fn run(&self, call: Call) -> Finish {
        self.book.lines().push((call.identity, self.number));
        Finish::succeeded()
    }
}

pub(crate) struct Site {
    pub(crate) servers: Vec<Setup>,
    pub(crate) book: Book,
    agents: Vec<Handle>,
    directory: TempDir,
}

impl Site {
    /// Starts servers on one store, and agents that each know all servers, in a different order. The default store is
    /// SQLite.
    pub(crate) async fn start(store: Option<&str>, servers: usize, agents: usize, slots: u32) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let sqlite = format!("sqlite:{}", directory.path().join("downbeat.db").display());
        let mut site = Self { servers: Vec::new(), book: Book::default(), agents: Vec::new(), directory };
        for number in 1..=servers {
            let settings = settings(store.unwrap_or(&sqlite), &format!("server-{number}"));
            site.servers.push(Setup::with(settings).await);
        }
        for number in 0..agents {
            let agent = site.agent(number, slots);
            site.agents.push(agent);
        }
        for server in &site.servers {
            let online = r#"downbeat_nodes{status="online"}"#;
            site.until(|| async { server.figure(online).await == agents as u64 }).await;
        }
        site
    }

    fn agent(&self, number: usize, slots: u32) -> Handle {
        let mut settings = Settings::new(self.directory.path().join(name(number)));
        settings.servers = self.servers.iter().map(|server| server.server.grpc_addr().to_string()).collect();
        settings.servers.rotate_left(number % self.servers.len());
        (settings.hostname, settings.slots) = (name(number), slots);
        let machine = Machine { number, book: self.book.clone() };
        let surroundings = Surroundings {
            wall: Arc::new(Timestamp::now),
            seed: number as u64,
            disk: Disk::Thread,
            host: Arc::new(machine),
        };
        Agent::start_within(settings, Arc::new(Grpc), surroundings)
    }

    pub(crate) async fn submit(&self, server: usize, definition: Value) -> RunId {
        let submit = Submit {
            definition: serde_json::from_value(definition).unwrap(),
            params: None,
            idempotency_key: None,
            no_cache: false,
        };
        let service = self.servers[server % self.servers.len()].server.service();
        service.submit(&Caller::named("test"), submit).await.unwrap().run.id.clone()
    }

    pub(crate) async fn executions(&self, run: &RunId) -> Vec<Execution> {
        self.servers[0].server.service().views().executions_of(run).await.unwrap()
    }

    pub(crate) async fn is_ended(&self, run: &RunId) -> bool {
        let run = self.servers[0].server.service().views().run(run).await.unwrap().unwrap();
        run.live.is_ended()
    }

    /// Returns, for each server, the sum of a metric over all nodes.
    pub(crate) async fn per_server(&self, name: &str) -> Vec<u64> {
        let mut sums = Vec::new();
        for server in &self.servers {
            let mut sum = 0;
            for number in 0..self.agents.len() {
                sum += server
                    .figure(&format!("{name}{{cluster=\"default\",node=\"{}\"}}", self::name(number)))
                    .await;
            }
            sums.push(sum);
        }
        sums
    }

    /// Waits until the condition is true. Panics if nothing was executed for a long time.
    pub(crate) async fn until<F: Future<Output = bool>>(&self, mut is_so: impl FnMut() -> F) {
        let (mut last, mut since) = (self.book.len(), Instant::now());
        while !is_so().await {
            let now = self.book.len();
            if now > last {
                (last, since) = (now, Instant::now());
            }
            assert!(since.elapsed() < DEADLINE, "no progress after {now} executions");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) async fn stop(self) {
        for agent in self.agents {
            agent.drain_and_stop().await.unwrap();
        }
        for server in self.servers {
            server.server.stop().await;
        }
    }
}

fn name(number: usize) -> String {
    format!("worker-{number}")
}

/// A job of parallel no-ops: a root, and all others after it.
pub(crate) fn fan(size: usize) -> Value {
    let mut tasks = vec![json!({"name": "root", "backend": "test", "action": "noop"})];
    tasks.extend((1..size).map(|index| {
        json!({"name": format!("t{index}"), "backend": "test", "action": "noop", "depends_on": ["root"]})
    }));
    json!({"name": "fan", "tasks": tasks})
}
