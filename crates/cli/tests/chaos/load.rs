//! Clients that continue in spite of all faults: they submit through any server, retry with the same
//! key, and cancel some.

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

/// A submitter's submissions, and the responses that no client may get.
#[derive(Debug, Default)]
pub(crate) struct Submitted {
    pub(crate) submissions: Vec<Submission>,
    pub(crate) complaints: Vec<String>,
    /// Responses 503 with a time to try again.
    pub(crate) refusals: u64,
}

/// Submits until `stop`. Finishes a submission that it began.
pub(crate) async fn submitter(
    cluster: Arc<Cluster>,
    name: String,
    seed: u64,
    stop: Arc<AtomicBool>,
) -> Submitted {
    let mut dice = Dice::new(seed);
    let mut submitted = Submitted::default();
    let mut open: Vec<String> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let key = format!("{name}-{}", submitted.submissions.len());
        let definition = jobs::draw(&cluster.book(), &key, &mut dice);
        let mut submission = submit(&cluster, key, &definition, &mut dice, &mut submitted).await;
        if let Some(run) = submission.answered.first().cloned() {
            if dice.below(8) == 0 {
                tokio::time::sleep(Duration::from_millis(dice.below(800))).await;
                submission.cancel_asked = true;
                cancel(&cluster, &run, &mut dice, &mut submitted).await;
            }
            open.push(run);
        }
        submitted.submissions.push(submission);
        while open.len() >= OPEN && !stop.load(Ordering::Relaxed) {
            open = still_open(&cluster, open, &mut dice).await;
            tokio::time::sleep(PAUSE).await;
        }
    }
    submitted
}

fn any(cluster: &Cluster, dice: &mut Dice) -> usize {
    usize::try_from(dice.below(cluster.servers.len() as u64)).unwrap()
}

async fn submit(
    cluster: &Cluster,
    key: String,
    definition: &Value,
    dice: &mut Dice,
    submitted: &mut Submitted,
) -> Submission {
    let mut answered = BTreeSet::new();
    loop {
        let server = any(cluster, dice);
        if let Some(answer) = cluster.client.post(server, "runs", definition, Some(&key)).await {
            match answer.status {
                200 | 201 => {
                    answered.insert(answer.body["id"].as_str().unwrap_or_default().to_owned());
                    // Sometimes the client loses the response and tries again.
                    if dice.below(6) > 0 {
                        return Submission { key, answered, cancel_asked: false };
                    }
                }
                // All of its nodes are deleted for a moment, and register again.
                409 => submitted.refusals += 1,
                503 => {
                    submitted.refusals += 1;
                    if answer.retry_after.is_none() {
                        submitted.complaints.push(format!("503 without Retry-After: {}", answer.body));
                    }
                }
                _ => {
                    submitted.complaints.push(format!("{key} was answered {answer:?}"));
                    return Submission { key, answered, cancel_asked: false };
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Repeats until a server accepts it, or responds that the run has ended.
async fn cancel(cluster: &Cluster, run: &str, dice: &mut Dice, submitted: &mut Submitted) {
    loop {
        let server = any(cluster, dice);
        let path = format!("runs/{run}/cancel");
        match cluster.client.post(server, &path, &json!({}), None).await {
            Some(answer) if answer.status < 300 || answer.status == 409 => return,
            Some(answer) if answer.status != 503 => {
                submitted.complaints.push(format!("cancel of {run} was answered {answer:?}"));
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
