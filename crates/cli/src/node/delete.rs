//! `node delete`.

use downbeat_api::request;
use downbeat_client::Client;

use crate::exit::Failure;
use crate::out::Out;

pub(super) async fn run(name: &str, force: bool, client: &Client, out: Out) -> Result<(), Failure> {
    let request = request::delete_node(name).with_any("cluster", client.cluster());
    let node = client.ask(request.with_any("force", force.then_some(1))).await?;
    out.result(&node, || {
        format!("node {} is deleted; an agent that starts there registers it again", node.hostname)
    })
}
