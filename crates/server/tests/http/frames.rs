//! The live stream of frames, and statistics.

use std::collections::BTreeMap;

use downbeat_core::ids::{ClusterId, NodeId, SessionId};
use downbeat_core::limits::LIVE_REPLAYED;
use downbeat_core::node::{Former, Registration};
use downbeat_core::{Change, Timestamp};
use downbeat_testbed::in_process::{Setup, Stream, noop};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use uuid::Uuid;

/// Reads frames and adds up their changes, until a condition holds.
async fn gather(stream: &mut Stream, done: impl Fn(&Gathered) -> bool) -> Gathered {
    let mut gathered = Gathered::default();
    while !done(&gathered) {
        let sent = stream.next().await.expect("the stream goes on");
        assert_eq!(sent.name, "frame");
        assert_eq!(Some(sent.data["seq"].to_string()), sent.id);
        gathered.add(&sent.data);
    }
    gathered
}

#[derive(Debug, Default)]
struct Gathered {
    seq: u64,
    frames: usize,
    counts: BTreeMap<String, i64>,
    state: Value,
    cells: BTreeMap<String, Value>,
    nodes: Vec<Value>,
    servers: Value,
}

impl Gathered {
    fn add(&mut self, frame: &Value) {
        let list = |name: &str| frame[name].as_array().cloned().unwrap_or_default();
        self.frames += 1;
        self.seq = frame["seq"].as_u64().unwrap();
        for run in list("runs") {
            for (status, by) in run["counts"].as_object().into_iter().flatten() {
                *self.counts.entry(status.clone()).or_default() += by.as_i64().unwrap();
            }
            if !run["state"].is_null() {
                self.state = run["state"].clone();
            }
        }
        for cell in list("cells") {
            self.cells.insert(format!("{} {}", cell["step"], cell["node"]), cell["status"].clone());
        }
        self.nodes.extend(list("nodes"));
        if frame["servers"].is_array() {
            self.servers = frame["servers"].clone();
        }
    }

    fn has_ended(&self) -> bool {
        self.state == "completed"
    }
}

#[tokio::test]
async fn frames_have_the_net_change_of_runs_cells_nodes_and_servers() {
    let setup = Setup::new().await;
    let mut stream = setup.follow("/live").await;
    let mut agent = setup.agent("web-01", &[]).await;
    let run = setup.submit(&noop()).await;
    let mut of_run = setup.follow(&format!("/live?run={run}&topics=cells,runs&since=0")).await;
    let work = agent.take().await;
    agent.start(&work).await;
    agent.finish(&work, 0).await;
    setup.ended(&run).await;
    let all = gather(&mut stream, |all| all.has_ended() && !all.servers.is_null()).await;
    assert_eq!(all.servers, json!([{"name": "one", "alive": true}]));
    assert_eq!((&all.nodes[0]["hostname"], &all.nodes[0]["status"]), (&json!("web-01"), &json!("online")));
    assert!(all.cells.is_empty(), "no run was named");
    all_succeeded(&all);
    let one = gather(&mut of_run, Gathered::has_ended).await;
    assert!(one.nodes.is_empty() && one.servers.is_null(), "{one:?}");
    assert_eq!(one.cells.into_values().collect::<Vec<_>>(), ["succeeded"]);
    // A client that reconnects gets the rest only.
    let path = "/live?topics=nodes";
    let resumed = setup.request(Method::GET, path).header("Last-Event-ID", all.seq);
    let mut resumed = setup.stream(resumed).await;
    setup.post("/nodes/web-01/drain", &json!({})).await;
    let rest = gather(&mut resumed, |rest| !rest.nodes.is_empty()).await;
    assert_eq!((rest.frames, &rest.nodes[0]["draining"]), (1, &json!(true)));
}

fn all_succeeded(all: &Gathered) {
    let left: Vec<_> = all.counts.iter().filter(|(_, count)| **count != 0).collect();
    assert_eq!(left, [(&"succeeded".to_owned(), &1)]);
}

const NODES: u128 = 1_000;
/// What a connection holds for a client that reads nothing: much less than a frame of all nodes.
const WINDOW: u32 = 16 * 1024;

fn registered(number: u128, at: Timestamp) -> Change {
    let hostname = format!("web-{number:0>200}");
    let description = json!({"hostname": hostname, "slots": 1, "version": "1"});
    let id = Uuid::from_u128(number);
    Change::NodeRegistered {
        registration: Registration {
            node: NodeId(id),
            cluster: ClusterId::DEFAULT,
            session: SessionId(id),
            description: serde_json::from_value(description).unwrap(),
            installation: None,
            undelivered: Vec::new(),
            kept_since: None,
            attempts: Vec::new(),
            former: Former::Any,
            at,
        },
    }
}

/// Commits a change of every node, as another server would.
async fn commit(setup: &Setup, change: impl Fn(u128, Timestamp) -> Change) {
    let (service, at) = (setup.server.service(), Timestamp::now());
    let changes: Vec<Change> = (1..=NODES).map(|number| change(number, at)).collect();
    let committed = service.views().commit(service.server_id(), &changes).await.unwrap();
    assert!(committed.outcomes.iter().all(Result::is_ok));
}

