//! `run retry`: starts a new run of the parts of an ended run that did not succeed.

use clap::Args;
use downbeat_api::request;
use downbeat_client::{Body, Client};
use serde_json::json;

use super::{Which, wait, watch};
use crate::exit::Failure;
use crate::out::Out;
use crate::render::{absences, started_line};

#[derive(Debug, Args)]
pub(crate) struct RetryArgs {
    #[command(flatten)]
    run: Which,

    /// Only on the nodes on which a task failed
    #[arg(long)]
    failed_only: bool,

    /// Also run this task and all tasks after it again, whatever their result; by name, or by the number of its step
    #[arg(long, value_name = "TASK", conflicts_with = "failed_only")]
    from: Option<String>,

    /// Wait for the end, then show the run; the exit code is the run's result
    #[arg(long, conflicts_with = "watch")]
    wait: bool,

    /// Show the progress until the end; the exit code is the run's result
    #[arg(long)]
    watch: bool,

    /// A repeated request with the same key returns the first run
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

pub(super) async fn run(args: RetryArgs, client: &Client, out: Out) -> Result<(), Failure> {
    let first = args.run.resolve(client).await?;
    // With its own key the client can repeat the request after a broken connection.
    let key = args.idempotency_key.unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
    let mut body = json!({"failed_only": args.failed_only});
    // An older server refuses the field.
    if let Some(task) = args.from {
        body["from"] = json!(task);
    }
    let run = client.send(request::retry(&first), Body::Json(body.to_string()), Some(&key)).await?;
    let id = run.summary.id.clone();
    absences(&run).iter().for_each(|absence| out.note(absence));
    if args.watch {
        watch(id, client, out).await
    } else if args.wait {
        wait(id, client, out).await
    } else {
        out.result(&run, || started_line(&run.summary))?;
        Ok(())
    }
}
