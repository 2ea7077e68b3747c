//! `run retry`: starts a new run of the parts of an ended run that did not succeed.

use clap::Args;
use downbeat_api::request;
use downbeat_client::{Body, Client};
use serde_json::json;

use super::{Following, Which};
use crate::exit::Result;
use crate::out::Out;

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

    #[command(flatten)]
    following: Following,
}

pub(super) async fn run(args: RetryArgs, client: &Client, out: Out) -> Result {
    let first = args.run.resolve(client).await?;
    let mut body = json!({"failed_only": args.failed_only});
    // An older server refuses the field.
    if let Some(task) = args.from {
        body["from"] = json!(task);
    }
    let (body, key) = (Body::Json(body.to_string()), args.following.key());
    let run = client.send(request::retry(&first), body, Some(&key)).await?;
    args.following.follow(&run, client, out).await
}
