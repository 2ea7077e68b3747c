//! `status`: the whole system at a glance.

use downbeat_api::request;
use downbeat_client::Client;
use jiff::Timestamp;

use crate::exit::Failure;
use crate::out::Out;
use crate::render::status_page;

pub(crate) async fn run(client: &Client, out: Out) -> Result<(), Failure> {
    let status = client.ask(request::status()).await?;
    out.result(&status, || status_page(&status, Timestamp::now(), out.width()))
}
