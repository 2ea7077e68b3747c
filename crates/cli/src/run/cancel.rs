//! `run cancel`.

use downbeat_api::RunSummary;

use super::Which;
use crate::client::{Body, Client};
use crate::exit::Failure;
use crate::out::Out;

pub(super) async fn run(which: &Which, client: &Client, out: Out) -> Result<(), Failure> {
    let id = which.resolve(client).await?;
    let run: RunSummary = client.post(&["runs", id.as_str(), "cancel"], &[], Body::Empty, None).await?;
    out.result(&run, || format!("run {id} is being cancelled; `downbeat run watch {id}` shows how it ends"))
}
