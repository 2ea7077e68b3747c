//! A server and agents as processes, on a store of their own, and the book that every execution writes into.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::support::{eventually, free_address};

const LEASE_TTL: &str = "2s";

pub(crate) struct Site {
    pub(crate) directory: tempfile::TempDir,
    store: String,
    http: String,
    grpc: String,
    server: Option<Child>,
    agents: BTreeMap<String, Child>,
    lease_ttl: &'static str,
    client: reqwest::Client,
}

impl Site {
    pub(crate) async fn new(store: Store) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = match store {
            Store::Sqlite => format!("sqlite:{}", directory.path().join("downbeat.db").display()),
            Store::SqliteAt(path) => format!("sqlite:{}", path.display()),
            Store::Postgres => fresh_database().await,
        };
        let client = reqwest::Client::builder().pool_max_idle_per_host(0).build().unwrap();
        Self {
            directory,
            store,
            http: free_address(),
            grpc: free_address(),
            server: None,
            agents: BTreeMap::new(),
            lease_ttl: LEASE_TTL,
            client,
        }
    }

    pub(crate) fn with_lease_ttl(mut self, lease_ttl: &'static str) -> Self {
        self.lease_ttl = lease_ttl;
        self
    }

    pub(crate) async fn start_server(&mut self) {
        let log = self.log("server");
        let child = Command::new(env!("CARGO_BIN_EXE_downbeat"))
            .args(["server", "--store", &self.store, "--http", &self.http, "--grpc", &self.grpc])
            .args(["--heartbeat-interval", "400ms", "--lease-ttl", self.lease_ttl, "--log-level", "info"])
            .current_dir(self.directory.path())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.server = Some(child);
        let url = format!("http://{}/healthz", self.http);
        eventually("the server answers", || async {
            let response = self.client.get(&url).send().await.ok()?;
            response.status().is_success().then_some(())
        })
        .await;
    }

    fn log(&self, name: &str) -> fs::File {
        let path = self.directory.path().join(format!("{name}.log"));
        fs::OpenOptions::new().create(true).append(true).open(path).unwrap()
    }

    /// Where people and scripts reach it.
    #[allow(dead_code, reason = "the tests of containers need it")]
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.http)
    }

    pub(crate) fn kill_server(&mut self) {
        let mut child = self.server.take().expect("the server runs");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub(crate) fn server_runs(&mut self) -> bool {
        self.server.as_mut().is_some_and(|child| child.try_wait().unwrap().is_none())
    }

    pub(crate) fn start_agent(&mut self, name: &str) {
        self.start_agent_with(name, &[]);
    }

    /// With flags of its own.
    pub(crate) fn start_agent_with(&mut self, name: &str, flags: &[&str]) {
        self.start_agent_in(name, flags, &[]);
    }

    /// With flags and environment variables of its own.
    pub(crate) fn start_agent_in(&mut self, name: &str, flags: &[&str], environment: &[(&str, &str)]) {
        let child = Command::new(env!("CARGO_BIN_EXE_downbeat"))
            .args(["agent", "--server", &self.grpc, "--hostname", name, "--groups", "web", "--allow", "exec"])
            .args(["--allow", "docker", "--slots", "2", "--data"])
            .arg(self.directory.path().join(name))
            .args(flags)
            .envs(environment.iter().copied())
            .current_dir(self.directory.path())
            .stdout(Stdio::null())
            .stderr(self.log(name))
            .spawn()
            .unwrap();
        self.agents.insert(name.to_owned(), child);
    }

    /// The next server has this SQLite file; answers which it had before.
    pub(crate) fn use_store(&mut self, file: &str) -> String {
        let path = self.directory.path().join(file);
        let former = std::mem::replace(&mut self.store, format!("sqlite:{}", path.display()));
        former.rsplit('/').next().unwrap_or_default().to_owned()
    }

    /// Ends the server in order.
    pub(crate) async fn stop_server(&mut self) {
        self.signal_server(Signal::SIGTERM);
        let mut child = self.server.take().expect("the server runs");
        tokio::task::spawn_blocking(move || child.wait().unwrap()).await.unwrap();
    }

    /// Another agent with the hostname of one that runs.
    pub(crate) fn start_twin(&mut self, hostname: &str, name: &str) {
        let child = Command::new(env!("CARGO_BIN_EXE_downbeat"))
            .args(["agent", "--server", &self.grpc, "--hostname", hostname, "--allow", "exec", "--data"])
            .arg(self.directory.path().join(name))
            .current_dir(self.directory.path())
            .stdout(Stdio::null())
            .stderr(self.log(name))
            .spawn()
            .unwrap();
        self.agents.insert(name.to_owned(), child);
    }

    /// The code that an agent ended with; nothing while it runs.
    pub(crate) fn agent_exit(&mut self, name: &str) -> Option<i32> {
        self.agents.get_mut(name).expect("the agent was started").try_wait().unwrap()?.code()
    }

    /// Waits for an agent's end; answers its code.
    pub(crate) async fn agent_ended(&mut self, name: &str) -> i32 {
        let mut child = self.agents.remove(name).expect("the agent was started");
        let ended = tokio::task::spawn_blocking(move || child.wait().unwrap());
        let ended =
            tokio::time::timeout(Duration::from_secs(60), ended).await.expect("the agent ends").unwrap();
        ended.code().expect("no signal has ended it")
    }

    /// Deletes something; answers the status.
    pub(crate) async fn delete(&self, path: &str) -> Option<u16> {
        let url = format!("http://{}/api/v1/{path}", self.http);
        Some(self.client.delete(url).send().await.ok()?.status().as_u16())
    }

    pub(crate) fn kill_agent(&mut self, name: &str) {
        let mut child = self.agents.remove(name).expect("the agent runs");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub(crate) fn signal_agent(&self, name: &str, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.agents[name].id()).unwrap());
        kill(pid, signal).unwrap();
    }

    #[allow(dead_code, reason = "the tests of guards need it")]
    pub(crate) fn agent_pid(&self, name: &str) -> i32 {
        i32::try_from(self.agents[name].id()).unwrap()
    }

    /// Whether an agent is stopped by a signal.
    #[allow(dead_code, reason = "the tests of guards need it")]
    pub(crate) fn is_frozen(&self, name: &str) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.agent_pid(name))).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
    }

    pub(crate) fn signal_server(&self, signal: Signal) {
        let server = self.server.as_ref().expect("the server runs");
        kill(Pid::from_raw(i32::try_from(server.id()).unwrap()), signal).unwrap();
    }

    pub(crate) async fn nodes_online(&self, count: usize) {
        eventually("the nodes are online", || async {
            let nodes = self.get("nodes").await?;
            let online = nodes["data"].as_array()?.iter().filter(|node| node["status"] == "online").count();
            (online >= count).then_some(())
        })
        .await;
    }

    /// Nothing when the server is away or answers with an error.
    pub(crate) async fn get(&self, path: &str) -> Option<Value> {
        let url = format!("http://{}/api/v1/{path}", self.http);
        let response = self.client.get(url).timeout(Duration::from_secs(5)).send().await.ok()?;
        if response.status().is_success() { response.json().await.ok() } else { None }
    }

    /// The status of `readyz`, and what it says.
    pub(crate) async fn ready(&self) -> (u16, String) {
        let answer = self.client.get(format!("http://{}/readyz", self.http)).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    pub(crate) async fn post(&self, path: &str, body: &Value, key: Option<&str>) -> Option<(u16, Value)> {
        let url = format!("http://{}/api/v1/{path}", self.http);
        let mut request = self.client.post(url).json(body).timeout(Duration::from_secs(5));
        if let Some(key) = key {
            request = request.header("Idempotency-Key", key);
        }
        let response = request.send().await.ok()?;
        let status = response.status().as_u16();
        Some((status, response.json().await.ok()?))
    }

    /// Submits until a server accepts it: with a key, so that it is accepted once.
    pub(crate) async fn submit(&self, definition: &Value, key: &str) -> String {
        eventually("the run is accepted", || async {
            let (status, run) = self.post("runs", definition, Some(key)).await?;
            assert!(matches!(status, 200 | 201 | 503), "{status} {run}");
            (status < 300).then(|| run["id"].as_str().unwrap().to_owned())
        })
        .await
    }

    /// Waits until a run has ended; answers it.
    pub(crate) async fn ended(&self, run: &str) -> Value {
        eventually(&format!("run {run} ends"), || async {
            let view = self.get(&format!("runs/{run}")).await?;
            view["finished_at"].is_string().then_some(view)
        })
        .await
    }

    pub(crate) async fn executions(&self, run: &str) -> Vec<Value> {
        let mut all = Vec::new();
        loop {
            let path = format!("runs/{run}/executions?limit=1000&offset={}", all.len());
            let page = eventually("executions are listed", || self.get(&path)).await;
            all.extend(page["data"].as_array().unwrap().clone());
            if page["pagination"]["has_more"] != true {
                return all;
            }
        }
    }

    fn book(&self) -> PathBuf {
        self.directory.path().join("book")
    }

    /// A task that writes its execution's name into the book, and takes a moment.
    pub(crate) fn entry(&self, name: &str, seconds: &str) -> Value {
        let script = format!("echo \"$DOWNBEAT_EXECUTION\" >> {}; sleep {seconds}", self.book().display());
        json!({"name": name, "backend": "exec", "action": "shell", "params": {"command": script}})
    }

    /// A task that writes its name into the book and its process beside it, and goes on until the gate is opened.
    pub(crate) fn gated(&self, name: &str, gate: &str) -> Value {
        let (directory, book) = (self.directory.path().display(), self.book().display().to_string());
        // It ends with the test as well: nobody is left to end what a killed agent ran.
        let script = format!(
            "cd {directory} && echo $$ > pid.part.$$ && mv pid.part.$$ pid.$DOWNBEAT_EXECUTION && \
             echo \"$DOWNBEAT_EXECUTION\" >> {book}; while test -d {directory} && ! test -e {gate}; do sleep 0.05; done"
        );
        json!({"name": name, "backend": "exec", "action": "shell", "params": {"command": script}})
    }

    pub(crate) fn open(&self, gate: &str) {
        fs::write(self.directory.path().join(gate), "").unwrap();
    }

    /// The process of an attempt that is gated, by its name.
    pub(crate) fn pid_of(&self, name: &str) -> i32 {
        let file = self.directory.path().join(format!("pid.{name}"));
        fs::read_to_string(file).unwrap().trim().parse().unwrap()
    }

    /// The names of all attempts that began, in order.
    pub(crate) fn begun(&self) -> Vec<String> {
        fs::read_to_string(self.book()).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// Waits until so many attempts have begun.
    pub(crate) async fn have_begun(&self, count: usize) -> Vec<String> {
        eventually(&format!("{count} attempts begin"), || async {
            Some(self.begun()).filter(|begun| begun.len() >= count)
        })
        .await
    }

    /// What a node is at.
    pub(crate) async fn work(&self, node: &str) -> Value {
        let path = format!("nodes/{node}/workers");
        eventually("the node's work is shown", || self.get(&path)).await
    }

    /// Waits until what a node is at is as wanted.
    pub(crate) async fn work_until(&self, node: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let wanted = &wanted;
        eventually(&format!("{node} is as wanted"), || async {
            Some(self.work(node).await).filter(|work| wanted(work))
        })
        .await
    }

    /// A figure of `/metrics`.
    pub(crate) async fn figure(&self, name: &str) -> u64 {
        let url = format!("http://{}/metrics", self.http);
        let text = self.client.get(url).send().await.unwrap().text().await.unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no `{name}` in\n{text}")).parse().unwrap()
    }

    /// How often each execution was really carried out, by its id.
    pub(crate) fn done(&self) -> BTreeMap<String, usize> {
        let mut done = BTreeMap::new();
        for line in fs::read_to_string(self.book()).unwrap_or_default().lines() {
            let id = line.rsplit_once('.').map_or(line, |(id, _)| id);
            *done.entry(id.to_owned()).or_insert(0) += 1;
        }
        done
    }

    /// The records of ended runs against the book: every execution has one result, and what the book has and the
    /// records do not, or twice, is a lie.
    pub(crate) async fn check(&self, runs: &[String]) -> Checked {
        let done = self.done();
        let mut checked = Checked::default();
        let mut known = BTreeMap::new();
        for run in runs {
            let path = format!("runs/{run}");
            let view = eventually("the run is shown", || self.get(&path)).await;
            let placed = view["expected"].as_array().is_none_or(Vec::is_empty);
            let mut instances: BTreeMap<String, Vec<Value>> = BTreeMap::new();
            for execution in self.executions(run).await {
                let id = execution["id"].as_str().unwrap().to_owned();
                let status = execution["status"].as_str().unwrap().to_owned();
                let times = done.get(&id).copied().unwrap_or(0);
                match status.as_str() {
                    "succeeded" => assert_eq!(times, 1, "{id} succeeded and was carried out {times} times"),
                    "lost" => {
                        checked.lost += 1;
                        assert!(times <= 1, "{id} was lost and carried out {times} times");
                    }
                    "failed" | "cancelled" | "skipped" => {
                        assert!(times <= 1, "{id} is {status}: {times} times");
                    }
                    other => panic!("{id} is {other} although its run ended"),
                }
                known.insert(id, ());
                checked.executions += 1;
                let place = if placed { "-" } else { execution["node"].as_str().unwrap_or("-") };
                instances.entry(format!("{}@{place}", execution["step"])).or_default().push(execution);
            }
            for (instance, attempts) in instances {
                let results = attempts.iter().filter(|attempt| attempt["status"] == "succeeded").count();
                assert!(results <= 1, "{instance} of {run} succeeded {results} times: {attempts:#?}");
            }
        }
        for id in done.keys() {
            assert!(known.contains_key(id), "{id} was carried out, and nothing is recorded of it");
        }
        checked
    }
}

#[derive(Debug, Default)]
pub(crate) struct Checked {
    pub(crate) executions: usize,
    pub(crate) lost: usize,
}

impl Drop for Site {
    fn drop(&mut self) {
        for child in self.agents.values_mut().chain(self.server.as_mut()) {
            // A frozen one hears KILL as well.
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            for log in fs::read_dir(self.directory.path()).into_iter().flatten().flatten() {
                if log.path().extension().is_some_and(|extension| extension == "log") {
                    let text = fs::read_to_string(log.path()).unwrap_or_default();
                    let tail: Vec<&str> = text.lines().rev().take(30).collect();
                    eprintln!("--- {}", log.path().display());
                    tail.iter().rev().for_each(|line| eprintln!("{line}"));
                }
            }
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Store {
    Sqlite,
    SqliteAt(PathBuf),
    Postgres,
}

async fn fresh_database() -> String {
    let url = std::env::var("DOWNBEAT_TEST_POSTGRES").unwrap_or_else(|_| {
        panic!("needs PostgreSQL: run `make test`, or `make postgres` and set DOWNBEAT_TEST_POSTGRES")
    });
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let name = format!("faults_{}", uuid::Uuid::new_v4().simple());
    client.batch_execute(&format!("create database {name}")).await.unwrap();
    format!("{}/{name}", url.rsplit_once('/').unwrap().0)
}
