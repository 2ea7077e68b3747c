//! Clients that go on whatever happens: they submit through any server, try again with the same key, and cancel some.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use downbeat_core::Dice;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::evidence::Submission;
use crate::jobs;

/// Runs of one submitter that may be open at once.
const OPEN: usize = 4;
/// Between attempts.
const PAUSE: Duration = Duration::from_millis(150);

/// What a submitter did, and what it was told that it must not be told.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) submissions: Vec<Submission>,
    pub(crate) complaints: Vec<String>,
    /// Answers 503: the service said that it cannot, and when to come back.
    pub(crate) refusals: u64,
}

/// Submits until told to stop. What it began to submit it submits to the end.
pub(crate) async fn submitter(cluster: Arc<Cluster>, name: String, seed: u64, stop: Arc<AtomicBool>) -> Told {
    let mut dice = Dice::new(seed);
    let mut told = Told::default();
    let mut open: Vec<String> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let key = format!("{name}-{}", told.submissions.len());
        let definition = jobs::draw(&cluster.book(), &key, &mut dice);
        let mut submission = submit(&cluster, key, &definition, &mut dice, &mut told).await;
        if let Some(run) = submission.answered.first().cloned() {
            if dice.below(8) == 0 {
                tokio::time::sleep(Duration::from_millis(dice.below(800))).await;
                submission.cancel_asked = true;
                cancel(&cluster, &run, &mut dice, &mut told).await;
            }
            open.push(run);
        }
        told.submissions.push(submission);
        while open.len() >= OPEN && !stop.load(Ordering::Relaxed) {
            open = still_open(&cluster, open, &mut dice).await;
            tokio::time::sleep(PAUSE).await;
        }
    }
    told
}

fn any(cluster: &Cluster, dice: &mut Dice) -> usize {
    usize::try_from(dice.below(cluster.servers.len() as u64)).unwrap()
}

async fn submit(
    cluster: &Cluster,
    key: String,
    definition: &Value,
    dice: &mut Dice,
    told: &mut Told,
) -> Submission {
    let mut answered = BTreeSet::new();
    loop {
        let server = any(cluster, dice);
        if let Some(answer) = cluster.client.post(server, "runs", definition, Some(&key)).await {
            match answer.status {
                200 | 201 => {
                    answered.insert(answer.body["id"].as_str().unwrap_or_default().to_owned());
                    // Sometimes the answer is lost on a client, and it comes again.
                    if dice.below(6) > 0 {
                        return Submission { key, answered, cancel_asked: false };
                    }
                }
                // All nodes that it is for were deleted in this moment, and come back.
                409 => told.refusals += 1,
                503 => {
                    told.refusals += 1;
                    if answer.retry_after.is_none() {
                        told.complaints.push(format!("503 without Retry-After: {}", answer.body));
                    }
                }
                _ => {
                    told.complaints.push(format!("{key} was answered {answer:?}"));
                    return Submission { key, answered, cancel_asked: false };
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Until a server took it, or said that the run had ended.
async fn cancel(cluster: &Cluster, run: &str, dice: &mut Dice, told: &mut Told) {
    loop {
        let server = any(cluster, dice);
        let path = format!("runs/{run}/cancel");
        match cluster.client.post(server, &path, &json!({}), None).await {
            Some(answer) if answer.status < 300 || answer.status == 409 => return,
            Some(answer) if answer.status != 503 => {
                told.complaints.push(format!("cancel of {run} was answered {answer:?}"));
                return;
            }
            _ => tokio::time::sleep(PAUSE).await,
        }
    }
}

async fn still_open(cluster: &Cluster, runs: Vec<String>, dice: &mut Dice) -> Vec<String> {
    let mut open = Vec::new();
    for run in runs {
        let view = cluster.client.get_any(any(cluster, dice), &format!("runs/{run}")).await;
        if view.is_none_or(|view| !view["finished_at"].is_string()) {
            open.push(run);
        }
    }
    open
}
