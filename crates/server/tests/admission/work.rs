//! Agents that execute everything that they get, and record the order.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use downbeat_testbed::in_process::{Agent, Setup};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// An event on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) node: String,
    pub(crate) run: String,
    pub(crate) began: bool,
}

/// The events on all nodes, in one order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<Entry>>>);

impl Log {
    fn note(&self, node: &str, run: &str, began: bool) {
        let entry = Entry { node: node.to_owned(), run: run.to_owned(), began };
        self.0.lock().unwrap().push(entry);
    }

    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.0.lock().unwrap().clone()
    }

    /// Returns the runs whose work started, in order.
    pub(crate) fn runs(&self) -> Vec<String> {
        self.entries().into_iter().filter(|entry| entry.began).map(|entry| entry.run).collect()
    }
}

/// Executes all work until it is dropped.
pub(crate) struct Worker(JoinHandle<()>);

impl Drop for Worker {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Worker {
    pub(crate) async fn at(setup: &Setup, hostname: &str, log: &Log) -> Self {
        Self::of(setup.agent(hostname, &["web"]).await, hostname, log)
    }

    /// Continues with an agent that was used before.
    pub(crate) fn of(mut agent: Agent, hostname: &str, log: &Log) -> Self {
        let (hostname, log) = (hostname.to_owned(), log.clone());
        Self(tokio::spawn(async move {
            loop {
                let work = agent.take().await;
                let run = work.of.run().to_string();
                log.note(&hostname, &run, true);
                tokio::time::sleep(Duration::from_millis(2)).await;
                log.note(&hostname, &run, false);
                agent.finish(&work, 0).await;
            }
        }))
    }
}

/// Creates a job of this many steps on every node of a target.
pub(crate) fn job(target: &str, steps: usize) -> Value {
    let tasks = vec![json!({"backend": "test", "action": "noop"}); steps];
    json!({"target": target, "tasks": tasks})
}

pub(crate) fn with(mut job: Value, key: &str, value: impl Into<Value>) -> Value {
    job[key] = value.into();
    job
}
