//! `server-list`: the servers that share the store.

use downbeat_api::{List, Server};
use jiff::Timestamp;

use crate::client::Client;
use crate::exit::Failure;
use crate::out::Out;
use crate::render::server_table;

pub(crate) async fn run(client: &Client, out: Out) -> Result<(), Failure> {
    let servers: List<Server> = client.get(&["servers"], &[]).await?;
    out.result(&servers, || server_table(&servers.data, Timestamp::now(), out.width()))
}
