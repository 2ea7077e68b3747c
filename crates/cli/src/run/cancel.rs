//! `run cancel`.

use downbeat_api::{RunSummary, request};
use downbeat_client::{Body, Client};

use super::Which;
use crate::exit::Failure;
use crate::out::Out;

pub(super) async fn run(which: &Which, client: &Client, out: Out) -> Result<(), Failure> {
    let id = which.resolve(client).await?;
    let run: RunSummary = client.send(request::cancel(&id).reading(), Body::Empty, None).await?;
    out.result(&run, || format!("run {id} is being cancelled; `downbeat run watch {id}` shows how it ends"))
}
