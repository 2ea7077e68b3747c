//! `node show`.

use downbeat_api::request;
use downbeat_client::Client;
use jiff::Timestamp;

use crate::exit::Failure;
use crate::out::Out;
use crate::render::node_page;

pub(super) async fn run(node: &str, client: &Client, out: Out) -> Result<(), Failure> {
    let node = client.ask(request::node(node).with_any("cluster", client.cluster())).await?;
    out.result(&node, || node_page(&node, Timestamp::now(), out.width()))
}
