//! A server on the memory store, a client for it, and agents that do what a test tells them.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use downbeat_core::Timestamp;
use downbeat_core::backend::Catalogue;
use downbeat_core::execution::{Outcome, Verdict};
use downbeat_core::ids::{ClusterId, NodeId, SessionId};
use downbeat_core::node::Description;
use downbeat_proto::Link;
use downbeat_proto::grpc::Client;
use downbeat_proto::message::{
    Assignment, Chunk, Finished, Free, Held, InstanceId, Output, Poll, Register, Report, Started,
};
use downbeat_server::{Server, Settings};
use futures_util::StreamExt;
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};

/// A test that waits longer than this has failed.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) struct Setup {
    pub(crate) server: Server,
    pub(crate) http: reqwest::Client,
    base: String,
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) content_type: String,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) body: Value,
}

impl Setup {
    pub(crate) async fn new() -> Self {
        Self::on("memory:").await
    }

    pub(crate) async fn on(store: &str) -> Self {
        Self::with(settings(store, "one")).await
    }

    pub(crate) async fn with(settings: Settings) -> Self {
        Self::of(downbeat_server::start(settings).await.expect("the server starts"))
    }

    pub(crate) fn of(server: Server) -> Self {
        let base = format!("http://{}", server.http_addr());
        Self { server, http: reqwest::Client::new(), base }
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let path = if path.starts_with("/api/") { path.to_owned() } else { format!("/api/v1{path}") };
        self.http.request(method, format!("{}{path}", self.base)).timeout(DEADLINE)
    }

    pub(crate) async fn root(&self, path: &str) -> (StatusCode, String) {
        let answer = self.http.get(format!("{}{path}", self.base)).send().await.unwrap();
        (answer.status(), answer.text().await.unwrap())
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        send(self.request(Method::GET, path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        send(self.request(Method::POST, path).json(body)).await
    }

    pub(crate) async fn ok(&self, path: &str) -> Value {
        let answer = self.get(path).await;
        assert!(answer.status.is_success(), "{path}: {} {}", answer.status, answer.body);
        answer.body
    }

    /// Submits a definition and answers the run's id.
    pub(crate) async fn submit(&self, definition: &Value) -> String {
        let answer = self.post("/runs", definition).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
        answer.body["id"].as_str().expect("a run has an id").to_owned()
    }

    /// Waits until a run is as wanted.
    pub(crate) async fn run_until(&self, id: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let path = format!("/runs/{id}");
        let wait = async {
            loop {
                let run = self.ok(&path).await;
                if wanted(&run) {
                    return run;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        match tokio::time::timeout(DEADLINE, wait).await {
            Ok(run) => run,
            Err(_) => panic!("run never became as wanted: {}", self.ok(&path).await),
        }
    }

    pub(crate) async fn ended(&self, id: &str) -> Value {
        self.run_until(id, |run| !run["finished_at"].is_null()).await
    }

    pub(crate) async fn stream(&self, request: RequestBuilder) -> Stream {
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        Stream { bytes: answer.bytes_stream().boxed(), text: String::new() }
    }

    pub(crate) async fn follow(&self, path: &str) -> Stream {
        self.stream(self.request(Method::GET, path)).await
    }

    pub(crate) async fn agent(&self, hostname: &str, groups: &[&str]) -> Agent {
        Agent::register(&self.server, hostname, groups).await
    }
}

/// On any free ports.
pub(crate) fn settings(store: &str, name: &str) -> Settings {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    Settings { store: store.to_owned(), http: any, grpc: any, name: name.to_owned(), ..Settings::default() }
}

pub(crate) async fn send(request: RequestBuilder) -> Answer {
    let answer = request.send().await.unwrap();
    let (status, headers) = (answer.status(), answer.headers().clone());
    let content_type =
        headers.get("content-type").map(|kind| kind.to_str().unwrap().to_owned()).unwrap_or_default();
    let text = answer.text().await.unwrap();
    let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
    Answer { status, content_type, headers, body }
}

/// One event of a stream.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sent {
    pub(crate) id: Option<String>,
    pub(crate) name: String,
    pub(crate) data: Value,
}

pub(crate) struct Stream {
    bytes: futures_util::stream::BoxStream<'static, reqwest::Result<axum::body::Bytes>>,
    text: String,
}

impl Stream {
    /// The next event; nothing when the stream has ended.
    pub(crate) async fn next(&mut self) -> Option<Sent> {
        tokio::time::timeout(DEADLINE, self.read()).await.expect("the stream goes on or ends")
    }

    async fn read(&mut self) -> Option<Sent> {
        loop {
            while let Some((block, rest)) = self.text.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.text = rest;
                let field = |name: &str| {
                    block
                        .lines()
                        .find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(": ")?.to_owned()))
                };
                if let Some(data) = field("data") {
                    let data = serde_json::from_str(&data).expect("data is JSON");
                    return Some(Sent { id: field("id"), name: field("event").unwrap_or_default(), data });
                }
            }
            let bytes = self.bytes.next().await?.ok()?;
            self.text.push_str(std::str::from_utf8(&bytes).expect("text"));
        }
    }

    pub(crate) async fn rest(&mut self) -> Vec<Sent> {
        let mut all = Vec::new();
        while let Some(sent) = self.next().await {
            all.push(sent);
        }
        all
    }
}

/// An agent that takes work and reports it when it is told to.
pub(crate) struct Agent {
    link: Client,
    pub(crate) node: NodeId,
    session: SessionId,
    poll: u64,
}

impl Agent {
    async fn register(server: &Server, hostname: &str, groups: &[&str]) -> Self {
        let link = Client::connect(&server.grpc_addr().to_string()).await.unwrap();
        let node = NodeId::derive(ClusterId::DEFAULT, hostname);
        let session = SessionId(uuid::Uuid::new_v4());
        let backends = Catalogue::builtin().backends().to_vec();
        let description = Description {
            hostname: hostname.to_owned(),
            groups: groups.iter().map(|&group| group.to_owned()).collect(),
            labels: [("disk".to_owned(), "ssd".to_owned())].into(),
            capabilities: [("cpu".to_owned(), json!(4))].into(),
            backends,
            slots: 2,
            version: "0.0.0-test".to_owned(),
        };
        let cluster = ClusterId::DEFAULT;
        let (instance, undelivered, life) = (InstanceId::default(), Vec::new(), 0);
        let register = Register { cluster, node, session, description, instance, undelivered, life };
        link.register(register).await.unwrap();
        Self { link, node, session, poll: 0 }
    }

