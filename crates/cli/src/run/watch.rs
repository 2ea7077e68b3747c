//! `run watch`, and what `job run --wait` and `--watch` do after the run was created.
//!
//! Ctrl-C ends the watching, never the run.

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
use crate::render::{Rows, Story, Waits, run_line, run_page};

pub(super) async fn run(which: &Which, client: &Client, out: Out) -> Result<(), Failure> {
    let id = which.resolve(client).await?;
    // A server that is not there at all is no server that went away: said at once.
    client.ask(request::runs().with("limit", 1)).await?;
    watch(id, client, out).await
}

/// Shows a run until it ends; the exit code is its result.
pub(crate) async fn watch(id: RunId, client: &Client, out: Out) -> Result<(), Failure> {
    let watching = async {
        if out.format() == Format::Table {
            shown(id.clone(), client, out).await
        } else {
            listed(id.clone(), client, out).await
        }
    };
    detachable(&id, out, watching).await
}

/// Waits for a run, then shows it; the exit code is its result. Says on standard error what it waits for.
pub(crate) async fn wait(id: RunId, client: &Client, out: Out) -> Result<(), Failure> {
    let waiting = async {
        let mut follow = Follow::new(client, &id, out).await?;
        let mut waits = Waits::patient();
        follow
            .until_end(|standing| {
                waits.news(standing, Timestamp::now()).iter().for_each(|line| out.note(line));
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

/// The exit code that a run's end amounts to.
fn ended(run: &RunSummary) -> Result<(), Failure> {
    match run.status {
        RunStatus::Completed => Ok(()),
        RunStatus::Pending | RunStatus::Running | RunStatus::Failed | RunStatus::Cancelled => {
            Err(Failure::run_failed())
        }
    }
}

/// Until it is done, or until Ctrl-C: then the run goes on, and the exit code says that nobody waited for its end.
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
            out.note(&format!("{line_end}the run goes on; `downbeat run watch {id}`"));
            Err(Failure::interrupted())
        }
    }
}

/// For people: bars on a terminal, a line per step elsewhere, and the page at the end.
async fn shown(id: RunId, client: &Client, out: Out) -> Result<(), Failure> {
    let mut follow = Follow::new(client, &id, out).await?;
    let mut story = Story::new(follow.plan().clone());
    let mut bars = Bars::on_terminal(out, story.plan());
    loop {
        let standing = follow.next_standing().await?;
        let now = Timestamp::now();
        let tallies = story.tallies(&standing);
        let news = story.news(&standing, now);
        match &mut bars {
            Some(bars) => {
                news.iter().for_each(|line| bars.say(line));
                bars.show(&tallies, &standing.summary);
            }
            None => {
                for line in news.into_iter().chain(story.ended(&tallies)) {
                    out.text(&line)?;
                }
            }
        }
        if standing.summary.state.is_terminal() {
            drop(bars);
            if out.is_terminal() {
                let (run, plan) = follow.at_end().await?;
                out.text(&format!("\n{}", run_page(run, plan, Rows::Few, now, out.width())))?;
            } else {
                out.text(&run_line(&standing.summary, now))?;
            }
            return ended(&standing.summary);
        }
    }
}

/// For programs: the run as a document each time that it has changed.
async fn listed(id: RunId, client: &Client, out: Out) -> Result<(), Failure> {
    let mut follow = Follow::new(client, &id, out).await?;
    let mut before: Option<Run> = None;
    loop {
        let run = follow.next_run().await?;
        let lasting = without_times(run.clone());
        if before.as_ref() != Some(&lasting) {
            out.item(&run, String::new)?;
        }
        if run.summary.state.is_terminal() {
            return ended(&run.summary);
        }
        before = Some(lasting);
    }
}

/// How long a node has been silent changes every second, and is no news.
fn without_times(mut run: Run) -> Run {
    run.results.values_mut().flat_map(BTreeMap::values_mut).for_each(|result| result.waits = None);
    for node in run.waiting.iter_mut().flat_map(|step| &mut step.nodes) {
        if let Some(cause) = &node.cause {
            node.reason.clone_from(cause);
        }
    }
    run
}
