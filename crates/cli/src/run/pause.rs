//! `run pause` and `run resume`.

use downbeat_api::RunSummary;

use super::Which;
use crate::client::{Body, Client};
use crate::exit::Failure;
use crate::out::Out;

pub(super) async fn pause(which: &Which, client: &Client, out: Out) -> Result<(), Failure> {
    let id = which.resolve(client).await?;
    let run: RunSummary = client.post(&["runs", id.as_str(), "pause"], &[], Body::Empty, None).await?;
    out.result(&run, || {
        format!("run {id} is paused: what runs ends, nothing more begins; `downbeat run resume {id}` goes on")
    })
}

pub(super) async fn resume(which: &Which, client: &Client, out: Out) -> Result<(), Failure> {
    let id = which.resolve(client).await?;
    let run: RunSummary = client.post(&["runs", id.as_str(), "resume"], &[], Body::Empty, None).await?;
    out.result(&run, || format!("run {id} goes on"))
}
