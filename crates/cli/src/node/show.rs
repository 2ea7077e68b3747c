//! `node show`.

use downbeat_api::Node;
use jiff::Timestamp;

use super::within;
use crate::client::Client;
use crate::exit::Failure;
use crate::out::Out;
use crate::render::node_page;

pub(super) async fn run(node: &str, client: &Client, out: Out) -> Result<(), Failure> {
    let node: Node = client.get(&["nodes", node], &within(client)).await?;
    out.result(&node, || node_page(&node, Timestamp::now(), out.width()))
}
