//! `run watch`, and the second half of `job run --wait` and `--watch`, after the run is created.
//!
//! Ctrl-C stops the watching, never the run.

use std::collections::BTreeMap;

use downbeat_api::{Run, RunSummary, request};
use downbeat_client::Client;
use downbeat_core::ids::RunId;
use downbeat_core::run::RunStatus;
use jiff::Timestamp;

use super::Which;
use super::bars::Bars;
use super::follow::Follow;
use crate::exit::Failure;
use crate::out::{Format, Out};
use crate::render::{Rows, Waits, WatchLines, run_line, run_page};

pub(super) async fn run(which: &Which, client: &Client, out: Out) -> Result<(), Failure> {
    let id = which.resolve(client).await?;
    // Fails at once if no server responds: the stream below would wait for a server that went away.
    client.ask(request::runs().with("limit", 1)).await?;
    watch(id, client, out).await
}

/// Shows a run until it ends; the exit code is its result.
pub(crate) async fn watch(id: RunId, client: &Client, out: Out) -> Result<(), Failure> {
    let watching = async {
        if out.format() == Format::Table {
            show_progress(id.clone(), client, out).await
        } else {
            print_documents(id.clone(), client, out).await
        }
    };
    detachable(&id, out, watching).await
}

/// Waits for a run, then shows it; the exit code is its result. Prints to standard error what the run waits for.
pub(crate) async fn wait(id: RunId, client: &Client, out: Out) -> Result<(), Failure> {
    let waiting = async {
        let mut follow = Follow::new(client, &id, out).await?;
        let mut waits = Waits::patient();
        follow
            .until_end(|progress| {
                waits.changes(progress, Timestamp::now()).iter().for_each(|line| out.note(line));
            })
            .await?;
        let (run, plan) = follow.at_end().await?;
        if out.format() == Format::Table {
            out.text(&run_page(run, plan, Rows::Few, Timestamp::now(), out.width()))?;
        } else {
            out.result(run, String::new)?;
        }
        ended(&run.summary)
    };
    detachable(&id, out, waiting).await
}

/// Returns the exit code for the status of an ended run.
fn ended(run: &RunSummary) -> Result<(), Failure> {
    match run.status {
        RunStatus::Completed => Ok(()),
        RunStatus::Pending | RunStatus::Running | RunStatus::Failed | RunStatus::Cancelled => {
            Err(Failure::run_failed())
        }
    }
}

/// Runs `work` until it is done or Ctrl-C. After Ctrl-C the run continues, and the exit code shows that its result is
/// unknown.
pub(super) async fn detachable(
    id: &RunId,
    out: Out,
    work: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    tokio::select! {
        result = work => result,
        _ = tokio::signal::ctrl_c() => {
            // The terminal has just echoed ^C.
            let line_end = if out.is_terminal() { "\n" } else { "" };
            out.note(&format!("{line_end}the run continues; `downbeat run watch {id}` follows it"));
            Err(Failure::interrupted())
        }
    }
}

/// Shows the run to a user: bars on a terminal, otherwise a line per step, and the page at the end.
async fn show_progress(id: RunId, client: &Client, out: Out) -> Result<(), Failure> {
    let mut follow = Follow::new(client, &id, out).await?;
    let mut lines = WatchLines::new(follow.plan().clone());
    let mut bars = Bars::on_terminal(out, lines.plan());
    loop {
        let progress = follow.next_progress().await?;
        let now = Timestamp::now();
        let tallies = lines.tallies(&progress);
        let changes = lines.changes(&progress, now);
        match &mut bars {
            Some(bars) => {
                changes.iter().for_each(|line| bars.print_above(line));
                bars.show(&tallies, &progress.summary);
            }
            None => {
                for line in changes.into_iter().chain(lines.ended(&tallies)) {
                    out.text(&line)?;
                }
            }
        }
        if progress.summary.state.is_terminal() {
            drop(bars);
            if out.is_terminal() {
                let (run, plan) = follow.at_end().await?;
                out.text(&format!("\n{}", run_page(run, plan, Rows::Few, now, out.width())))?;
            } else {
                out.text(&run_line(&progress.summary, now))?;
            }
            return ended(&progress.summary);
        }
    }
}

/// Prints the run as a document each time it changes, for programs.
async fn print_documents(id: RunId, client: &Client, out: Out) -> Result<(), Failure> {
    let mut follow = Follow::new(client, &id, out).await?;
    let mut before: Option<Run> = None;
    loop {
        let run = follow.next_run().await?;
        let comparable = without_times(run.clone());
        if before.as_ref() != Some(&comparable) {
            out.item(&run, String::new)?;
        }
        if run.summary.state.is_terminal() {
            return ended(&run.summary);
        }
        before = Some(comparable);
    }
}

/// Removes how long each node has been silent: it changes every second.
fn without_times(mut run: Run) -> Run {
    run.results.values_mut().flat_map(BTreeMap::values_mut).for_each(|result| result.waits = None);
    for node in run.waiting.iter_mut().flat_map(|step| &mut step.nodes) {
        if let Some(cause) = &node.cause {
            node.reason.clone_from(cause);
        }
    }
    run
}
