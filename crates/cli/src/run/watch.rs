//! `run watch`, and the second half of `job run --wait` and `--watch`, after the run is created.
//!
//! Ctrl-C stops the watching, never the run.

use clap::Args;
use downbeat_api::{Run, RunSummary, request};
use downbeat_client::Client;
use downbeat_core::ids::RunId;
use downbeat_core::run::RunStatus;
use jiff::Timestamp;

use super::bars::Bars;
use super::follow::Follow;
use super::{Which, one};
use crate::exit::{Failure, Result};
use crate::out::{Format, Out};
use crate::render::{Rows, Waits, WatchLines, absences, run_line, run_page, started_line};

pub(super) async fn run(which: &Which, client: &Client, out: Out) -> Result {
    let id = which.resolve(client).await?;
    // Fails at once if no server responds: the stream below would wait for a server that went away.
    client.ask(request::runs().with("limit", 1)).await?;
    watch(id, client, out).await
}

/// Whether a command that creates a run follows it.
#[derive(Clone, Debug, Args)]
pub(crate) struct Following {
    /// Wait for the end, then show the run; the exit code is the run's result
    #[arg(long, conflicts_with = "watch")]
    pub(crate) wait: bool,

    /// Show the progress until the end; the exit code is the run's result
    #[arg(long)]
    pub(crate) watch: bool,

    /// A repeated request with the same key returns the first run
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

impl Following {
    /// Returns the key of the request. With its own key the client can repeat the request after a broken connection.
    pub(crate) fn key(&self) -> String {
        self.idempotency_key.clone().unwrap_or_else(|| uuid::Uuid::new_v4().to_string())
    }

    /// Prints the created run, or follows it to its end.
    pub(crate) async fn follow(&self, run: &Run, client: &Client, out: Out) -> Result {
        absences(run).iter().for_each(|absence| out.note(absence));
        let id = run.summary.id.clone();
        if self.watch {
            watch(id, client, out).await
        } else if self.wait {
            wait(id, client, out).await
        } else {
            out.result(run, || started_line(&run.summary))
        }
    }
}

/// Returns a client that waits for the server of a run that exists.
fn waiting(client: &Client, out: Out) -> Client {
    client.waiting(move |base| out.note(&format!("{base} does not respond; waiting for it")))
}

/// Shows a run until it ends; the exit code is its result.
async fn watch(id: RunId, client: &Client, out: Out) -> Result {
    let client = &waiting(client, out);
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
async fn wait(id: RunId, client: &Client, out: Out) -> Result {
    let client = &waiting(client, out);
    let waiting = async {
        let mut follow = Follow::new(client, &id).await?;
        let mut waits = Waits::patient();
        follow
            .until_end(|progress| {
                waits.changes(progress, Timestamp::now()).iter().for_each(|line| out.note(line));
            })
            .await?;
        if out.format() == Format::Table {
            let whole = one::read(&id, Rows::Few, client).await?;
            out.text(&run_page(&whole, follow.plan(), Rows::Few, Timestamp::now(), out.width()))?;
            return ended(&whole.run.summary);
        }
        let run = client.ask(request::run(&id)).await?;
        out.result(&run, String::new)?;
        ended(&run.summary)
    };
    detachable(&id, out, waiting).await
}

/// Returns the exit code for the status of an ended run.
fn ended(run: &RunSummary) -> Result {
    match run.status {
        RunStatus::Completed => Ok(()),
        RunStatus::Pending | RunStatus::Running | RunStatus::Failed | RunStatus::Cancelled => {
            Err(Failure::run_failed())
        }
    }
}

/// Runs `work` until it is done or Ctrl-C. After Ctrl-C the run continues, and the exit code shows that its result is
/// unknown.
pub(super) async fn detachable(id: &RunId, out: Out, work: impl Future<Output = Result>) -> Result {
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
async fn show_progress(id: RunId, client: &Client, out: Out) -> Result {
    let mut follow = Follow::new(client, &id).await?;
    let mut lines = WatchLines::new(follow.plan().clone());
    let mut bars = Bars::on_terminal(out, lines.plan());
    loop {
        let progress = follow.next_progress().await?;
        let now = Timestamp::now();
        let steps = progress.steps();
        let changes = lines.changes(&progress, now);
        match &mut bars {
            Some(bars) => {
                changes.iter().for_each(|line| bars.print_above(line));
                bars.show(steps, &progress.summary);
            }
            None => {
                for line in changes.into_iter().chain(lines.ended(steps)) {
                    out.text(&line)?;
                }
            }
        }
        if progress.summary.state.is_terminal() {
            drop(bars);
            if out.is_terminal() {
                let whole = one::read(&id, Rows::Few, client).await?;
                out.text(&format!("\n{}", run_page(&whole, follow.plan(), Rows::Few, now, out.width())))?;
            } else {
                out.text(&run_line(&progress.summary, now))?;
            }
            return ended(&progress.summary);
        }
    }
}

/// Prints the run as a document each time it changes, for programs.
async fn print_documents(id: RunId, client: &Client, out: Out) -> Result {
    let mut follow = Follow::new(client, &id).await?;
    let mut before: Option<Run> = None;
    loop {
        let run = follow.next_progress().await?;
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
    for node in run.waiting.iter_mut().flat_map(|step| &mut step.nodes) {
        if let Some(cause) = &node.cause {
            node.reason.clone_from(cause);
        }
    }
    run
}
