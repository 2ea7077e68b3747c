//! Owns a whole site: PostgreSQL, servers, agents, the wires between them, and the book.

use std::path::PathBuf;
use std::time::Duration;

use downbeat_testbed::{Client, Postgres, eventually, processes, within};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::agent::{Agent, Surroundings};
use crate::server::Server;
use crate::standing::{DOOMED, DOOMED_NODES};

/// The agents' names: what jobs allow and forbid.
pub(crate) const NODES: [&str; 4] = ["web-1", "web-2", "web-3", "web-4"];

/// A PostgreSQL that was out of disk or crashed has recovered by then.
const RECOVERY: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Cluster {
    // Dropped in this order: first the writers, then the store.
    pub(crate) agents: Vec<Agent>,
    /// The agents of a second cluster, which is deleted.
    pub(crate) doomed: Vec<Agent>,
    pub(crate) servers: Vec<Server>,
    pub(crate) postgres: Postgres,
    /// Faults of PostgreSQL, one at a time.
    pub(crate) hurt: tokio::sync::Mutex<()>,
    /// Through the proxies.
    pub(crate) client: Client,
    /// Past the proxies.
    pub(crate) direct: Client,
    directory: tempfile::TempDir,
}

/// How a site is built.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) servers: usize,
    pub(crate) agents: usize,
    /// Some agents on small disks and in networks of their own, and a second cluster with agents.
    pub(crate) special: bool,
}

impl Plan {
    /// Short where leases are to be lost. Where none may be, longer than agents wait between two attempts (5 s).
    fn lease_ttl(self) -> &'static str {
        if self.special { "3s" } else { "15s" }
    }
}

impl Cluster {
    /// Builds it, starts it, and waits until all nodes are online.
    pub(crate) async fn start(plan: Plan) -> Self {
        let directory = tempfile::Builder::new().prefix("downbeat-chaos.").tempdir().unwrap();
        // PostgreSQL runs as a user of its own.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(directory.path(), open).unwrap();
        let postgres = Postgres::start(directory.path()).await;
        let mut servers = Vec::new();
        for number in 0..plan.servers {
            servers.push(Server::new(number, directory.path(), &postgres, plan.lease_ttl()).await);
        }
        let agents = NODES[..plan.agents].iter().enumerate().map(|(index, name)| {
            let mut ports: Vec<u16> = servers.iter().map(|server| server.agents.port).collect();
            // Not all begin with the same server.
            ports.rotate_left(index % plan.servers);
            let surroundings = Surroundings {
                small_disk: plan.special && index == 1,
                own_network: plan.special && index >= 2,
            };
            Agent::new(name, directory.path(), &ports, surroundings)
        });
        let agents = agents.collect();
        let ports: Vec<u16> = servers.iter().map(|server| server.agents.port).collect();
        let doomed = DOOMED_NODES.iter().filter(|_| plan.special).map(|name| {
            Agent::new(name, directory.path(), &ports, Surroundings::default()).of_cluster(DOOMED)
        });
        let doomed = doomed.collect();
        let local = |port: u16| format!("http://127.0.0.1:{port}");
        let client = Client::new(servers.iter().map(|server| local(server.rest.port)).collect());
        let direct = Client::new(servers.iter().map(|server| server.url()).collect());
        let hurt = tokio::sync::Mutex::default();
        let cluster = Self { agents, doomed, servers, postgres, hurt, client, direct, directory };
        cluster.servers.iter().for_each(|server| server.start());
        cluster.agents.iter().for_each(|agent| agent.start());
        cluster.nodes_online().await;
        cluster.nodes_known().await;
        cluster
    }

    /// Waits until every server would send work to all nodes: it takes a moment until one server knows the nodes of another.
    async fn nodes_known(&self) {
        let all = json!({"target": "all", "tasks": [{"backend": "test", "action": "noop"}]});
        for server in 0..self.servers.len() {
            eventually("a server knows all nodes", || async {
                let plan = self.direct.post(server, "plan", &all, None).await?;
                (plan.body["nodes"].as_array()?.len() == self.agents.len()).then_some(())
            })
            .await;
        }
    }

    pub(crate) fn site(&self) -> String {
        self.directory.path().display().to_string()
    }

