//! `task executions`.

use clap::Args;
use downbeat_api::request;
use downbeat_client::{Client, Start};
use jiff::Timestamp;

use super::Which;
use crate::exit::Result;
use crate::out::Out;
use crate::render::{attempt_table, shown_of};

#[derive(Debug, Args)]
pub(crate) struct ExecutionsArgs {
    #[command(flatten)]
    which: Which,
    /// Only executions with this status; several, comma-separated
    #[arg(long, value_name = "STATUS")]
    status: Option<String>,
    /// Only executions on this node, by hostname or id
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Skip this many
    #[arg(long, value_name = "N", default_value_t = 0)]
    offset: u64,
}

pub(super) async fn run(args: ExecutionsArgs, client: &Client, out: Out) -> Result {
    let task = args.which.find_any(client).await?;
    let node = match &args.node {
        Some(node) => Some(client.ask(request::node(node).with("cluster", &task.cluster)).await?.id),
        None => None,
    };
    let request = request::task_executions(task.id).with_any("status", args.status).with_any("node_id", node);
    let mut start = Start::Offset(args.offset);
    let mut executions = client.page(request.clone(), args.limit, &start).await?;
    // The server reads only so many executions for one page: those that match may come later.
    while executions.data.is_empty()
        && let Some(next) = start.next(&executions)
    {
        start = next;
        executions = client.page(request.clone(), args.limit, &start).await?;
    }
    out.result(&executions, || attempt_table(&executions.data, Timestamp::now(), out.width()))?;
    if executions.pagination.has_more {
        let shown = shown_of(executions.data.len(), executions.pagination.total);
        out.note(&format!("{shown} executions shown; --limit and --offset show others"));
    }
    Ok(())
}
