//! Owns random work: runs of several shapes, agents that write, fail and finish, users who cancel and drain.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use downbeat_core::Dice;
use downbeat_testbed::in_process::{Agent, Setup};
use serde_json::{Value, json};
use tokio::task::JoinSet;

const NODES: usize = 3;

pub(crate) struct Load {
    agents: JoinSet<()>,
    stop: Arc<AtomicBool>,
    dice: Dice,
    runs: Vec<String>,
}

fn definition(dice: &mut Dice) -> Value {
    let task = json!({"backend": "test", "action": "noop", "max_retries": 0});
    match dice.next_u64() % 4 {
        0 => json!({"name": "fleet", "target": "all", "tasks": [task]}),
        1 => {
            json!({"name": "steps", "target": "group:web", "strategy": "continue", "tasks": [task, task, {"tasks": [task, task]}]})
        }
        2 => json!({"name": "placed", "tasks": [task, task]}),
        _ => {
            json!({"target": "node:web-0", "tasks": [task, {"backend": "test", "action": "echo", "params": {"message": "ö"}, "condition": "on_failure"}]})
        }
    }
}

impl Load {
    pub(crate) async fn start(primary: &Setup, seed: u64) -> Self {
        let (mut agents, stop) = (JoinSet::new(), Arc::new(AtomicBool::new(false)));
        for number in 0..NODES {
            let agent = primary.agent(&format!("web-{number}"), &["web"]).await;
            agents.spawn(work(agent, Dice::new(seed + 1 + number as u64), Arc::clone(&stop)));
        }
        Self { agents, stop, dice: Dice::new(seed), runs: Vec::new() }
    }

    /// Submits this many runs, with random actions between them.
    pub(crate) async fn submit(&mut self, primary: &Setup, count: usize) {
        for _ in 0..count {
            self.runs.push(primary.submit(&definition(&mut self.dice)).await);
            match self.dice.next_u64() % 6 {
                0 => {
                    let run = &self.runs[usize::try_from(self.dice.next_u64()).unwrap() % self.runs.len()];
                    primary.post(&format!("/runs/{run}/cancel"), &json!({})).await;
                }
                1 => {
                    primary.post("/nodes/web-1/drain", &json!({})).await;
                    primary.post("/nodes/web-1/undrain", &json!({})).await;
                }
                _ => {}
            }
        }
    }

    /// Waits until every run and the agents have ended.
    pub(crate) async fn end(mut self, primary: &Setup) {
        for run in &self.runs {
            primary.ended(run).await;
        }
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.agents.join_next().await {
            ended.unwrap();
        }
    }
}

async fn work(mut agent: Agent, mut dice: Dice, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        for work in agent.take_soon().await {
            if !dice.next_u64().is_multiple_of(4) {
                agent.start(&work).await;
            }
            let mut offset = 0;
            for _ in 0..dice.next_u64() % 5 {
                let text = "grüße ".repeat(usize::try_from(dice.next_u64() % 50).unwrap()) + "\n";
                agent.write(&work, offset, &text).await;
                offset += text.len() as u64;
            }
            let exit_code = i32::from(dice.next_u64().is_multiple_of(5));
            agent.finish_with(&work, exit_code, Some((offset, "the end\n"))).await;
        }
    }
}
