//! `debug`: runs a command on a node, or on each node of a selector, and shows its output while it runs.
//!
//! Ctrl-C cancels the command.

mod output;
mod quote;

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use downbeat_api::{ClusterDebugRequest, DebugRequest, InstanceResult, request};
use downbeat_client::{Body, Client};
use downbeat_core::Span;
use downbeat_core::execution::Status;
use downbeat_core::ids::RunId;
use downbeat_core::shown::escaped;
use serde::Serialize;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;

use self::output::Shown;
use crate::exit::{Code, Failure, Result};
use crate::out::{Format, Out};
use crate::render::{counts, plural};

/// When to look whether the command waits for a node: first after this time, then after twice as long, and so on.
const FIRST_GLANCE: Duration = Duration::from_secs(3);
const LONGEST_GLANCE: Duration = Duration::from_secs(30);
/// The nodes that are named while the command waits for them.
const NODES_NAMED: u32 = 5;

#[derive(Debug, Args)]
#[command(
    override_usage = "downbeat debug [OPTIONS] NODE -- COMMAND...\n       \
                      downbeat debug [OPTIONS] --selector SELECTOR -- COMMAND...",
    after_help = "The command runs besides the other work of the node, also on a node that is drained. Agents need \
                  --allow exec.\n\n\
                  With NODE, the exit code is that of the command; 1 if it did not exit by itself. With --selector, \
                  it is 0 if the command succeeded on all nodes, otherwise 1. Ctrl-C cancels the command.\n\n\
                  Examples:\n  \
                  downbeat debug web-01 -- uname -a\n  \
                  downbeat debug web-01 --timeout 30s -- 'ps aux | grep nginx'\n  \
                  downbeat debug --selector group:web -- df -h /"
)]
pub(crate) struct DebugArgs {
    /// Hostname or id
    #[arg(required_unless_present = "selector")]
    node: Option<String>,
    /// Each node that a job with this target would run on: 'group:web and not node:web-09', or all
    #[arg(long, value_name = "SELECTOR", conflicts_with = "node")]
    selector: Option<String>,
    /// How long the command may run, from 1s to 24h [default: 5m]
    #[arg(long, value_name = "DURATION")]
    timeout: Option<Span>,
    /// After `--`: a line for the node's shell, or a program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub(crate) async fn run(args: DebugArgs, client: &Client, out: Out) -> Result {
    let command = quote::command(&args.command);
    if command.trim().is_empty() {
        return Err(Failure::bad_input("the command is empty; write it after `--`, such as `-- uname -a`"));
    }
    let mut interrupts = signal(SignalKind::interrupt())
        .map_err(|error| Failure::bug(format!("cannot handle Ctrl-C: {error}")))?;
    let id = tokio::select! {
        started = start(&args, command, client) => started?,
        _ = interrupts.recv() => return Err(Failure::interrupted()),
    };
    let client = client.waiting(move |base| out.note(&format!("{base} does not respond; waiting for it")));
    let shown = Shown::new(if args.selector.is_some() { output::Nodes::Many } else { output::Nodes::One });
    let following = follow(&id, shown, &client, out);
    let is_interrupted = cancellable(&id, &mut interrupts, following, &client, out).await?;
    let results = client.all_results(request::run_results(&id)).await?;
    if out.format() != Format::Table {
        print_document(&id, &client, out).await?;
    }
    match &args.node {
        _ if is_interrupted => Err(Failure::interrupted()),
        Some(_) => end_of_one(&results, out),
        None => end_of_many(&results, out),
    }
}

/// Starts the command. Returns its id.
async fn start(args: &DebugArgs, command: String, client: &Client) -> Result<RunId> {
    // With a key the client can repeat the request after a broken connection.
    let key = uuid::Uuid::new_v4().to_string();
    let timeout = args.timeout;
    Ok(match (&args.node, &args.selector) {
        (_, Some(selector)) => {
            let selector = selector.clone();
            let body = ClusterDebugRequest { selector, command, timeout_seconds: None, timeout };
            let request = request::debug_cluster(client.cluster().unwrap_or("default"));
            client.send(request, body_of(&body)?, Some(&key)).await?.id
        }
        (node, None) => {
            let body = DebugRequest { command, timeout_seconds: None, timeout };
            let node = node.clone().unwrap_or_default();
            let request = request::debug_node(node).with_any("cluster", client.cluster());
            client.send(request, body_of(&body)?, Some(&key)).await?.id
        }
    })
}

fn body_of(body: &impl Serialize) -> Result<Body> {
    let text = serde_json::to_string(body);
    text.map(Body::Json).map_err(|error| Failure::bug(format!("cannot write the request: {error}")))
}

