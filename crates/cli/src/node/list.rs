//! `node list`.

use clap::Args;
use downbeat_api::request;
use downbeat_client::Client;
use jiff::Timestamp;

use crate::exit::Result;
use crate::out::Out;
use crate::render::{no_nodes, node_table, shown_of};

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only nodes that are online, stale or offline
    #[arg(long, value_name = "STATUS")]
    status: Option<String>,
    /// Only nodes of this group
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// Only nodes that this selector matches, such as `group:web and not label:zone=b`
    #[arg(long, value_name = "SELECTOR")]
    selector: Option<String>,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Skip this many nodes
    #[arg(long, value_name = "N", default_value_t = 0)]
    offset: u64,
}

pub(super) async fn run(args: ListArgs, client: &Client, out: Out) -> Result {
    let is_filtered = args.status.is_some() || args.group.is_some() || args.selector.is_some();
    let request = request::cluster_nodes(client.cluster().unwrap_or("default"))
        .with("limit", args.limit)
        .with("offset", args.offset)
        .with_any("status", args.status)
        .with_any("group", args.group)
        .with_any("selector", args.selector);
    let nodes = client.ask(request).await?;
    out.result(&nodes, || match &nodes.data[..] {
        [] if is_filtered || args.offset > 0 => "no nodes match\n".to_owned(),
        [] => no_nodes(client.cluster()),
        nodes => node_table(nodes, Timestamp::now(), out.width()),
    })?;
    if nodes.pagination.has_more {
        let shown = shown_of(nodes.data.len(), nodes.pagination.total);
        out.note(&format!("{shown} nodes shown; --offset and --limit show others"));
    }
    Ok(())
}
