//! `node work`.

use downbeat_api::NodeWork;
use jiff::Timestamp;

use super::within;
use crate::client::Client;
use crate::exit::Failure;
use crate::out::Out;
use crate::render::work_page;

pub(super) async fn run(node: &str, client: &Client, out: Out) -> Result<(), Failure> {
    let work: NodeWork = client.get(&["nodes", node, "workers"], &within(client)).await?;
    out.result(&work, || work_page(&work, Timestamp::now(), out.width()))
}
