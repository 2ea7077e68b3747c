//! Owns one server under test: a separate process that can be killed and restarted at the same addresses.

use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use downbeat_api::{Event, EventBody, Execution, RunSummary, request};
use downbeat_client::{Body, Client, Feed, Message};
use downbeat_core::execution::Status;
use downbeat_core::node::NodeStatus;
use serde::Deserialize;
use serde_json::Value;

use super::process;
use crate::failure::{Code, Failure, Result};

/// A server starts within this time, or something is wrong.
const START: Duration = Duration::from_secs(30);
/// A load without progress for this long fails.
pub(super) const STUCK: Duration = Duration::from_secs(60);

/// Figures of `/metrics`. Every server counts them for all servers, except for parked polls, which are its own.
pub(super) const ONLINE: &str = r#"downbeat_nodes{status="online"}"#;
pub(super) const PARKED: &str = "downbeat_polls_parked";
pub(super) const COMPLETED: &str = r#"downbeat_runs{state="completed"}"#;
pub(super) const SUCCEEDED: &str = r#"downbeat_executions_total{outcome="succeeded"}"#;

/// How to start a server.
#[derive(Clone, Debug)]
pub(super) struct Launch {
    pub name: String,
    /// A location as for `server --store`.
    pub store: String,
    /// The directory of its log and its addresses.
    pub directory: PathBuf,
    /// Additional arguments.
    pub flags: Vec<String>,
    /// The program; this one if absent.
    pub program: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
struct Ready {
    http: String,
    grpc: String,
    url: String,
}

/// A running server and how to reach it.
#[derive(Debug)]
pub(super) struct Server {
    launch: Launch,
    child: Child,
    http: String,
    pub grpc: String,
    client: Client,
    /// User and system time of its earlier processes.
    spent: f64,
}

impl Server {
    pub(super) async fn start(launch: Launch) -> Result<Self> {
        let child = launch.spawn("127.0.0.1:0", "127.0.0.1:0")?;
        let (client, nowhere) = (Client::new(&[], None)?, String::new());
        let mut server = Self { launch, child, http: nowhere.clone(), grpc: nowhere, client, spent: 0.0 };
        let ready = server.until_ready().await?;
        (server.http, server.grpc, server.client) =
            (ready.http, ready.grpc, Client::new(&[ready.url], None)?);
        Ok(server)
    }