/// Drains all nodes, or the opposite, so many times that they end up drained. Returns the number of the last event.
async fn drain(setup: &Setup, times: u64) -> u64 {
    for time in (0..times).rev() {
        let set = |number, at| Change::NodeDrainSet {
            node: NodeId(Uuid::from_u128(number)),
            draining: time % 2 == 0,
            by: "a".repeat(400),
            at,
        };
        commit(setup, set).await;
    }
    // The server learns of all of it before its own next change.
    setup.post("/nodes/own/drain", &json!({})).await;
    setup.server.service().views().last_seq().await.unwrap()
}

#[tokio::test]
async fn a_client_that_reads_slowly_gets_the_net_change_and_learns_when_it_is_too_far_behind() {
    let mut setup = Setup::new().await;
    let _agent = setup.agent("own", &[]).await;
    commit(&setup, registered).await;
    setup.http = reqwest::Client::builder()
        .http2_prior_knowledge()
        .http2_initial_stream_window_size(WINDOW)
        .build()
        .unwrap();
    let mut stream = setup.follow("/live?topics=nodes&since=0").await;
    stream.begun().await;
    // The first frame fills the connection while all this happens.
    let last = drain(&setup, 11).await;
    let net = gather(&mut stream, |all| all.seq == last).await;
    let drained: BTreeMap<_, _> =
        net.nodes.iter().map(|node| (node["node"].to_string(), node["draining"] == true)).collect();
    assert!(drained.len() as u128 == NODES + 1 && drained.values().all(|drained| *drained));
    // How many frames that takes depends on how fast the server reads: see the reader's own tests.

    drain(&setup, 1).await;
    stream.begun().await;
    // More bytes than the feed keeps, and more events than are replayed.
    let last = drain(&setup, 1 + LIVE_REPLAYED / NODES as u64).await;
    let mut frames = 0;
    let gap = loop {
        match stream.next().await.unwrap() {
            sent if sent.name == "frame" => frames += 1,
            sent => break sent,
        }
    };
    assert_eq!((gap.name.as_str(), &gap.data), ("gap", &json!({"first": last + 1})));
    assert!(frames <= 3, "{frames} frames");
    setup.post("/nodes/own/undrain", &json!({})).await;
    let next = stream.next().await.unwrap();
    assert_eq!((&next.data["seq"], &next.data["nodes"][0]["draining"]), (&json!(last + 1), &json!(false)));
}

#[tokio::test]
async fn a_wrong_topic_is_refused_by_name() {
    let setup = Setup::new().await;
    for (query, detail) in [
        ("topics=job", "the query is wrong: topics: `job` is not one of runs, cells, nodes, servers"),
        ("topics=cells", "the query is wrong: topics: `cells` needs `run`"),
        ("since=9", "the query is wrong: since: 9 is after the last event, 0"),
    ] {
        let answer = setup.get(&format!("/live?{query}")).await;
        assert_eq!((answer.status, &answer.body["detail"]), (StatusCode::BAD_REQUEST, &json!(detail)));
    }
    assert_eq!(setup.get("/live?run=nobody").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn statistics_count_ends_and_durations_and_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}/downbeat.db", dir.path().display());
    let setup = Setup::on(&store).await;
    let mut agent = setup.agent("web-01", &[]).await;
    let mut job = noop();
    job["name"] = json!("copy");
    for exit_code in [0, 0, 1] {
        let run = setup.submit(&job).await;
        let work = agent.take().await;
        agent.finish(&work, exit_code).await;
        setup.ended(&run).await;
    }
    let ended = |stats: &Value| {
        let ends = stats["ends"].as_array().unwrap().clone();
        let sum = |status: &str| ends.iter().map(|end| end[status].as_u64().unwrap()).sum::<u64>();
        (ends.len(), sum("completed"), sum("failed"), sum("cancelled"))
    };
    let stats = setup.ok("/stats").await;
    assert_eq!(ended(&stats), (24, 2, 1, 0));
    assert_eq!((&stats["per"], &stats["since"]), (&json!("1h"), &json!(null)));
    assert_eq!((&stats["jobs"][0]["job"], &stats["jobs"][0]["runs"]), (&json!("copy"), &json!(2)));
    let stats = setup.ok("/stats?job=copy&last=1h&per=30m").await;
    let step = &stats["jobs"][0]["steps"][0];
    assert_eq!((&step["step"], &step["executions"], &step["median"]), (&json!(0), &json!(2), &json!("0s")));
    assert_eq!(stats["ends"].as_array().unwrap().len(), 2);
    setup.server.stop().await;

    let setup = Setup::on(&store).await;
    let read = || async { Some(setup.ok("/stats").await).filter(|stats| stats["since"].is_null()) };
    let stats = downbeat_testbed::within(std::time::Duration::from_secs(30), read).await.expect("it is read");
    assert_eq!((ended(&stats), &stats["jobs"][0]["runs"]), ((24, 2, 1, 0), &json!(2)));
    let detail = setup.get("/stats?last=8d").await.body["detail"].clone();
    assert_eq!(detail, "the query is wrong: last: write a duration from 1m to 7d");
}
