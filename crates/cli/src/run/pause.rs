//! `run pause`, `run resume` and `run cancel`.

use downbeat_api::{RunSummary, request};
use downbeat_client::{Body, Client};

use super::Which;
use crate::exit::Result;
use crate::out::Out;

pub(super) async fn pause(which: &Which, client: &Client, out: Out) -> Result {
    let id = which.resolve(client).await?;
    let run: RunSummary = client.send(request::pause(&id).reading(), Body::Empty, None).await?;
    out.result(&run, || {
        format!("run {id} is paused: running tasks finish, no new ones start; `downbeat run resume {id}` continues it")
    })
}

pub(super) async fn resume(which: &Which, client: &Client, out: Out) -> Result {
    let id = which.resolve(client).await?;
    let run: RunSummary = client.send(request::resume(&id).reading(), Body::Empty, None).await?;
    out.result(&run, || format!("run {id} continues"))
}

pub(super) async fn cancel(which: &Which, client: &Client, out: Out) -> Result {
    let id = which.resolve(client).await?;
    let run: RunSummary = client.send(request::cancel(&id).reading(), Body::Empty, None).await?;
    out.result(&run, || format!("run {id} is being cancelled; `downbeat run watch {id}` shows how it ends"))
}
