//! `task logs`: the output of a standing task on a node.

use clap::Args;
use downbeat_api::{Chunk, Execution, RunChunk, request};
use downbeat_client::Client;
use downbeat_core::shown::{escaped, shown};
use serde_json::json;

use super::Which;
use crate::exit::{Failure, Result};
use crate::out::{Format, Out};
use crate::run::{Colour, Lines, Prefix};

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    which: Which,
    /// The node, by hostname or id
    #[arg(long, value_name = "NODE")]
    node: String,
    /// This attempt, from 1; by default the last
    #[arg(long, value_name = "N")]
    attempt: Option<u32>,
    /// Continue with new output, until the task has ended
    #[arg(short, long)]
    follow: bool,
}

pub(super) async fn run(args: LogsArgs, client: &Client, out: Out) -> Result {
    let task = args.which.find_any(client).await?;
    let node = client.ask(request::node(&args.node).with("cluster", &task.cluster)).await?;
    let executions = request::task_executions(task.id).with("node_id", node.id);
    let mut executions = client.all_pages(executions).await?;
    executions.sort_by_key(|execution| execution.attempt);
    let last = executions.last().map(|execution| execution.attempt);
    let found = match args.attempt {
        Some(attempt) => executions.into_iter().find(|execution| execution.attempt == attempt),
        None => executions.pop(),
    };
    let (name, host) = (shown(&task.name), shown(&node.hostname));
    let execution = found.ok_or_else(|| {
        Failure::not_found(match (args.attempt, last) {
            (Some(attempt), Some(last)) => {
                format!("attempt {attempt} at task {name} on node {host} is not kept; the last one is {last}")
            }
            _ => format!("node {host} has not started task {name} yet"),
        })
    })?;
    print(&execution, args.follow, client, out).await
}

async fn print(execution: &Execution, follow: bool, client: &Client, out: Out) -> Result {
    let colour = if out.has_colour() { Colour::On } else { Colour::Off };
    let mut lines = Lines::new(Prefix::None, colour);
    let mut chunks = Vec::new();
    let request = request::output(execution.id).with("follow", u32::from(follow));
    if follow {
        let mut stream = client.stream(request);
        while let Some(message) = stream.next().await? {
            let chunk = of_execution(execution, message.decode()?);
            if !lines.is_new(&chunk) {
                continue;
            }
            let text = lines.push(&chunk);
            match out.format() {
                Format::Table => out.raw(&text)?,
                Format::Json | Format::Yaml => out.item(&chunk.chunk, String::new)?,
            }
        }
    } else {
        let mut offset = 0;
        loop {
            let output = client.ask(request.clone().with("offset", offset)).await?;
            for chunk in output.chunks {
                let chunk = of_execution(execution, chunk);
                let text = lines.push(&chunk);
                match out.format() {
                    Format::Table => out.raw(&text)?,
                    Format::Json | Format::Yaml => chunks.push(chunk.chunk),
                }
            }
            if output.complete || output.next <= offset {
                break;
            }
            offset = output.next;
        }
    }
    if out.format() != Format::Table {
        return if follow {
            Ok(())
        } else {
            out.result(&json!({"execution": execution, "data": chunks}), String::new)
        };
    }
    let mut rest = lines.finish();
    if lines.is_unfinished() && out.is_terminal() {
        rest.push('\n');
    }
    out.raw(&rest)?;
    if let Some(why) = why_unsuccessful(execution).filter(|_| !follow) {
        out.note(&escaped(&why));
    }
    Ok(())
}

/// Returns how and why an attempt ended without success: it may have no output that says so.
fn why_unsuccessful(execution: &Execution) -> Option<String> {
    let Execution { attempt, status, .. } = execution;
    let why = execution.error.as_ref().or(execution.reason.as_ref())?;
    Some(format!("attempt {attempt} is {status}: {why}"))
}

/// Lines know their execution. The attempt is left out: this is the output of only one.
fn of_execution(execution: &Execution, chunk: Chunk) -> RunChunk {
    RunChunk {
        execution: execution.id,
        step: execution.step,
        task: execution.task.clone(),
        item: None,
        node: execution.node.clone().unwrap_or_default(),
        attempt: 1,
        chunk,
    }
}
