//! `node drain` and `node undrain`: of one node, or of all nodes of a selector.

use downbeat_api::request::{self, Request};
use downbeat_api::{Many, Node};
use downbeat_client::{Body, Client};
use serde_json::json;

use super::WhichNodes;
use crate::exit::Result;
use crate::out::Out;

pub(super) async fn drain(which: WhichNodes, client: &Client, out: Out) -> Result {
    let text = "draining: running tasks finish, no new ones start";
    match which.node {
        Some(node) => {
            let node = change(request::drain(node), client).await?;
            out.result(&node, || format!("node {} is {text}", node.hostname))
        }
        None => {
            let many = change_all(request::drain_nodes(), &which, client).await?;
            out.result(&many, || {
                counted(&many, [&format!("is {text}"), &format!("are {text}")], "would be drained")
            })
        }
    }
}

pub(super) async fn undrain(which: WhichNodes, client: &Client, out: Out) -> Result {
    match which.node {
        Some(node) => {
            let node = change(request::undrain(node), client).await?;
            out.result(&node, || format!("node {} accepts new tasks again", node.hostname))
        }
        None => {
            let many = change_all(request::undrain_nodes(), &which, client).await?;
            out.result(&many, || {
                let done = ["accepts new tasks again", "accept new tasks again"];
                counted(&many, done, "would accept new tasks again")
            })
        }
    }
}

async fn change(request: Request<Node>, client: &Client) -> Result<Node> {
    Ok(client.send(request.with_any("cluster", client.cluster()), Body::Empty, None).await?)
}

async fn change_all(request: Request<Many>, which: &WhichNodes, client: &Client) -> Result<Many> {
    let body = json!({"selector": which.selector, "cluster": client.cluster(), "dry_run": which.dry_run});
    Ok(client.send(request, Body::Json(body.to_string()), None).await?)
}

/// Returns a sentence about the nodes that were changed, or would be. They are named if they are all that matched: the
/// response does not contain which ones were not changed, because they have just been deleted.
fn counted(many: &Many, [is_done, are_done]: [&str; 2], would_be: &str) -> String {
    let number = if many.dry_run { many.matched } else { many.changed };
    let nodes = if number == 1 { "node" } else { "nodes" };
    let what = match number {
        _ if many.dry_run => would_be,
        1 => is_done,
        _ => are_done,
    };
    if number < many.matched {
        return format!("{number} of {} nodes {what}", many.matched);
    }
    let names = if many.names.is_empty() { String::new() } else { format!(": {}", many.names.join(", ")) };
    let more = many.matched.saturating_sub(many.names.len() as u64);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("{number} {nodes} {what}{names}{more}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_nodes_and_the_first_names_are_shown() {
        let names = vec!["web-01".to_owned(), "web-02".to_owned()];
        let many = Many { dry_run: false, matched: 3, changed: 3, names, refused: Vec::new() };
        let done = ["is drained", "are drained"];
        assert_eq!(counted(&many, done, ""), "3 nodes are drained: web-01, web-02 and 1 more");
        let some = Many { changed: 1, ..many.clone() };
        assert_eq!(counted(&some, done, ""), "1 of 3 nodes is drained");
        let one = Many { matched: 1, changed: 1, names: vec!["web-01".to_owned()], ..many };
        assert_eq!(counted(&one, done, ""), "1 node is drained: web-01");
        let none = Many { dry_run: true, matched: 0, changed: 0, names: Vec::new(), refused: Vec::new() };
        assert_eq!(counted(&none, done, "would be drained"), "0 nodes would be drained");
    }
}
