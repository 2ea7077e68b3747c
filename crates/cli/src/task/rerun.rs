//! `task rerun`: for the operator who fixed what was broken.

use clap::{ArgGroup, Args};
use downbeat_api::request;
use downbeat_client::{Body, Client};
use serde_json::json;

use super::Which;
use crate::exit::Result;
use crate::out::Out;

#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("where").args(["node", "failed", "all"]).required(true),
    after_help = "After it, each node continues with the tasks that a failure kept it from."
)]
pub(crate) struct RerunArgs {
    #[command(flatten)]
    which: Which,
    /// On this node, by hostname or id; repeatable
    #[arg(long, value_name = "NODE")]
    node: Vec<String>,
    /// On all nodes where it failed or was lost
    #[arg(long)]
    failed: bool,
    /// On all nodes, also where it succeeded
    #[arg(long)]
    all: bool,
}

pub(super) async fn run(args: RerunArgs, client: &Client, out: Out) -> Result {
    let task = args.which.resolve(client).await?;
    let body = match (args.failed, args.all) {
        (true, _) => json!({"failed": true}),
        (_, true) => json!({"all": true}),
        (false, false) => json!({"nodes": args.node}),
    };
    let rerun = client.send(request::rerun_task(task.id), Body::Json(body.to_string()), None).await?;
    out.result(&rerun, || match rerun.nodes {
        0 if args.failed => format!("task {} failed on no node; nothing is done again", task.name),
        0 if args.all => format!("no node has begun task {} yet; nothing is done again", task.name),
        0 => format!("task {} does not apply to any of these nodes; nothing is done", task.name),
        1 => format!("1 node will do task {} again", task.name),
        nodes => format!("{nodes} nodes will do task {} again", task.name),
    })
}
