//! Owns the requests of this load: edits of the list of standing tasks, and the status of the cluster.

use std::time::{Duration, Instant};

use reqwest::{Client, RequestBuilder};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::failure::{Code, Failure, Result};
use crate::server::{STUCK, Server};

/// The cluster of the simulated nodes.
const CLUSTER: &str = "clusters/default";

/// A client of the REST API.
#[derive(Debug)]
pub(super) struct Rest {
    http: Client,
    base: String,
}

/// The part of a cluster's status that the load reads.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Status {
    pub active_nodes: u64,
    pub total_tasks: u64,
    pub nodes_with_all_tasks_complete: u64,
    pub nodes_with_failed_tasks: u64,
    pub tasks: Vec<TaskStatus>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct TaskStatus {
    pub counts: Counts,
}

/// Nodes by the state of one task.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Counts {
    #[serde(default)]
    pub succeeded: u64,
}

impl Rest {
    pub(super) fn new(server: &Server) -> Result<Self> {
        let http = Client::builder().no_proxy().tcp_nodelay(true).timeout(STUCK).build();
        let http = http.map_err(|error| Failure::bug(format!("cannot make a client: {error}")))?;
        Ok(Self { http, base: format!("{}/api/v1", server.url()) })
    }

    /// Returns a whole response.
    pub(super) async fn get(&self, path: &str) -> Result<Vec<u8>> {
        self.response(self.http.get(format!("{}/{path}", self.base))).await
    }

    async fn response(&self, request: RequestBuilder) -> Result<Vec<u8>> {
        let lost = |error: reqwest::Error| Failure::new(Code::Unreachable, format!("no response: {error}"));
        let response = request.send().await.map_err(lost)?;
        let (status, path) = (response.status(), response.url().path().to_owned());
        let bytes = response.bytes().await.map_err(lost)?.to_vec();
        if status.is_success() {
            return Ok(bytes);
        }
        let problem: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let detail = problem["detail"].as_str().or(problem["title"].as_str()).unwrap_or_default();
        let text = format!("{path} was refused with {}: {detail}", status.as_u16());
        Err(Failure::new(Code::Refused, text))
    }

    /// Adds a task at the end of the list.
    pub(super) async fn add_task(&self, task: &Value) -> Result<()> {
        let request = self.http.post(format!("{}/{CLUSTER}/tasks", self.base));
        self.response(request.json(task)).await.map(drop)
    }

    /// Replaces the whole list. Tasks with the same name and content stay as they are.
    pub(super) async fn set_tasks(&self, tasks: &[Value]) -> Result<()> {
        let request = self.http.put(format!("{}/{CLUSTER}/tasks", self.base));
        self.response(request.json(&json!({"tasks": tasks}))).await.map(drop)
    }

    /// Reads the status again and again until it meets the condition. Fails if it does not change for too long, or if a
    /// task has failed on a node.
    pub(super) async fn until(
        &self,
        wanted: &str,
        every: Duration,
        is_met: impl Fn(&Status) -> bool,
    ) -> Result<Status> {
        let (mut last, mut since) = (Vec::new(), Instant::now());
        loop {
            let bytes = self.get(&format!("{CLUSTER}/status")).await?;
            let status: Status = serde_json::from_slice(&bytes)
                .map_err(|error| Failure::bug(format!("cannot read the status of the cluster: {error}")))?;
            if status.nodes_with_failed_tasks > 0 {
                let failed = status.nodes_with_failed_tasks;
                return Err(Failure::bug(format!("a task without work failed on {failed} nodes")));
            }
            if is_met(&status) {
                return Ok(status);
            }
            if bytes != last {
                (last, since) = (bytes, Instant::now());
            } else if since.elapsed() > STUCK {
                let (text, seconds) = (String::from_utf8_lossy(&last), STUCK.as_secs());
                return Err(Failure::bug(format!("{wanted}: nothing happened for {seconds} s: {text}")));
            }
            tokio::time::sleep(every).await;
        }
    }
}

/// Returns a standing task without work.
pub(super) fn task(name: &str) -> Value {
    json!({"name": name, "backend": "test", "action": "noop"})
}
