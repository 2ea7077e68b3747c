//! `status`: the whole system at a glance.

use downbeat_api::Status;
use jiff::Timestamp;

use crate::client::Client;
use crate::exit::Failure;
use crate::out::Out;
use crate::render::status_page;

pub(crate) async fn run(client: &Client, out: Out) -> Result<(), Failure> {
    let status: Status = client.get(&["status"], &[]).await?;
    out.result(&status, || status_page(&status, Timestamp::now(), out.width()))
}
