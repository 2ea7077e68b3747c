//! Owns the process of the simulated nodes. It is separate from the server and from the measuring process, so that each
//! one's CPU time is known.

use std::process::Stdio;

use clap::Args;
use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStdin, Command};

use super::node::Node;
use super::process;
use super::server::cannot;
use crate::failure::{Code, Failure};

/// Nodes that register at the same time: the listener's queue is short.
const JOINING: usize = 256;

/// Run simulated nodes in this process while standard input is open
#[derive(Debug, Args)]
pub(crate) struct NodesArgs {
    /// Address where the server listens for agents: HOST:PORT
    address: String,
    /// Nodes, each with its own connection and session
    count: u32,
}

/// Runs the process.
pub(super) async fn serve(args: NodesArgs) -> Result<(), Failure> {
    process::make_room_for(args.count)?;
    let nodes: Vec<Node> = stream::iter(0..args.count)
        .map(|index| Node::join(&args.address, format!("sim-{index:05}")))
        .buffer_unordered(JOINING)
        .try_collect()
        .await
        .map_err(|fault| cannot("join", &fault))?;
    let mut serving: FuturesUnordered<_> = nodes.into_iter().map(|node| tokio::spawn(node.serve())).collect();
    let mut stdin = tokio::io::stdin();
    let mut nothing = [0];
    tokio::select! {
        Some(Ok(Err(fault))) = serving.next() => Err(cannot("continue as a node", &fault)),
        // The parent process has finished or ended.
        _ = stdin.read(&mut nothing) => Ok(()),
    }
}

/// The parent's handle of the process, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Nodes {
    child: Child,
    id: u32,
    /// Kept open while the nodes are needed; waiting for the child would close it.
    _stdin: Option<ChildStdin>,
}

impl Nodes {
    pub(super) fn start(address: &str, count: u32) -> Result<Self, Failure> {
        let program = std::env::current_exe().map_err(|error| cannot("find this program", &error))?;
        let mut child = Command::new(program)
            .args(["bench", "nodes", address, &count.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| cannot("start the nodes", &error))?;
        let id = child.id().ok_or_else(|| Failure::bug("the nodes' process has no id"))?;
        let stdin = child.stdin.take();
        Ok(Self { child, id, _stdin: stdin })
    }

    /// Waits for the process to end, which only happens on failure; the cause is on its standard error.
    pub(super) async fn failed(&mut self) -> Failure {
        let status =
            self.child.wait().await.map_or_else(|error| error.to_string(), |status| status.to_string());
        Failure::new(Code::Unreachable, format!("the nodes' process ended: {status}"))
    }

    pub(super) fn id(&self) -> u32 {
        self.id
    }
}
