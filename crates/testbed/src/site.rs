//! A server and agents as processes in their own directory, and requests to the server.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;
use tempfile::TempDir;

use crate::client::Client;
use crate::daemon::Daemon;
use crate::database::Database;
use crate::server::Server;
use crate::wait::eventually;

/// The store of a site's server.
#[derive(Clone, Debug)]
pub enum Store {
    Sqlite,
    SqliteAt(PathBuf),
    Postgres,
}

/// The settings of a site.
#[derive(Debug)]
pub struct Builder {
    store: Store,
    lease_ttl: &'static str,
    agents: Vec<String>,
    flags: Vec<String>,
}

impl Builder {
    pub fn store(mut self, store: Store) -> Self {
        self.store = store;
        self
    }

    pub fn lease_ttl(mut self, lease_ttl: &'static str) -> Self {
        self.lease_ttl = lease_ttl;
        self
    }

    pub fn agents(mut self, names: &[&str]) -> Self {
        self.agents = names.iter().map(|&name| name.to_owned()).collect();
        self
    }

    pub fn agent_flags(mut self, flags: &[&str]) -> Self {
        self.flags = flags.iter().map(|&flag| flag.to_owned()).collect();
        self
    }

    /// Starts all processes, and waits until all nodes are online.
    pub async fn start(self) -> Site {
        let directory = tempfile::tempdir().unwrap();
        let store = match self.store {
            Store::Sqlite => format!("sqlite:{}", directory.path().join("downbeat.db").display()),
            Store::SqliteAt(path) => format!("sqlite:{}", path.display()),
            Store::Postgres => Database::create().await.url,
        };
        let server = Server::new(directory.path(), "server", &store).with(&[
            "--heartbeat-interval",
            "400ms",
            "--lease-ttl",
            self.lease_ttl,
        ]);
        let client = Client::new(vec![server.url()]);
        let mut site = Site { agents: BTreeMap::new(), server, client, directory };
        site.server.serve();
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        for name in &self.agents {
            site.start_agent_with(name, &flags);
        }
        site.nodes_online(self.agents.len()).await;
        site
    }
}

/// A running site; see the module.
#[derive(Debug)]
pub struct Site {
    agents: BTreeMap<String, Daemon>,
    pub server: Server,
    pub client: Client,
    pub directory: TempDir,
}

impl Site {
    /// Returns the settings of a site with short leases on SQLite, and no agents.
    pub fn build() -> Builder {
        Builder { store: Store::Sqlite, lease_ttl: "2s", agents: Vec::new(), flags: Vec::new() }
    }

    /// Starts an agent with two slots, or starts an earlier one again.
    pub fn start_agent(&mut self, name: &str) {
        self.start_agent_with(name, &[]);
    }

    /// Starts an agent with two slots and additional flags.
    pub fn start_agent_with(&mut self, name: &str, flags: &[&str]) {
        let defaults = ["--groups", "web", "--allow", "exec", "--allow", "docker", "--slots", "2"];
        self.add_agent(self.server.agent(name).with(&defaults).with(flags));
    }

    /// Starts a given agent.
    pub fn add_agent(&mut self, agent: Daemon) {
        agent.start();
        self.agents.insert(agent.name.clone(), agent);
    }

    /// Returns an agent that was started.
    pub fn agent(&self, name: &str) -> &Daemon {
        self.agents.get(name).expect("the agent was started")
    }

    /// Changes the SQLite file for the server's next start, and returns the old one.
    pub fn use_store(&mut self, file: &str) -> String {
        let path = self.directory.path().join(file);
        let former = self.server.replace("--store", format!("sqlite:{}", path.display()));
        former.rsplit('/').next().unwrap_or_default().to_owned()
    }

    /// Waits until at least `count` nodes are online.
    pub async fn nodes_online(&self, count: usize) {
        eventually("the nodes are online", || async {
            let nodes = self.get("nodes").await?;
            let online = nodes["data"].as_array()?.iter().filter(|node| node["status"] == "online").count();
            (online >= count).then_some(())
        })
        .await;
    }

    /// Returns nothing if the server is unreachable or returns an error.
    pub async fn get(&self, path: &str) -> Option<Value> {
        self.client.get(0, path).await
    }

    /// Returns nothing if the server is unreachable.
    pub async fn post(&self, path: &str, body: &Value, key: Option<&str>) -> Option<(u16, Value)> {
        let answer = self.client.post(0, path, body, key).await?;
        Some((answer.status, answer.body))
    }

    /// Returns the status code of a deletion.
    pub async fn delete(&self, path: &str) -> Option<u16> {
        Some(self.client.delete(0, path).await?.status)
    }

    /// Submits until the server accepts it, with a key so that only one run is created. Returns the run's id.
    pub async fn submit(&self, definition: &Value, key: &str) -> String {
        eventually("the run is accepted", || async {
            let (status, run) = self.post("runs", definition, Some(key)).await?;
            assert!(matches!(status, 200 | 201 | 503), "{status} {run}");
            (status < 300).then(|| run["id"].as_str().unwrap().to_owned())
        })
        .await
    }

    pub async fn ended(&self, run: &str) -> Value {
        eventually(&format!("run {run} ends"), || async {
            let view = self.get(&format!("runs/{run}")).await?;
            view["finished_at"].is_string().then_some(view)
        })
        .await
    }

    pub async fn executions(&self, run: &str) -> Vec<Value> {
        let path = format!("runs/{run}/executions");
        eventually("executions are listed", || self.client.list(0, &path)).await
    }

    pub async fn work(&self, node: &str) -> Value {
        let path = format!("nodes/{node}/workers");
        eventually("the node's work is shown", || self.get(&path)).await
    }

    pub async fn work_until(&self, node: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let wanted = &wanted;
        eventually(&format!("{node} has the expected work"), || async {
            Some(self.work(node).await).filter(|work| wanted(work))
        })
        .await
    }

    /// Returns a metric.
    pub async fn figure(&self, name: &str) -> u64 {
        let text = self.client.ask(0, "/metrics").await.expect("the server responds").body;
        let text = text.as_str().expect("metrics are text");
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no `{name}` in\n{text}")).parse().unwrap()
    }
}
