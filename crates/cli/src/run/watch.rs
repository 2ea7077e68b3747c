//! `run watch`, and what `job run --wait` and `--watch` do after the run was created.
//!
//! Ctrl-C ends the watching, never the run.

use downbeat_core::ids::RunId;
use downbeat_core::run::RunStatus;
use downbeat_server::http::view::{Plan, Run};
use jiff::Timestamp;

use super::Which;
use super::bars::Bars;
use super::follow::Follow;
use crate::client::Client;
use crate::exit::Failure;
use crate::out::{Format, Out};
use crate::render::{Rows, Story, run_line, run_page};

pub(super) async fn run(which: &Which, client: &Client, out: Out) -> Result<(), Failure> {
    let id = which.resolve(client).await?;
    // A server that is not there at all is no server that went away: said at once.
    let _: Run = client.get(&["runs", id.as_str()], &[]).await?;
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

/// Waits for a run without a word, then shows it; the exit code is its result.
pub(crate) async fn wait(id: RunId, client: &Client, out: Out) -> Result<(), Failure> {
    let waiting = async {
        let mut follow = Follow::new(client, id.clone(), out);
        loop {
            let run = follow.next().await?;
            if run.summary.state.is_terminal() {
                if out.format() == Format::Table {
                    let plan: Plan = client.get_patiently(&["runs", id.as_str(), "plan"], &[], out).await?;
                    out.text(&run_page(&run, &plan, Rows::Few, Timestamp::now(), out.width()))?;
                } else {
                    out.result(&run, String::new)?;
                }
                return ended(&run);
            }
        }
    };
    detachable(&id, out, waiting).await
}

/// The exit code that a run's end amounts to.
pub(crate) fn ended(run: &Run) -> Result<(), Failure> {
    match run.summary.status {
        RunStatus::Completed => Ok(()),
        RunStatus::Pending | RunStatus::Running | RunStatus::Failed | RunStatus::Cancelled => {
            Err(Failure::run_failed())
        }
    }
}

async fn detachable(
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
            Ok(())
        }
    }
}

/// For people: bars on a terminal, a line per step elsewhere, and the page at the end.
async fn shown(id: RunId, client: &Client, out: Out) -> Result<(), Failure> {
    let mut story = story(&id, client, out).await?;
    let mut follow = Follow::new(client, id, out);
    let mut bars = Bars::on_terminal(out, story.plan());
    loop {
        let run = follow.next().await?;
        let now = Timestamp::now();
        let tallies = story.tallies(&run);
        let mut news = story.news(&run);
        news.extend(story.waits(&run, now));
        match &mut bars {
            Some(bars) => {
                news.iter().for_each(|line| bars.say(line));
                bars.show(&tallies, &run);
            }
            None => {
                for line in news.into_iter().chain(story.ended(&tallies)) {
                    out.text(&line)?;
                }
            }
        }
        if run.summary.state.is_terminal() {
            drop(bars);
            if out.is_terminal() {
                out.text(&format!("\n{}", run_page(&run, story.plan(), Rows::Few, now, out.width())))?;
            } else {
                out.text(&run_line(&run.summary, now))?;
            }
            return ended(&run);
        }
    }
}

async fn story(id: &RunId, client: &Client, out: Out) -> Result<Story, Failure> {
    let plan: Plan = client.get_patiently(&["runs", id.as_str(), "plan"], &[], out).await?;
    let run: Run =
        client.get_patiently(&["runs", id.as_str()], &[("definition", "1".to_owned())], out).await?;
    let definition = run.definition.unwrap_or_default();
    let definition = serde_json::from_value(definition)
        .map_err(|error| Failure::bug(format!("cannot read the definition of run {id}: {error}")))?;
    Ok(Story::new(plan, &definition))
}

/// For programs: the run as a document each time that it has changed.
async fn listed(id: RunId, client: &Client, out: Out) -> Result<(), Failure> {
    let mut follow = Follow::new(client, id, out);
    let mut before: Option<Run> = None;
    loop {
        let run = follow.next().await?;
        if before.as_ref() != Some(&run) {
            out.item(&run, String::new)?;
        }
        if run.summary.state.is_terminal() {
            return ended(&run);
        }
        before = Some(run);
    }
}
