//! The live stream of frames, and statistics.

use std::collections::BTreeMap;

use downbeat_testbed::in_process::{Setup, Stream, noop};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

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