/// Waits until the command has ended. Ctrl-C cancels it; a second one no longer waits. Returns whether it was cancelled.
async fn cancellable(
    id: &RunId,
    interrupts: &mut Signal,
    following: impl Future<Output = Result>,
    client: &Client,
    out: Out,
) -> Result<bool> {
    let mut following = std::pin::pin!(following);
    tokio::select! {
        result = &mut following => return result.map(|()| false),
        _ = interrupts.recv() => {}
    }
    // The terminal has just echoed ^C.
    let line_end = if out.is_terminal() { "\n" } else { "" };
    out.note(&format!("{line_end}cancelling the command; Ctrl-C again does not wait for its end"));
    let ended = async {
        match client.send(request::cancel_debug(id), Body::Empty, None).await {
            Ok(_) => {}
            // It has just ended.
            Err(error) if error.status() == Some(409) => {}
            Err(error) => return Err(Failure::from(error)),
        }
        following.await
    };
    tokio::select! {
        result = ended => result.map(|()| true),
        _ = interrupts.recv() => Err(Failure::interrupted()),
    }
}

/// Prints the output of the command until it has ended, and the nodes that it waits for.
async fn follow(id: &RunId, mut shown: Shown, client: &Client, out: Out) -> Result {
    let printing = async {
        let mut stream = client.stream(request::run_output(id).with("follow", 1));
        while let Some(message) = stream.next().await? {
            let chunk = message.decode()?;
            if out.format() == Format::Table {
                shown.print(&chunk, out)?;
            }
        }
        shown.finish(out)
    };
    tokio::select! {
        result = printing => result,
        result = glance(id, client, out) => result,
    }
}

/// Prints which nodes the command waits for, at growing intervals. It never returns, unless the server refuses to respond.
async fn glance(id: &RunId, client: &Client, out: Out) -> Result {
    let mut pause = FIRST_GLANCE;
    let mut before: BTreeMap<String, String> = BTreeMap::new();
    loop {
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_GLANCE);
        let request = request::run_results(id).with("status", Status::Pending).with("limit", NODES_NAMED);
        let pending = client.ask(request).await?.data;
        let waits: BTreeMap<String, String> =
            pending.into_iter().filter_map(|result| Some((result.node?, result.waits?))).collect();
        for (node, wait) in &waits {
            if before.get(node) != Some(wait) {
                out.note(&escaped(&format!("{node}: {wait}")));
            }
        }
        before = waits;
    }
}

/// Returns why the command did not succeed on a node.
fn why(result: &InstanceResult) -> String {
    let why = result.error.as_ref().or(result.reason.as_ref());
    why.cloned().unwrap_or_else(|| result.status.to_string())
}

/// Returns `web-01: why`. Nodes choose their names.
fn line(result: &InstanceResult) -> String {
    escaped(&format!("{}: {}", result.node.as_deref().unwrap_or_default(), why(result))).into()
}

/// Returns the exit code of the command, if it exited by itself.
fn end_of_one(results: &[InstanceResult], out: Out) -> Result {
    let Some(result) = results.first() else {
        return Err(Failure::new(Code::RunFailed, "the command was removed before its end was read"));
    };
    match (result.status, result.exit_code) {
        (Status::Succeeded, _) => Ok(()),
        (Status::Failed, Some(code)) if exited_by_itself(result, code) => Err(Failure::exited(code)),
        _ => {
            out.note(&line(result));
            Err(Failure::run_failed())
        }
    }
}

/// Returns whether the process itself chose its exit code. One that was ended at its timeout has a code, too.
fn exited_by_itself(result: &InstanceResult, code: i32) -> bool {
    result.error.as_deref().is_none_or(|error| error == format!("exited with code {code}"))
}

fn end_of_many(results: &[InstanceResult], out: Out) -> Result {
    let mut by_status: BTreeMap<Status, u64> = BTreeMap::new();
    for result in results {
        *by_status.entry(result.status).or_default() += 1;
        if result.status != Status::Succeeded {
            out.note(&line(result));
        }
    }
    let by_status: Vec<(u64, &str)> =
        by_status.iter().map(|(status, count)| (*count, status.as_str())).collect();
    out.note(&format!("{}: {}", plural(results.len() as u64, "node"), counts(&by_status)));
    let all = results.iter().all(|result| result.status == Status::Succeeded);
    if all { Ok(()) } else { Err(Failure::run_failed()) }
}

/// Prints the command with all its results, for programs.
async fn print_document(id: &RunId, client: &Client, out: Out) -> Result {
    let mut all = client.ask(request::debug(id)).await?;
    while let Some(next) = all.results.pagination.next.take() {
        let more = client.ask(request::debug(id).with("cursor", next)).await?.results;
        all.results.data.extend(more.data);
        all.results.pagination.next = more.pagination.next;
    }
    all.results.pagination.has_more = false;
    out.result(&all, String::new)
}
