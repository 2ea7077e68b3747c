//! `cluster status`: totals, counts for each standing task and stuck nodes; with `--nodes` each task on each node.

use clap::Args;
use downbeat_api::request;
use downbeat_client::Client;
use serde_json::json;

use crate::exit::Result;
use crate::out::{Format, Out};
use crate::render::{StuckNodes, cluster_status_page, shown_of, walk_page};

/// How many stuck nodes the page names.
const STUCK_NAMED: u32 = 10;
/// The walk state of a node that a failed blocking task keeps from the rest.
const BLOCKED: &str = "blocked";

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
        downbeat cluster status default\n  \
        downbeat cluster status default --nodes --state blocked\n  \
        downbeat cluster status default --nodes --limit 100 --offset 100")]
pub(crate) struct StatusArgs {
    /// Name or id [default: the cluster of --cluster]
    name: Option<String>,
    /// Show every task on every node
    #[arg(long)]
    nodes: bool,
    /// With --nodes: only nodes that are complete, pending, running, failed or blocked; several, comma-separated
    #[arg(long, value_name = "STATE", requires = "nodes")]
    state: Option<String>,
    /// With --nodes: at most this many nodes
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100,
        requires = "nodes",
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    limit: u32,
    /// With --nodes: skip this many nodes
    #[arg(long, value_name = "N", default_value_t = 0, requires = "nodes")]
    offset: u64,
    /// With --nodes: all nodes, however many there are
    #[arg(long, requires = "nodes", conflicts_with_all = ["limit", "offset"])]
    all: bool,
}

pub(super) async fn run(args: StatusArgs, client: &Client, out: Out) -> Result {
    let name = args.name.clone();
    let name = name.as_deref().or(client.cluster()).unwrap_or("default");
    if args.nodes {
        return nodes(name, args, client, out).await;
    }
    let status = client.ask(request::cluster_status(name)).await?;
    let cluster = client.ask(request::cluster(name)).await?;
    let stuck = request::cluster_walks(name).with("state", BLOCKED).with("limit", STUCK_NAMED);
    let stuck = client.ask(stuck).await?;
    if out.format() != Format::Table {
        let mut document = json!(status);
        document["stuck"] = json!(stuck.data);
        return out.result(&document, String::new);
    }
    let total = stuck.pagination.total.unwrap_or(stuck.data.len() as u64);
    let stuck = StuckNodes { nodes: stuck.data, total };
    out.text(&cluster_status_page(&cluster, &status, &stuck, out.width()))
}

async fn nodes(name: &str, args: StatusArgs, client: &Client, out: Out) -> Result {
    let tasks = client.all_pages(request::cluster_tasks(name)).await?;
    let walks = request::cluster_walks(name).with_any("state", args.state);
    if args.all {
        let walks = client.all_pages(walks).await?;
        return out.result(&json!({ "data": walks }), || walk_page(&tasks, &walks, out.width()));
    }
    let walks = client.ask(walks.with("limit", args.limit).with("offset", args.offset)).await?;
    out.result(&walks, || walk_page(&tasks, &walks.data, out.width()))?;
    if walks.pagination.has_more {
        let shown = shown_of(walks.data.len(), walks.pagination.total);
        out.note(&format!("{shown} nodes shown; --limit and --offset show others, --all shows all"));
    }
    Ok(())
}
