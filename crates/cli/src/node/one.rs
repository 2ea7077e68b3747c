//! The commands about one node: `node show`, `work`, `reset` and `delete`.

use downbeat_api::request;
use downbeat_client::{Body, Client};
use jiff::Timestamp;

use crate::exit::Result;
use crate::out::Out;
use crate::render::{node_page, work_page};

pub(super) async fn show(node: &str, client: &Client, out: Out) -> Result {
    let node = client.ask(request::node(node).with_any("cluster", client.cluster())).await?;
    out.result(&node, || node_page(&node, Timestamp::now(), out.width()))
}

pub(super) async fn work(node: &str, client: &Client, out: Out) -> Result {
    let work = client.ask(request::node_work(node).with_any("cluster", client.cluster())).await?;
    out.result(&work, || work_page(&work, Timestamp::now(), out.width()))
}

pub(super) async fn delete(name: &str, force: bool, client: &Client, out: Out) -> Result {
    let request = request::delete_node(name).with_any("cluster", client.cluster());
    let node = client.ask(request.with_any("force", force.then_some(1))).await?;
    out.result(&node, || {
        format!("node {} is deleted; an agent that starts there registers it again", node.hostname)
    })
}

pub(super) async fn reset(name: &str, client: &Client, out: Out) -> Result {
    let request = request::reset_node(name).with_any("cluster", client.cluster());
    let node = client.send(request, Body::Empty, None).await?;
    out.result(&node, || format!("node {} does all standing tasks again", node.hostname))
}
