//! `run logs`: what a run's processes wrote.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use downbeat_api::{InstanceResult, Plan, Run, RunChunk};
use downbeat_core::ids::RunId;
use serde_json::json;
use tokio::time::sleep;

use super::lines::{Colour, Lines, Prefix};
use super::watch::detachable;
use super::{Which, part};
use crate::client::Client;
use crate::exit::{Code, Failure};
use crate::out::{Format, Out};

/// Between attempts to take up a stream again, and how many in a row.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
const MOST_RETRIES: u32 = 60;

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    run: Which,
    /// Only of this node, by hostname or id
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// Only of this step, by its number or its task's name
    #[arg(long, value_name = "STEP")]
    step: Option<String>,
    /// Only of the item with this number, from 0, of a task with `for_each`
    #[arg(long, value_name = "N")]
    item: Option<u32>,
    /// Go on as it is written, until the run has ended
    #[arg(short, long)]
    follow: bool,
}

pub(super) async fn run(args: LogsArgs, client: &Client, out: Out) -> Result<(), Failure> {
    let id = args.run.resolve(client).await?;
    if args.follow {
        return detachable(&id, out, logs(&args, &id, client, out)).await;
    }
    logs(&args, &id, client, out).await
}

async fn logs(args: &LogsArgs, id: &RunId, client: &Client, out: Out) -> Result<(), Failure> {
    let run: Run = client.get(&["runs", id.as_str()], &[]).await?;
    let mut query: Vec<(&str, String)> = Vec::new();
    if args.node.is_some() || args.step.is_some() || args.item.is_some() {
        let plan: Plan = client.get(&["runs", id.as_str(), "plan"], &[]).await?;
        if let Some(node) = &args.node {
            part::check_node(node, &run, &plan, client).await?;
            query.push(("node", node.clone()));
        }
        if let Some(step) = &args.step {
            query.push(("step", part::step(step, &plan)?.to_string()));
        }
        if let Some(item) = args.item {
            let step = args.step.as_deref().map(|step| part::step(step, &plan)).transpose()?;
            part::check_item(item, step, &run, &plan)?;
        }
    }
    query.extend(args.item.map(|item| ("item", item.to_string())));
    if args.follow {
        query.push(("follow", "1".to_owned()));
    }
    let lines = Lines::new(prefix(args, &run), if out.has_colour() { Colour::On } else { Colour::Off });
    let mut printer = match (out.format(), args.follow) {
        (Format::Table, _) => Printer::Lines,
        (Format::Json | Format::Yaml, true) => Printer::Items,
        (Format::Json | Format::Yaml, false) => Printer::Document(Vec::new()),
    };
    streamed(&["runs", id.as_str(), "output"], &query, lines, &mut printer, client, out).await?;
    match printer {
        Printer::Document(data) => out.result(&json!({ "data": data }), String::new),
        Printer::Lines | Printer::Items => Ok(()),
    }
}

/// What a line has to say of whose it is.
fn prefix(args: &LogsArgs, run: &Run) -> Prefix {
    let is_meant = |item: u32| args.item.is_none_or(|meant| meant == item);
    let has_items = |results: &&BTreeMap<String, InstanceResult>| {
        results.values().any(|result| result.item.is_some_and(is_meant))
    };
    match (run.results.values().filter(has_items).count(), args.item) {
        (0, _) if args.node.is_none() && part::hostnames(run).len() > 1 => Prefix::Node,
        (0, _) => Prefix::None,
        // One item of one task.
        (steps, Some(_)) if steps == 1 || args.step.is_some() => Prefix::None,
        _ => Prefix::Item,
    }
}

/// What becomes of a piece of output.
enum Printer {
    Lines,
    Items,
    Document(Vec<RunChunk>),
}

/// A connection that breaks is taken up again; what was printed before is known by its offsets.
async fn streamed(
    path: &[&str],
    query: &[(&str, String)],
    mut lines: Lines,
    printer: &mut Printer,
    client: &Client,
    out: Out,
) -> Result<(), Failure> {
    let mut failures = 0;
    let mut connected = false;
    loop {
        match client.feed(path, query, None).await {
            Err(failure) if failure.code == Code::Unreachable && connected && failures < MOST_RETRIES => {
                failures += 1;
            }
            Err(failure) => return Err(failure),
            Ok(mut feed) => {
                (connected, failures) = (true, 0);
                while let Ok(Some(message)) = feed.next().await {
                    if message.name == "end" {
                        let mut rest = lines.finish();
                        if lines.is_unfinished() && out.is_terminal() {
                            rest.push('\n');
                        }
                        return if matches!(printer, Printer::Lines) { out.raw(&rest) } else { Ok(()) };
                    }
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
            }
        }
        sleep(RETRY_PAUSE).await;
    }
}