    pub(crate) fn book(&self) -> PathBuf {
        self.directory.path().join("book")
    }

    /// Waits until a server is ready.
    pub(crate) async fn ready(&self, server: usize) {
        eventually(&format!("server {server} is ready"), || async {
            let died = self.supervise();
            assert!(died.is_empty(), "{died:?} ended");
            let answer = self.direct.ask(server, "/readyz").await?;
            (answer.status == 200).then_some(())
        })
        .await;
    }

    pub(crate) async fn nodes_online(&self) {
        eventually("all nodes are online", || async {
            let nodes = self.direct.get_any(0, "clusters/default/nodes?limit=1000").await?;
            let online = |node: &&Value| node["status"] == "online";
            (nodes["data"].as_array()?.iter().filter(online).count() == self.agents.len()).then_some(())
        })
        .await;
    }

    /// Starts servers whose start failed, as a supervisor does. Returns servers that ended by themselves after they had
    /// served: there must be none.
    pub(crate) fn supervise(&self) -> Vec<String> {
        let mut died = Vec::new();
        for server in &self.servers {
            // A fault that holds this lock handles the server itself.
            let Ok(_hurt) = server.hurt.try_lock() else { continue };
            if server.reap() {
                died.extend(server.served().then(|| server.name.clone()));
                server.start();
            }
        }
        died
    }

    /// Ends every fault: everything runs and every wire passes. Returns processes that had ended by themselves: there
    /// must be none.
    pub(crate) async fn heal(&self) -> Vec<String> {
        if let Some(disk) = &self.postgres.disk {
            disk.empty();
        }
        self.postgres.thaw();
        within(RECOVERY, || async { self.postgres.resume().await.ok() })
            .await
            .expect("PostgreSQL comes back");
        let mut died = self.supervise();
        for server in &self.servers {
            server.signal(Signal::SIGCONT);
            server.start();
        }
        for agent in &self.agents {
            agent.signal(Signal::SIGCONT);
            died.extend(agent.reap().then(|| agent.name.clone()));
            agent.start();
        }
        for server in 0..self.servers.len() {
            self.ready(server).await;
        }
        self.nodes_online().await;
        died
    }

    /// Submits until a server accepts it, with a key so that it is accepted once. Returns the run's id.
    pub(crate) async fn submit(&self, server: usize, definition: &Value, key: &str) -> String {
        eventually("the run is accepted", || async {
            let answer = self.client.post(server, "runs", definition, Some(key)).await?;
            assert!(matches!(answer.status, 200 | 201 | 503), "{answer:?}");
            (answer.status < 300).then(|| answer.body["id"].as_str().unwrap().to_owned())
        })
        .await
    }

    /// Waits until a run has ended, and returns it.
    pub(crate) async fn ended(&self, server: usize, run: &str) -> Value {
        eventually(&format!("run {run} ends"), || async {
            let view = self.direct.get_any(server, &format!("runs/{run}")).await?;
            view["finished_at"].is_string().then_some(view)
        })
        .await
    }

    /// The number of the server that owns a run.
    pub(crate) async fn owner(&self, run: &str) -> usize {
        eventually("the run has an owner", || async {
            let view = self.direct.get_any(0, &format!("runs/{run}")).await?;
            let list = self.direct.get_any(0, "servers").await?;
            let owner = list["data"].as_array()?.iter().find(|server| server["id"] == view["owner"])?;
            self.servers.iter().position(|server| owner["name"] == server.name.as_str())
        })
        .await
    }

    /// Leaves logs and book where they are.
    pub(crate) fn keep(&mut self) -> PathBuf {
        self.directory.disable_cleanup(true);
        self.directory.path().to_owned()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.agents.iter().chain(&self.doomed).for_each(|agent| agent.kill());
        for (pid, _) in processes::of_executions(&self.site()) {
            processes::signal(pid, Signal::SIGKILL);
        }
        if std::thread::panicking() || std::env::var_os("DOWNBEAT_TEST_KEEP").is_some() {
            let log = self.directory.path().join("disk/postgres/log");
            // It is on the small disk, which is removed.
            let _ = std::fs::copy(log, self.directory.path().join("postgres.log"));
            eprintln!("logs and book: {}", self.keep().display());
        }
    }
}
