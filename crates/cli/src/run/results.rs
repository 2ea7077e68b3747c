//! `run results`: what became of each step on each node and for each item.

use clap::Args;
use downbeat_api::request;
use downbeat_client::Client;
use serde_json::json;

use super::{Which, part};
use crate::exit::Result;
use crate::out::Out;
use crate::render::result_table;

#[derive(Debug, Args)]
pub(crate) struct ResultsArgs {
    #[command(flatten)]
    run: Which,
    /// Only results of this step, by its number or its task's name
    #[arg(long, value_name = "STEP")]
    step: Option<String>,
    /// Only results with this status; several, comma-separated
    #[arg(long, value_name = "STATUS")]
    status: Option<String>,
    /// Only results of this node, by hostname or id
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// Only the result for the item with this number, from 0, of a task with `for_each`
    #[arg(long, value_name = "N")]
    item: Option<u32>,
}

pub(super) async fn run(args: ResultsArgs, client: &Client, out: Out) -> Result {
    let id = args.run.resolve(client).await?;
    let step = match &args.step {
        Some(step) => Some(part::step(step, &client.ask(request::run_plan(&id)).await?)?),
        None => None,
    };
    let request = request::run_results(&id)
        .with_any("step", step)
        .with_any("status", args.status)
        .with_any("node", args.node)
        .with_any("item", args.item);
    let results = client.all_results(request).await?;
    out.result(&json!({ "data": results }), || result_table(&results, out.width()))
}
