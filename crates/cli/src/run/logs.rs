//! `run logs`: the output of a run's processes.

use std::collections::BTreeSet;

use clap::Args;
use downbeat_api::request::Request;
use downbeat_api::{InstanceResult, Plan, RunChunk, request};
use downbeat_client::Client;
use downbeat_core::ids::RunId;
use downbeat_core::limits;
use serde_json::json;

use super::lines::{Colour, Lines, Prefix};
use super::watch::detachable;
use super::{Which, part};
use crate::exit::Result;
use crate::out::{Format, Out};

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    run: Which,
    /// Only output of this node, by hostname or id
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// Only output of this step, by its number or its task's name
    #[arg(long, value_name = "STEP")]
    step: Option<String>,
    /// Only output of the item with this number, from 0, of a task with `for_each`
    #[arg(long, value_name = "N")]
    item: Option<u32>,
    /// Continue with new output, until the run has ended
    #[arg(short, long)]
    follow: bool,
}

pub(super) async fn run(args: LogsArgs, client: &Client, out: Out) -> Result {
    let id = args.run.resolve(client).await?;
    if args.follow {
        return detachable(&id, out, logs(&args, &id, client, out)).await;
    }
    logs(&args, &id, client, out).await
}

async fn logs(args: &LogsArgs, id: &RunId, client: &Client, out: Out) -> Result {
    let run = client.ask(request::run(id)).await?;
    let plan = client.ask(request::run_plan(id)).await?;
    let mut request = request::run_output(id);
    if args.node.is_some() || args.step.is_some() || args.item.is_some() {
        if let Some(node) = &args.node {
            part::check_node(node, &run, &plan, client).await?;
            request = request.with("node", node);
        }
        if let Some(step) = &args.step {
            request = request.with("step", part::step(step, &plan)?);
        }
        if let Some(item) = args.item {
            let step = args.step.as_deref().map(|step| part::step(step, &plan)).transpose()?;
            part::check_item(item, step, &run, &plan)?;
        }
    }
    let request = request.with_any("item", args.item).with_any("follow", args.follow.then_some(1));
    // The first results show whether lines of several nodes or items come.
    let first = client.ask(request::run_results(id).with("limit", limits::PAGE_MOST)).await?.data;
    let lines =
        Lines::new(prefix(args, &first, &plan), if out.has_colour() { Colour::On } else { Colour::Off });
    let mut printer = match (out.format(), args.follow) {
        (Format::Table, _) => Printer::Lines,
        (Format::Json | Format::Yaml, true) => Printer::Items,
        (Format::Json | Format::Yaml, false) => Printer::Document(Vec::new()),
    };
    print_stream(request, lines, &mut printer, client, out).await?;
    match printer {
        Printer::Document(data) => out.result(&json!({ "data": data }), String::new),
        Printer::Lines | Printer::Items => Ok(()),
    }
}

/// Returns the prefix that tells the lines of this request apart.
fn prefix(args: &LogsArgs, results: &[InstanceResult], plan: &Plan) -> Prefix {
    let is_meant = |result: &&InstanceResult| {
        result.item.is_some_and(|item| args.item.is_none_or(|meant| meant == item))
    };
    let steps: BTreeSet<u32> = results.iter().filter(is_meant).map(|result| result.step).collect();
    let targets = plan.nodes.iter().map(|node| node.hostname.as_str());
    let nodes: BTreeSet<&str> =
        targets.chain(results.iter().filter_map(|result| result.node.as_deref())).collect();
    match (steps.len(), args.item) {
        (0, _) if args.node.is_none() && nodes.len() > 1 => Prefix::Node,
        (0, _) => Prefix::None,
        // One item of one task.
        (steps, Some(_)) if steps == 1 || args.step.is_some() => Prefix::None,
        _ => Prefix::Item,
    }
}

enum Printer {
    Lines,
    Items,
    Document(Vec<RunChunk>),
}

/// Prints a stream. A resumed stream starts from the beginning again: the offsets of the chunks show which were printed.
async fn print_stream(
    request: Request<RunChunk>,
    mut lines: Lines,
    printer: &mut Printer,
    client: &Client,
    out: Out,
) -> Result {
    let mut stream = client.stream(request);
    while let Some(message) = stream.next().await? {
        let chunk: RunChunk = message.decode()?;
        if !lines.is_new(&chunk) {
            continue;
        }
        let text = lines.push(&chunk);
        match printer {
            Printer::Lines => out.raw(&text)?,
            Printer::Items => out.item(&chunk, String::new)?,
            Printer::Document(data) => data.push(chunk),
        }
    }
    let mut rest = lines.finish();
    if lines.is_unfinished() && out.is_terminal() {
        rest.push('\n');
    }
    if matches!(printer, Printer::Lines) { out.raw(&rest) } else { Ok(()) }
}
