//! `job backfill`: runs a stored job for the times of its schedules in a range of the past.

use std::time::Duration;

use clap::{Args, Subcommand};
use downbeat_api::{Backfill, request};
use downbeat_client::{Body, Client};
use jiff::Timestamp;
use serde_json::json;

use super::stored::Which;
use crate::exit::{Failure, Result};
use crate::out::Out;
use crate::render::{backfill_page, backfill_plan, backfill_progress, backfill_table};
use crate::schedule::time;

/// How often `--wait` asks for the progress.
const EVERY: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Examples:\n  \
        downbeat job backfill report --from 2026-03-01T00:00:00Z --to 2026-03-08T00:00:00Z --dry-run\n  \
        downbeat job backfill report --from 2026-03-01T00:00:00Z --to 2026-03-08T00:00:00Z --parallel 4 --wait"
)]
pub(crate) struct BackfillArgs {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Name of the job
    #[arg(required = true)]
    name: Option<String>,
    /// First time of the range, such as 2026-03-28T00:00:00Z
    #[arg(long, value_name = "TIME", value_parser = time, required = true)]
    from: Option<Timestamp>,
    /// The range ends before this time
    #[arg(long, value_name = "TIME", value_parser = time, required = true)]
    to: Option<Timestamp>,
    /// How many runs are open at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    parallel: u32,
    /// Also run times that have a run already
    #[arg(long)]
    again: bool,
    /// Show the times; start nothing
    #[arg(long)]
    dry_run: bool,
    /// Wait for the end; exit code 1 if a run failed
    #[arg(long, conflicts_with = "dry_run")]
    wait: bool,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the backfills of a job
    List(Which),
    /// Show a backfill with its progress
    Show(WhichBackfill),
    /// Cancel a backfill: nothing more starts, its open runs are cancelled
    Cancel(WhichBackfill),
}

#[derive(Debug, Args)]
struct WhichBackfill {
    /// Id of the backfill
    id: String,
}

pub(super) async fn run(args: &BackfillArgs, client: &Client, out: Out) -> Result {
    match &args.verb {
        Some(Verb::List(which)) => {
            let request = request::backfills(&which.name).with_any("cluster", client.cluster());
            let backfills = client.ask(request).await?;
            out.result(&backfills, || backfill_table(&backfills.data, Timestamp::now(), out.width()))
        }
        Some(Verb::Show(which)) => {
            let backfill = client.ask(request::backfill(&which.id)).await?;
            out.result(&backfill, || backfill_page(&backfill, Timestamp::now(), out.width()))
        }
        Some(Verb::Cancel(which)) => {
            let backfill = client.send(request::cancel_backfill(&which.id), Body::Empty, None).await?;
            out.result(&backfill, || {
                format!("backfill {} is cancelled; {} not started", backfill.id, backfill.left)
            })
        }
        None => start(args, client, out).await,
    }
}

async fn start(args: &BackfillArgs, client: &Client, out: Out) -> Result {
    let (Some(name), Some(from), Some(to)) = (&args.name, args.from, args.to) else {
        return Err(Failure::bug("a backfill without a range"));
    };
    let BackfillArgs { parallel, again, dry_run, .. } = args;
    let body = json!({"from": from, "to": to, "parallel": parallel, "again": again, "dry_run": dry_run});
    let request = request::backfill_job(name).with_any("cluster", client.cluster());
    let backfill = client.send(request, Body::Json(body.to_string()), None).await?;
    if *dry_run {
        return out.result(&backfill, || backfill_plan(&backfill));
    }
    if !args.wait {
        return out.result(&backfill, || {
            let id = backfill.id;
            format!("{}\n`downbeat job backfill show {id}` shows its progress", backfill_progress(&backfill))
        });
    }
    let over = wait(backfill, client, out).await?;
    out.result(&over, || backfill_page(&over, Timestamp::now(), out.width()))?;
    if over.status == "completed" { Ok(()) } else { Err(Failure::run_failed()) }
}

/// Waits until a backfill has ended. Prints its progress whenever it changes.
async fn wait(mut backfill: Backfill, client: &Client, out: Out) -> Result<Backfill> {
    let mut printed = String::new();
    loop {
        let progress = backfill_progress(&backfill);
        if progress != printed {
            out.note(&progress);
            printed = progress;
        }
        if backfill.ended_at.is_some() {
            return Ok(backfill);
        }
        tokio::time::sleep(EVERY).await;
        backfill = client.ask(request::backfill(backfill.id)).await?;
    }
}
