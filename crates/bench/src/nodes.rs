//! Owns the process of the simulated nodes. It is neither the server nor the process that measures, so that the CPU time
//! of each is known.

use std::process::Stdio;

use clap::Args;
use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStdin, Command};

use super::node::Node;
use super::process;
use super::server::cannot;
use crate::failure::{Code, Failure, Result};

/// Nodes that join at the same time: the listener's queue is short.
const JOINING: usize = 256;

/// Run simulated nodes in this process, as long as standard input is open
#[derive(Debug, Args)]
pub(crate) struct NodesArgs {
    /// Address of the server for agents: HOST:PORT
    address: String,
    /// Number of nodes, each with its own connection and session
    count: u32,
}
pub(super) async fn serve(args: NodesArgs) -> Result<()> {
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
        Some(Ok(Err(fault))) = serving.next() => Err(cannot("go on as a node", &fault)),
        // The process that started this one is done or gone.
        _ = stdin.read(&mut nothing) => Ok(()),
    }
}

/// A process of simulated nodes, seen from its parent. Dropping it ends the process.
#[derive(Debug)]
pub(super) struct Nodes {
    child: Child,
    id: u32,
    /// Open as long as the nodes are needed; waiting for the child would close it.
    _stdin: Option<ChildStdin>,
}

impl Nodes {
    pub(super) fn start(address: &str, count: u32) -> Result<Self> {
        let mut child = Command::from(process::this_program()?)
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

    /// Waits for an end that is not expected: the process has printed the reason to standard error.
    pub(super) async fn failed(&mut self) -> Failure {
        let status =
            self.child.wait().await.map_or_else(|error| error.to_string(), |status| status.to_string());
        Failure::new(Code::Unreachable, format!("the nodes' process ended: {status}"))
    }

    pub(super) fn id(&self) -> u32 {
        self.id
    }
}
