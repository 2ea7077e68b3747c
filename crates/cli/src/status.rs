//! `status`: the whole system at a glance; `server-list`: the servers that share the store.

use downbeat_api::request;
use downbeat_client::Client;
use jiff::Timestamp;

use crate::exit::Result;
use crate::out::Out;
use crate::render::{server_table, status_page};

pub(crate) async fn run(client: &Client, out: Out) -> Result {
    let status = client.ask(request::status()).await?;
    out.result(&status, || status_page(&status, Timestamp::now(), out.width()))
}

pub(crate) async fn servers(client: &Client, out: Out) -> Result {
    let servers = client.ask(request::servers()).await?;
    out.result(&servers, || server_table(&servers.data, Timestamp::now(), out.width()))
}
