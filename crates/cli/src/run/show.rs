//! `run show`.

use downbeat_api::request;
use downbeat_client::Client;
use jiff::Timestamp;

use super::Which;
use crate::exit::Result;
use crate::out::{Format, Out};
use crate::render::{Rows, run_page};

pub(super) async fn run(which: &Which, rows: Rows, client: &Client, out: Out) -> Result {
    let id = which.resolve(client).await?;
    let run = client.ask(request::run(&id)).await?;
    if out.format() != Format::Table {
        return out.result(&run, String::new);
    }
    let plan = client.ask(request::run_plan(&id)).await?;
    out.text(&run_page(&run, &plan, rows, Timestamp::now(), out.width()))
}
