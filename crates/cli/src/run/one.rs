//! The commands about one run that do not follow it: `run show`, `pause`, `resume` and `cancel`.

use downbeat_api::{RunSummary, WholeRun, request};
use downbeat_client::{Body, Client};
use downbeat_core::ids::RunId;
use downbeat_core::limits;
use jiff::Timestamp;

use super::Which;
use crate::exit::Result;
use crate::out::{Format, Out};
use crate::render::{Rows, run_page};

/// The statuses of results that the page of a large run shows.
const UNSUCCESSFUL: &str = "failed,lost,cancelled";

pub(super) async fn show(which: &Which, rows: Rows, client: &Client, out: Out) -> Result {
    let id = which.resolve(client).await?;
    if out.format() != Format::Table {
        let run = client.ask(request::run(&id)).await?;
        return out.result(&run, String::new);
    }
    let whole = read(&id, rows, client).await?;
    let plan = client.ask(request::run_plan(&id)).await?;
    out.text(&run_page(&whole, &plan, rows, Timestamp::now(), out.width()))
}

/// Reads a run with the results that its page shows: all of them, or of a large run the failed ones.
pub(super) async fn read(id: &RunId, rows: Rows, client: &Client) -> Result<WholeRun> {
    let run = client.ask(request::run(id)).await?;
    let results = request::run_results(id);
    if rows == Rows::All || run.counts.total() <= u64::from(limits::PAGE_MOST) {
        return Ok(WholeRun::new(run, client.all_results(results).await?));
    }
    let failed = results.with("status", UNSUCCESSFUL).with("limit", limits::PAGE_DEFAULT);
    Ok(WholeRun::new(run, client.ask(failed).await?.data))
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
