//! `run show`.

use downbeat_api::{Plan, Run};
use jiff::Timestamp;

use super::Which;
use crate::client::Client;
use crate::exit::Failure;
use crate::out::{Format, Out};
use crate::render::{Rows, run_page};

pub(super) async fn run(which: &Which, rows: Rows, client: &Client, out: Out) -> Result<(), Failure> {
    let id = which.resolve(client).await?;
    let run: Run = client.get(&["runs", id.as_str()], &[]).await?;
    if out.format() != Format::Table {
        return out.result(&run, String::new);
    }
    let plan: Plan = client.get(&["runs", id.as_str(), "plan"], &[]).await?;
    out.text(&run_page(&run, &plan, rows, Timestamp::now(), out.width()))
}
