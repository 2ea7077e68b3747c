//! Owns the process of the simulated nodes. It is neither the server nor the process that measures, so that the CPU time
//! of each is known.

use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clap::Args;
use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStdin, Command};

use super::figures::Latencies;
use super::node::Node;
use super::process;
use super::server::cannot;
use crate::failure::{Code, Failure, Result};

/// Nodes that join at the same time: the listener's queue is short.
const JOINING: usize = 256;
/// The process closes its connections and ends within this time, or something is wrong.
const LEAVE: Duration = Duration::from_secs(30);

/// Run simulated nodes in this process, as long as standard input is open
#[derive(Debug, Args)]
pub(crate) struct NodesArgs {
    /// Address of the server for agents: HOST:PORT
    address: String,
    /// Number of nodes, each with its own connection and session
    count: u32,
}

/// Runs the nodes. Returns their heartbeats as JSON, for [`Nodes::leave`].
pub(super) async fn serve(args: NodesArgs) -> Result<String> {
    process::make_room_for(args.count)?;
    let nodes: Vec<Node> = stream::iter(0..args.count)
        .map(|index| Node::join(&args.address, format!("sim-{index:05}")))
        .buffer_unordered(JOINING)
        .try_collect()
        .await
        .map_err(|fault| cannot("join", &fault))?;
    let interval = nodes.first().map(Node::heartbeat_interval).unwrap_or_default();
    let late: Arc<Mutex<Latencies>> = Arc::default();
    let serve = |node: Node| {
        let late = Arc::clone(&late);
        tokio::spawn(node.serve(move |lateness| locked(&late).add(lateness)))
    };
    let mut serving: FuturesUnordered<_> = nodes.into_iter().map(serve).collect();
    let mut stdin = tokio::io::stdin();
    let mut nothing = [0];
    tokio::select! {
        Some(Ok(Err(fault))) = serving.next() => Err(cannot("go on as a node", &fault)),
        // The process that started this one is done or gone.
        _ = stdin.read(&mut nothing) => {
            let beats = Beats::of(interval, &locked(&late));
            serde_json::to_string(&beats).map_err(|error| cannot("write the heartbeats", &error))
        }
    }
}

fn locked(late: &Mutex<Latencies>) -> MutexGuard<'_, Latencies> {
    late.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The heartbeats of all nodes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Beats {
    /// How often each node sends a heartbeat.
    pub interval_seconds: f64,
    pub count: u64,
    /// From the time when a heartbeat was due until its response.
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

impl Beats {
    fn of(interval: Duration, late: &Latencies) -> Self {
        Self {
            interval_seconds: interval.as_secs_f64(),
            count: late.count(),
            p50_ms: late.ms(0.5),
            p99_ms: late.ms(0.99),
            max_ms: late.most_ms(),
        }
    }
}

/// A process of simulated nodes, seen from its parent. Dropping it ends the process.
#[derive(Debug)]
pub(super) struct Nodes {
    child: Child,
    id: u32,
    /// Open as long as the nodes are needed; waiting for the child would close it.
    stdin: Option<ChildStdin>,
}

impl Nodes {
    pub(super) fn start(address: &str, count: u32) -> Result<Self> {
        let mut child = Command::from(process::this_program()?)
            .args(["bench", "nodes", address, &count.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| cannot("start the nodes", &error))?;
        let id = child.id().ok_or_else(|| Failure::bug("the nodes' process has no id"))?;
        let stdin = child.stdin.take();
        Ok(Self { child, id, stdin })
    }

    /// Waits for an end that is not expected: the process has printed the reason to standard error.
    pub(super) async fn failed(&mut self) -> Failure {
        let status =
            self.child.wait().await.map_or_else(|error| error.to_string(), |status| status.to_string());
        Failure::new(Code::Unreachable, format!("the nodes' process ended: {status}"))
    }

    /// Ends the process, and returns the heartbeats of its nodes.
    pub(super) async fn leave(mut self) -> Result<Beats> {
        drop(self.stdin.take());
        let ended = tokio::time::timeout(LEAVE, self.child.wait_with_output()).await;
        let output = ended
            .map_err(|_| Failure::bug("the nodes' process does not end"))?
            .map_err(|error| cannot("wait for the nodes", &error))?;
        serde_json::from_slice(&output.stdout).map_err(|error| cannot("read the nodes' heartbeats", &error))
    }

    pub(super) fn id(&self) -> u32 {
        self.id
    }
}
