//! `server-list`: the servers that share the store.

use downbeat_api::request;
use downbeat_client::Client;
use jiff::Timestamp;

use crate::exit::Failure;
use crate::out::Out;
use crate::render::server_table;

pub(crate) async fn run(client: &Client, out: Out) -> Result<(), Failure> {
    let servers = client.ask(request::servers()).await?;
    out.result(&servers, || server_table(&servers.data, Timestamp::now(), out.width()))
}
