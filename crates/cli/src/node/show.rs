//! `node show` and `node work`.

use downbeat_api::request;
use downbeat_client::Client;
use jiff::Timestamp;

use crate::exit::Failure;
use crate::out::Out;
use crate::render::{node_page, work_page};

pub(super) async fn show(node: &str, client: &Client, out: Out) -> Result<(), Failure> {
    let node = client.ask(request::node(node).with_any("cluster", client.cluster())).await?;
    out.result(&node, || node_page(&node, Timestamp::now(), out.width()))
}

pub(super) async fn work(node: &str, client: &Client, out: Out) -> Result<(), Failure> {
    let work = client.ask(request::node_work(node).with_any("cluster", client.cluster())).await?;
    out.result(&work, || work_page(&work, Timestamp::now(), out.width()))
}
