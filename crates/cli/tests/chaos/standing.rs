//! People who edit the standing tasks of two clusters while faults happen, and delete one of the clusters.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use downbeat_core::Dice;
use downbeat_testbed::{Answer, within};
use serde_json::{Value, json};

use crate::agent::Agent;
use crate::book::script;
use crate::cluster::Cluster;

/// The cluster that is deleted.
pub(crate) const DOOMED: &str = "doomed";
/// The start of the names of its tasks: their lines in the book stay when the cluster is gone.
pub(crate) const DOOMED_TASK: &str = "doomed-";
/// The agents of it.
pub(crate) const DOOMED_NODES: [&str; 2] = ["doomed-1", "doomed-2"];
/// The longest list.
const TASKS: usize = 5;
const PAUSE: Duration = Duration::from_millis(300);
/// How long servers may take to respond, and agents to end, once everything has healed.
const PATIENCE: Duration = Duration::from_secs(60);

/// What an editor did, and the responses that no client may get.
#[derive(Debug, Default)]
pub(crate) struct Edits {
    pub(crate) counts: BTreeMap<&'static str, u64>,
    pub(crate) complaints: Vec<String>,
}

impl Edits {
    fn note(&mut self, kind: &'static str, answer: &Answer) {
        match answer.status {
            200..=299 => *self.counts.entry(kind).or_default() += 1,
            // Another edit was faster, a task is deleted, the order is outdated, or the store is away.
            404 | 409 | 422 | 503 => {}
            _ => self.complaints.push(format!("{kind} was answered {answer:?}")),
        }
    }
}

/// Creates a cluster, with retries until a server responds.
pub(crate) async fn create(cluster: &Cluster, name: &str) {
    let body = json!({"name": name, "on_register": "resume"});
    let created = || async {
        let answer = cluster.client.post(0, "clusters", &body, None).await?;
        matches!(answer.status, 201 | 409).then_some(())
    };
    within(PATIENCE, created).await.expect("the cluster is created");
}

/// Deletes a cluster, with retries until it is gone.
pub(crate) async fn delete(cluster: &Cluster, name: &str) {
    let path = format!("clusters/{name}");
    let deleted = || async {
        let answer = cluster.client.delete(0, &path).await?;
        matches!(answer.status, 204 | 404).then_some(())
    };
    within(PATIENCE, deleted).await.expect("the cluster is deleted");
}

/// Waits until the agents of a deleted cluster have ended by themselves. Returns those that go on.
pub(crate) async fn ended(agents: &[Agent]) -> Vec<String> {
    let mut left = Vec::new();
    for agent in agents {
        if within(PATIENCE, || async { agent.reap().then_some(()) }).await.is_none() {
            left.push(format!("{} goes on although its cluster was deleted", agent.name));
        }
    }
    left
}

/// Waits until every node of a cluster has finished its list. Returns the walks that are not at their end.
pub(crate) async fn settled(cluster: &Cluster, name: &str, patience: Duration) -> Vec<Value> {
    let path = format!("clusters/{name}/walks");
    let unfinished = || async {
        let walks = cluster.direct.list(0, &path).await?;
        let is_over =
            |walk: &Value| matches!(walk["state"].as_str(), Some("complete" | "failed" | "blocked"));
        Some(walks.into_iter().filter(|walk| !is_over(walk)).collect::<Vec<Value>>())
    };
    let done = || async { unfinished().await.filter(Vec::is_empty) };
    match within(patience, done).await {
        Some(_) => Vec::new(),
        None => unfinished().await.unwrap_or_default(),
    }
}

/// Edits the list of a cluster until `stop`.
pub(crate) async fn editor(
    cluster: Arc<Cluster>,
    name: &'static str,
    seed: u64,
    stop: Arc<AtomicBool>,
) -> Edits {
    let mut dice = Dice::new(seed);
    let mut edits = Edits::default();
    let book = cluster.book();
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        edit(&cluster, name, &book, number, &mut dice, &mut edits).await;
        tokio::time::sleep(PAUSE + Duration::from_millis(dice.below(1_500))).await;
    }
    edits
}

fn pick<'a>(of: &'a [Value], dice: &mut Dice) -> Option<&'a Value> {
    let index = usize::try_from(dice.below(of.len().max(1) as u64)).unwrap();
    of.get(index)
}

async fn edit(
    cluster: &Cluster,
    name: &str,
    book: &Path,
    number: u64,
    dice: &mut Dice,
    edits: &mut Edits,
) -> Option<()> {
    let server = usize::try_from(dice.below(cluster.servers.len() as u64)).unwrap();
    let client = &cluster.client;
    let tasks = client.list(server, &format!("clusters/{name}/tasks")).await?;
    let task = pick(&tasks, dice).map(|task| task["id"].as_str().unwrap_or_default().to_owned());
    let kind = if tasks.len() < 2 { 0 } else { dice.below(8) };
    let (kind, answer) = match (kind, task) {
        (0 | 1, _) if tasks.len() < TASKS => {
            let prefix = if name == DOOMED { DOOMED_TASK } else { "standing-" };
            let task_name = format!("{prefix}{number}");
            #[allow(clippy::cast_precision_loss, reason = "hundredths of a second")]
            let seconds = dice.below(60) as f64 / 100.0;
            // One in six fails at its first attempt on each node.
            let command = script(book, &task_name, seconds, if dice.below(6) == 0 { 2 } else { 1 });
            let body = json!({
                "name": task_name, "type": "exec", "blocking": dice.below(3) == 0, "config": {"command": command},
            });
            let position = 1 + dice.below(tasks.len() as u64 + 1);
            let path = format!("clusters/{name}/tasks?position={position}");
            ("task added", client.post(server, &path, &body, None).await?)
        }
        (2, Some(id)) => {
            let body = json!({"blocking": dice.below(3) == 0});
            ("task updated", client.put(server, &format!("tasks/{id}"), &body).await?)
        }
        (3, Some(id)) => ("task deleted", client.delete(server, &format!("tasks/{id}")).await?),
        (4 | 5, Some(_)) => {
            let mut ids: Vec<Value> = tasks.iter().map(|task| task["id"].clone()).collect();
            ids.rotate_left(1);
            let path = format!("clusters/{name}/tasks/reorder");
            ("tasks reordered", client.put(server, &path, &json!({"task_ids": ids})).await?)
        }
        (6, Some(id)) => {
            let body = match dice.below(3) {
                0 => json!({"all": true}),
                1 => json!({"failed": true}),
                _ => json!({"nodes": [node(cluster, name, dice)]}),
            };
            ("task rerun", client.post(server, &format!("tasks/{id}/rerun"), &body, None).await?)
        }
        (7, Some(_)) => {
            let path = format!("nodes/{}/reset?cluster={name}", node(cluster, name, dice));
            ("node reset", client.post(server, &path, &json!({}), None).await?)
        }
        _ => return None,
    };
    edits.note(kind, &answer);
    Some(())
}

fn node(cluster: &Cluster, name: &str, dice: &mut Dice) -> String {
    let agents = if name == DOOMED { &cluster.doomed } else { &cluster.agents };
    let index = usize::try_from(dice.below(agents.len().max(1) as u64)).unwrap();
    agents.get(index).map(|agent| agent.name.clone()).unwrap_or_default()
}
