//! `node delete`.

use downbeat_api::DeletedNode;

use super::within;
use crate::client::Client;
use crate::exit::Failure;
use crate::out::Out;

pub(super) async fn run(name: &str, force: bool, client: &Client, out: Out) -> Result<(), Failure> {
    let mut query = within(client);
    query.extend(force.then(|| ("force", "1".to_owned())));
    let node: DeletedNode = client.delete(&["nodes", name], &query).await?;
    out.result(&node, || {
        format!("node {} is deleted; an agent that is started there registers it anew", node.hostname)
    })
}