    /// Kills the process with `kill -9`.
    pub(super) fn kill(&mut self) {
        self.spent = self.cpu_seconds();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Restarts it at the same addresses.
    pub(super) async fn start_again(&mut self) -> Result<()> {
        let begun = Instant::now();
        loop {
            self.child = self.launch.spawn(&self.http, &self.grpc)?;
            match self.until_ready().await {
                // Another connection may use its port for a moment.
                Err(_) if begun.elapsed() < START => tokio::time::sleep(Duration::from_millis(100)).await,
                result => return result.map(drop),
            }
        }
    }

    async fn until_ready(&mut self) -> Result<Ready> {
        let begun = Instant::now();
        loop {
            if let Ok(text) = std::fs::read_to_string(self.launch.ready_file()) {
                return serde_json::from_str(&text)
                    .map_err(|error| cannot("read the server's addresses", &error));
            }
            let ended = self.child.try_wait().ok().flatten();
            if ended.is_some() || begun.elapsed() > START {
                let log = std::fs::read_to_string(self.launch.log_file()).unwrap_or_default();
                let last = log.trim().lines().last().unwrap_or_default();
                return Err(Failure::new(
                    Code::Unreachable,
                    format!("the server {} did not start: {last}", self.launch.name),
                ));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.launch.name
    }

    pub(super) fn launch(&self) -> &Launch {
        &self.launch
    }

    /// Returns the address of its REST API.
    pub(super) fn url(&self) -> &str {
        self.client.base().trim_end_matches('/')
    }

    /// Submits a definition and returns the run's id.
    pub(super) async fn submit(&self, definition: &Value) -> Result<String> {
        #[derive(Deserialize)]
        struct Created {
            id: String,
        }
        let request = request::submit().reading::<Created>();
        Ok(self.client.send(request, Body::Json(definition.to_string()), None).await?.id)
    }

    /// Stores a job.
    pub(super) async fn apply_job(&self, definition: &Value) -> Result<()> {
        let request = request::apply_job().reading::<Value>();
        self.client.send(request, Body::Json(definition.to_string()), None).await?;
        Ok(())
    }

    /// Pauses the schedules of a job.
    pub(super) async fn pause_job(&self, name: &str) -> Result<()> {
        self.client.send(request::pause_job(name).reading::<Value>(), Body::Empty, None).await?;
        Ok(())
    }

    /// Returns all runs.
    pub(super) async fn runs(&self) -> Result<Vec<RunSummary>> {
        let rows = self.client.all_pages(request::runs()).await?;
        Ok(rows.into_iter().map(|row| row.summary).collect())
    }

    /// Returns all executions of a run, in the order of creation.
    pub(super) async fn executions(&self, run: &str) -> Result<Vec<Execution>> {
        Ok(self.client.all_pages(request::run_executions(run)).await?)
    }

    pub(super) async fn last_seq(&self) -> Result<u64> {
        Ok(self.client.last_seq().await?)
    }

    /// Returns how many executions that succeeded the store has.
    pub(super) async fn stored_successes(&self) -> Result<u64> {
        let status = self.client.ask(request::status()).await?;
        Ok(status.executions.get(&Status::Succeeded).copied().unwrap_or(0))
    }

    /// Counts the times that a node became stale or offline, in all events after this one.
    pub(super) async fn silent_nodes(&self, since: u64) -> Result<u64> {
        let moves = self.client.all_events(request::events().with("kind", "node_moved"), since).await?;
        let is_silent = |event: &&Event| {
            matches!(event.body, EventBody::NodeMoved { to: NodeStatus::Stale | NodeStatus::Offline, .. })
        };
        Ok(moves.iter().filter(is_silent).count() as u64)
    }

    /// Opens the live stream of all events from now on.
    pub(super) async fn events(&self) -> Result<Feed> {
        Ok(self.client.feed(&request::events(), None).await?)
    }

    /// Opens the live stream of new runs from now on.
    pub(super) async fn new_runs(&self) -> Result<Feed> {
        Ok(self.client.feed(&request::events().with("kind", "run_created"), None).await?)
    }

    pub(super) async fn metrics(&self) -> Result<Metrics> {
        Ok(Metrics(self.client.text("/metrics").await?))
    }

    /// Waits until a figure has reached a value.
    pub(super) async fn reached(&self, name: &str, value: f64, every: Duration) -> Result<()> {
        let (mut last, mut since) = (-1.0, Instant::now());
        loop {
            let now = self.metrics().await?.get(name);
            if now >= value {
                return Ok(());
            }
            if now > last {
                (last, since) = (now, Instant::now());
            }
            if since.elapsed() > STUCK {
                return Err(Failure::bug(format!(
                    "`{name}` of {} stands at {now} of {value} for {} s",
                    self.launch.name,
                    STUCK.as_secs()
                )));
            }
            tokio::time::sleep(every).await;
        }
    }

    /// Waits until the newest run has completed. The list of runs costs the server little, unlike `/metrics` of a large
    /// fleet.
    async fn completed(&self, run: &str, every: Duration) -> Result<()> {
        let (mut last, mut since) = (Value::Null, Instant::now());
        loop {
            let page = self.client.ask(request::runs().with("limit", 1).reading::<Value>()).await?;
            let newest = &page["data"][0];
            match newest["status"].as_str() {
                Some("completed") if newest["id"] == run => return Ok(()),
                Some("pending" | "running") if newest["id"] == run && since.elapsed() < STUCK => {}
                _ => return Err(Failure::bug(format!("run {run} did not complete: {newest}"))),
            }
            if newest["counts"] != last {
                (last, since) = (newest["counts"].clone(), Instant::now());
            }
            tokio::time::sleep(every).await;
        }
    }

    /// Submits, and waits until the run has completed and this many agents poll again. Returns how long submitting took,
    /// and the time until the run had completed.
    pub(super) async fn round(
        &self,
        definition: &Value,
        agents: u32,
        every: Duration,
    ) -> Result<(Duration, Duration)> {
        let begun = Instant::now();
        let run = self.submit(definition).await?;
        let submitted = begun.elapsed();
        self.completed(&run, every).await?;
        let took = begun.elapsed();
        self.reached(PARKED, f64::from(agents), every).await?;
        Ok((submitted, took))
    }

    pub(super) fn rss_bytes(&self) -> u64 {
        process::rss_bytes(self.child.id())
    }

    pub(super) fn peak_rss_bytes(&self) -> u64 {
        process::peak_rss_bytes(self.child.id())
    }

    /// Returns the user and system time so far, over all of its processes.
    pub(super) fn cpu_seconds(&self) -> f64 {
        self.spent + process::cpu_seconds(self.child.id())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Its data is deleted too, so a graceful stop is not needed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Launch {
    fn spawn(&self, http: &str, grpc: &str) -> Result<Child> {
        let _ = std::fs::remove_file(self.ready_file());
        process::program(self.program.as_deref())?
            .args(["server", "--name", &self.name, "--http", http, "--grpc", grpc, "--log-level", "warn"])
            // Another program may not know the flag.
            .args(self.program.is_none().then(process::stop_with_this).into_iter().flatten())
            .args(["--store", &self.store])
            .args(&self.flags)
            .arg("--ready-file")
            .arg(self.ready_file())
            .current_dir(&self.directory)
            .stdout(Stdio::null())
            .stderr(process::log_file(self.log_file())?)
            .spawn()
            .map_err(|error| cannot("start a server", &error))
    }

    fn ready_file(&self) -> PathBuf {
        self.directory.join(format!("{}.ready", self.name))
    }

    fn log_file(&self) -> PathBuf {
        self.directory.join(format!("{}.log", self.name))
    }
}

/// Returns the next event of a live stream. If there is none for too long, the failure names the event that is missing.
pub(super) async fn next_event(feed: &mut Feed, missing: impl Fn() -> String) -> Result<Message> {
    let next = tokio::time::timeout(STUCK, feed.next()).await;
    let stuck = |_| Failure::bug(format!("{} after {} s", missing(), STUCK.as_secs()));
    next.map_err(stuck)??.ok_or_else(|| Failure::bug("the event stream ended"))
}

/// The text of `/metrics`.
#[derive(Debug)]
pub(super) struct Metrics(String);

impl Metrics {
    /// Returns one figure by its name with labels, as printed; 0 if it is missing.
    pub(super) fn get(&self, name: &str) -> f64 {
        let line = self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.trim().parse().ok()).unwrap_or(0.0)
    }
}

pub(super) fn cannot(what: &str, error: &dyn std::error::Error) -> Failure {
    let mut text = format!("cannot {what}: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    Failure::new(Code::Unreachable, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_found_by_its_whole_name() {
        let metrics =
            Metrics("# TYPE a counter\na_total{x=\"1\"} 3\na_total{x=\"12\"} 4.5\nab 7\n".to_owned());
        assert_eq!(metrics.get(r#"a_total{x="12"}"#), 4.5);
        assert_eq!(metrics.get("ab"), 7.0);
        assert_eq!(metrics.get("a"), 0.0);
    }
}
