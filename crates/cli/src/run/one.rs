//! The commands about one run that do not follow it: `run show`, `pause`, `resume` and `cancel`.

use downbeat_api::{RunSummary, request};
use downbeat_client::{Body, Client};
use jiff::Timestamp;

use super::Which;
use crate::exit::Result;
use crate::out::{Format, Out};
use crate::render::{Rows, run_page};

pub(super) async fn show(which: &Which, rows: Rows, client: &Client, out: Out) -> Result {
    let id = which.resolve(client).await?;
    let run = client.ask(request::run(&id)).await?;
    if out.format() != Format::Table {
        return out.result(&run, String::new);
    }
    let plan = client.ask(request::run_plan(&id)).await?;
    out.text(&run_page(&run, &plan, rows, Timestamp::now(), out.width()))
}

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

pub(super) async fn cancel(which: &Which, force: bool, client: &Client, out: Out) -> Result {
    let id = which.resolve(client).await?;
    let request = request::cancel(&id).with_any("force", force.then_some(1));
    let run: RunSummary = client.send(request.reading(), Body::Empty, None).await?;
    out.result(&run, || format!("run {id} is being cancelled; `downbeat run watch {id}` shows how it ends"))
}
