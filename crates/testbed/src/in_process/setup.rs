//! A server in this process, on any store, and requests to it.

use std::net::{Ipv4Addr, SocketAddr};

use downbeat_core::backend::BackendSchema;
use downbeat_core::ids::ClusterId;
use downbeat_server::{Server, Settings};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};

use super::agent::Agent;
use super::stream::Stream;
use crate::results::with_results;
use crate::wait::{DEADLINE, within};

/// A server in this process, and a client of it.
#[derive(Debug)]
pub struct Setup {
    pub server: Server,
    pub http: reqwest::Client,
    base: String,
}

/// A response of the server.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub content_type: String,
    pub headers: reqwest::header::HeaderMap,
    pub body: Value,
}

impl Setup {
    /// Starts a server on the memory store.
    pub async fn new() -> Self {
        Self::on("memory:").await
    }

    pub async fn on(store: &str) -> Self {
        Self::with(settings(store, "one")).await
    }

    pub async fn with(settings: Settings) -> Self {
        Self::of(downbeat_server::start(settings).await.expect("the server starts"))
    }

    pub fn of(server: Server) -> Self {
        let base = format!("http://{}", server.http_addr());
        Self { server, http: reqwest::Client::new(), base }
    }

    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let is_whole = ["/api/", "/hooks/"].iter().any(|root| path.starts_with(root));
        let path = if is_whole { path.to_owned() } else { format!("/api/v1{path}") };
        self.http.request(method, format!("{}{path}", self.base)).timeout(DEADLINE)
    }

    pub async fn root(&self, path: &str) -> (StatusCode, String) {
        let answer = self.http.get(format!("{}{path}", self.base)).send().await.unwrap();
        (answer.status(), answer.text().await.unwrap())
    }

    /// Returns a metric, or 0.
    pub async fn figure(&self, name: &str) -> u64 {
        let (_, text) = self.root("/metrics").await;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0, |value| value.parse::<f64>().unwrap() as u64)
    }

    pub async fn get(&self, path: &str) -> Answer {
        send(self.request(Method::GET, path)).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        send(self.request(Method::POST, path).json(body)).await
    }

    pub async fn ok(&self, path: &str) -> Value {
        let answer = self.get(path).await;
        assert!(answer.status.is_success(), "{path}: {} {}", answer.status, answer.body);
        answer.body
    }

    /// Submits a definition, and returns the run's id.
    pub async fn submit(&self, definition: &Value) -> String {
        let answer = self.post("/runs", definition).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
        answer.body["id"].as_str().expect("a run has an id").to_owned()
    }

    /// Returns a run with its results by step and node or item.
    pub async fn whole_run(&self, id: &str) -> Value {
        let run = self.ok(&format!("/runs/{id}")).await;
        with_results(run, &self.ok(&format!("/runs/{id}/results?limit=1000")).await)
    }

    /// Waits until a run with its results is as wanted.
    pub async fn run_until(&self, id: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let wanted = &wanted;
        match within(DEADLINE, || async { Some(self.whole_run(id).await).filter(wanted) }).await {
            Some(run) => run,
            None => panic!("the run did not reach the expected state: {}", self.whole_run(id).await),
        }
    }

    /// Returns the hostnames of the nodes that a run's targets resolved to.
    pub async fn targets(&self, id: &str) -> Vec<String> {
        let plan = self.ok(&format!("/runs/{id}/plan")).await;
        let nodes = plan["nodes"].as_array().expect("a plan has nodes").iter();
        nodes.map(|node| node["hostname"].as_str().unwrap_or_default().to_owned()).collect()
    }

    pub async fn ended(&self, id: &str) -> Value {
        self.run_until(id, |run| !run["finished_at"].is_null()).await
    }

    pub async fn stream(&self, request: RequestBuilder) -> Stream {
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        Stream::of(answer)
    }

    pub async fn follow(&self, path: &str) -> Stream {
        self.stream(self.request(Method::GET, path)).await
    }

    pub async fn agent(&self, hostname: &str, groups: &[&str]) -> Agent {
        Agent::register(&self.server, hostname, groups).await
    }

    /// Registers a node of a cluster, which offers some backends besides the built-in ones.
    pub async fn agent_in(
        &self,
        cluster: ClusterId,
        hostname: &str,
        groups: &[&str],
        extra: &[BackendSchema],
    ) -> Agent {
        Agent::register_in(&self.server, cluster, hostname, groups, extra).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Answer {
        send(self.request(Method::PUT, path).json(body)).await
    }

    pub async fn patch(&self, path: &str, body: &Value) -> Answer {
        send(self.request(Method::PATCH, path).json(body)).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        send(self.request(Method::DELETE, path)).await
    }

    /// Creates a cluster, and returns its id.
    pub async fn cluster(&self, name: &str) -> ClusterId {
        let answer = self.post("/clusters", &json!({"name": name})).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
        answer.body["id"].as_str().expect("a cluster has an id").parse().expect("it is an id")
    }
}

/// Returns settings of a server on free ports.
pub fn settings(store: &str, name: &str) -> Settings {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    Settings { store: store.to_owned(), http: any, grpc: any, name: name.to_owned(), ..Settings::default() }
}

pub async fn send(request: RequestBuilder) -> Answer {
    let answer = request.send().await.unwrap();
    let (status, headers) = (answer.status(), answer.headers().clone());
    let content_type =
        headers.get("content-type").map(|kind| kind.to_str().unwrap().to_owned()).unwrap_or_default();
    let text = answer.text().await.unwrap();
    let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
    Answer { status, content_type, headers, body }
}

/// Returns a job of one task on every node.
pub fn noop() -> Value {
    json!({"name": "noop", "target": "all", "tasks": [{"backend": "test", "action": "noop"}]})
}
