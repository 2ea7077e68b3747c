//! Slow lines between agents and servers, at three speeds: nodes come back, leases hold, nothing is lost.

use std::path::Path;

use downbeat_testbed::eventually;
use serde_json::{Value, json};

use crate::book::{Book, script};
use crate::cluster::{Cluster, Plan};
use crate::outage::assert_true;
use crate::proxy::Mode;

const FAST: u32 = 1_000_000;
const MIDDLE: u32 = 100_000;
const SLOW: u32 = 20_000;
const RESULTS: usize = 4;

async fn one_node() -> Cluster {
    Cluster::start(Plan { servers: 1, agents: 1, special: false }).await
}

fn task(name: &str, command: &str) -> Value {
    json!({"name": name, "backend": "exec", "action": "shell", "params": {"command": command}})
}

fn print(bytes: usize) -> String {
    format!("head -c {bytes} /dev/zero | tr '\\0' x | fold -w 99")
}

/// Counts the results with this many bytes or more that an outbox holds whole.
fn results_in(outbox: &Path, bytes: usize) -> usize {
    let Ok(entries) = std::fs::read_dir(outbox) else { return 0 };
    let files = entries.flatten().filter_map(|entry| std::fs::read(entry.path()).ok());
    files.map(|file| records(&file).into_iter().filter(|length| *length >= bytes).count()).sum()
}

/// The length of each record that is whole: a record is its length, a checksum, and so many bytes.
fn records(mut file: &[u8]) -> Vec<usize> {
    let mut lengths = Vec::new();
    while let Some((length, rest)) = file.split_first_chunk() {
        let length = u32::from_le_bytes(*length) as usize;
        let Some((_, following)) = rest.split_at_checked(4 + length) else { break };
        lengths.push(length);
        file = following;
    }
    lengths
}

async fn session(cluster: &Cluster) -> Option<Value> {
    let nodes = cluster.direct.get(0, "nodes").await?;
    let node = &nodes["data"][0];
    (node["status"] == "online").then(|| node["registered_at"].clone())
}

/// An agent dies with results of this size that no server has, and starts again on a line of this speed.
async fn comes_back(bytes_per_second: u32, result_bytes: usize) {
    let cluster = one_node().await;
    let (book, wire, agent) = (cluster.book(), &cluster.servers[0].agents, &cluster.agents[0]);
    let gate = Path::new(&cluster.site()).join("gate");
    let tasks = (0..RESULTS).map(|number| {
        let name = format!("t{number}");
        let command = format!(
            "echo >>{0}.begun; while [ ! -e {0} ]; do sleep 0.02; done; {1}; {2}",
            gate.display(),
            print(result_bytes),
            script(&book, &name, 0.0, 1)
        );
        let mut task = task(&name, &command);
        task["depends_on"] = json!(["first"]);
        task
    });
    // A graph, so that all begin at once.
    let first = task("first", &script(&book, "first", 0.0, 1));
    let tasks: Vec<Value> = std::iter::once(first).chain(tasks).collect();
    let definition = json!({"name": "slow", "tasks": tasks});
    let run = cluster.submit(0, &definition, "slow").await;
    let begun = gate.with_extension("begun");
    eventually("all have begun", || async {
        std::fs::read(&begun).is_ok_and(|lines| lines.len() == RESULTS).then_some(())
    })
    .await;
    let before = eventually("the node is online", || session(&cluster)).await;
    // Refused, not silent: no pending call delays the results, so the lease lasts.
    wire.set(Mode::Refuse);
    wire.cut();
    std::fs::write(&gate, "").unwrap();
    let outbox = Path::new(&cluster.site()).join("web-1/data/outbox");
    eventually("the results are on the agent's disk", || async {
        let have_ended = Book::read(&book).ends().count() == 1 + RESULTS;
        (have_ended && results_in(&outbox, result_bytes * 9 / 10) == RESULTS).then_some(())
    })
    .await;
    agent.kill();
    wire.set(Mode::Slow(bytes_per_second));
    agent.start();
    let online = eventually("the node is back", || async {
        session(&cluster).await.filter(|registered| *registered != before)
    });
    online.await;
    let open = cluster.direct.get(0, &format!("runs/{run}")).await.unwrap();
    if bytes_per_second < FAST {
        assert!(open["finished_at"].is_null(), "it does not come back only after its results: {open:#}");
    }
    let view = cluster.ended(0, &run).await;
    assert_eq!(view["status"], "completed", "{view:#}");
    let evidence = assert_true(&cluster, &[("slow", &run)]).await;
    let executions = &evidence.runs[&run].executions;
    assert_eq!(executions.len(), 1 + RESULTS, "none was lost and none was done again");
    for execution in executions.iter().filter(|execution| execution.step > 0) {
        let output = cluster.direct.get(0, &format!("executions/{}/output", execution.id)).await.unwrap();
        let text = output["text"].as_str().unwrap();
        let kept = text.bytes().filter(|byte| *byte == b'x').count();
        assert!(kept == result_bytes || kept > 900 * 1024, "{kept} of {result_bytes} bytes");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_comes_back_and_delivers_its_results_over_1_mb_a_second() {
    comes_back(FAST, 1024 * 1024).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_comes_back_and_delivers_its_results_over_100_kb_a_second() {
    comes_back(MIDDLE, 1024 * 1024).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_comes_back_and_delivers_its_results_over_20_kb_a_second() {
    comes_back(SLOW, 256 * 1024).await;
}

/// A job prints more than the line carries, for longer than a lease lasts.
async fn chatters(bytes_per_second: u32) {
    let cluster = one_node().await;
    cluster.servers[0].agents.set(Mode::Slow(bytes_per_second));
    let book = cluster.book();
    // 1.5 MB/s for 20 s; a lease lasts 15 s.
    let command = format!(
        "for i in $(seq 200); do {}; sleep 0.1; done; {}",
        print(150_000),
        script(&book, "a", 0.0, 1)
    );
    let definition = json!({"name": "chatty", "target": "all", "tasks": [task("a", &command)]});
    let run = cluster.submit(0, &definition, "chatty").await;
    let view = cluster.ended(0, &run).await;
    assert_eq!(view["status"], "completed", "{view:#}");
    let evidence = assert_true(&cluster, &[("chatty", &run)]).await;
    assert_eq!(evidence.runs[&run].executions.len(), 1, "its lease held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_prints_more_than_the_line_carries_keeps_its_lease_over_1_mb_a_second() {
    chatters(FAST).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_prints_more_than_the_line_carries_keeps_its_lease_over_100_kb_a_second() {
    chatters(MIDDLE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_prints_more_than_the_line_carries_keeps_its_lease_over_20_kb_a_second() {
    chatters(SLOW).await;
}