    #[allow(dead_code, reason = "not every test file needs it")]
    pub(crate) fn session(&self) -> SessionId {
        self.session
    }

    /// Waits for work.
    pub(crate) async fn take(&mut self) -> Assignment {
        let wait = async {
            loop {
                self.poll += 1;
                let poll = Poll {
                    node: self.node,
                    session: self.session,
                    free: Free { fleet: 1, placed: 1 },
                    poll: self.poll,
                    resync: None,
                    wait: Duration::from_secs(5),
                };
                if let Some(assignment) = self.link.poll(poll).await.unwrap().assignments.into_iter().next() {
                    return assignment;
                }
            }
        };
        tokio::time::timeout(DEADLINE, wait).await.expect("there is work")
    }

    /// What work there is before long.
    #[allow(dead_code, reason = "not every test file needs it")]
    pub(crate) async fn take_soon(&mut self) -> Vec<Assignment> {
        self.poll += 1;
        let poll = Poll {
            node: self.node,
            session: self.session,
            free: Free { fleet: 1, placed: 1 },
            poll: self.poll,
            resync: None,
            wait: Duration::from_millis(100),
        };
        self.link.poll(poll).await.unwrap().assignments
    }

    pub(crate) async fn start(&self, work: &Assignment) {
        let started = Started { held: held(work), of: work.of.parent(), at: Timestamp::now() };
        self.report(vec![started], Vec::new()).await;
    }

    pub(crate) async fn write(&self, work: &Assignment, offset: u64, text: &str) {
        self.write_as(held(work), work, offset, text).await;
    }

    /// Writes output of an execution with a lease of one's choice.
    pub(crate) async fn write_as(&self, held: Held, work: &Assignment, offset: u64, text: &str) {
        let chunks = vec![chunk(work, offset, text)];
        let output = Output { node: self.node, session: self.session, held: vec![held], chunks };
        self.link.output(output).await.unwrap();
    }

    pub(crate) async fn finish(&self, work: &Assignment, exit_code: i32) {
        self.finish_with(work, exit_code, None).await;
    }

    pub(crate) async fn finish_with(&self, work: &Assignment, exit_code: i32, output: Option<(u64, &str)>) {
        let outcome = outcome(exit_code);
        let output = output.into_iter().map(|(offset, text)| chunk(work, offset, text)).collect();
        let finished = Finished { held: held(work), of: work.of.parent(), outcome, output };
        self.report(Vec::new(), vec![finished]).await;
    }

    /// Reports a result of the test's own making.
    #[allow(dead_code, reason = "not every test file needs it")]
    pub(crate) async fn finish_as(&self, work: &Assignment, outcome: Outcome) {
        let finished = Finished { held: held(work), of: work.of.parent(), outcome, output: Vec::new() };
        self.report(Vec::new(), vec![finished]).await;
    }

    async fn report(&self, started: Vec<Started>, finished: Vec<Finished>) {
        let (node, session) = (self.node, self.session);
        let report = Report { node, session, started, finished, free: Free::default(), poll: 0 };
        self.link.report(report).await.unwrap();
    }
}

/// How an attempt ended that took a microsecond: shorter than any lease.
pub(crate) fn outcome(exit_code: i32) -> Outcome {
    let now = Timestamp::now();
    Outcome {
        verdict: if exit_code == 0 { Verdict::Succeeded } else { Verdict::Failed },
        exit_code: Some(exit_code),
        error: (exit_code != 0).then(|| format!("exit code {exit_code}")),
        started_at: now - Duration::from_micros(1),
        finished_at: now,
        outputs: Default::default(),
        received_at: None,
    }
}

fn held(work: &Assignment) -> Held {
    Held { execution: work.execution, token: work.token }
}

fn chunk(work: &Assignment, offset: u64, text: &str) -> Chunk {
    Chunk { execution: work.execution, offset, stderr: false, text: text.to_owned(), at: Timestamp::now() }
}

/// One task on every node.
pub(crate) fn noop() -> Value {
    json!({"name": "noop", "target": "all", "tasks": [{"backend": "test", "action": "noop"}]})
}
