//! `run approve`: lets a step that waits for a person go on, or rejects it.

use clap::Args;
use downbeat_api::{RunSummary, request};
use downbeat_client::{Body, Client};
use serde_json::json;

use super::Which;
use crate::exit::Result;
use crate::out::Out;

#[derive(Debug, Args)]
pub(crate) struct ApproveArgs {
    #[command(flatten)]
    run: Which,

    /// The step, by the name of its task or by its number
    #[arg(value_name = "STEP")]
    step: String,

    /// Reject the step: it fails
    #[arg(long)]
    reject: bool,

    /// Why; it is recorded with the decision
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

pub(super) async fn run(args: ApproveArgs, client: &Client, out: Out) -> Result {
    let id = args.run.resolve(client).await?;
    let ApproveArgs { step, reject, reason, .. } = args;
    let body = json!({"step": step, "reject": reject, "reason": reason});
    let run: RunSummary =
        client.send(request::approve(&id).reading(), Body::Json(body.to_string()), None).await?;
    out.result(&run, || match reject {
        true => format!("step {step} of run {id} is rejected; `downbeat run show {id}` shows what follows"),
        false => format!("step {step} of run {id} is approved; `downbeat run watch {id}` follows the run"),
    })
}
