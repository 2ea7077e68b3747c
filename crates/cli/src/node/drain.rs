//! `node drain` and `node undrain`.

use downbeat_api::Node;

use super::within;
use crate::client::{Body, Client};
use crate::exit::Failure;
use crate::out::Out;

#[derive(Clone, Copy, Debug)]
pub(super) enum Drain {
    On,
    Off,
}

pub(super) async fn run(name: &str, drain: Drain, client: &Client, out: Out) -> Result<(), Failure> {
    let (verb, told) = match drain {
        Drain::On => ("drain", "finishes what it has and takes no new work"),
        Drain::Off => ("undrain", "takes work again"),
    };
    let node: Node = client.post(&["nodes", name, verb], &within(client), Body::Empty, None).await?;
    out.result(&node, || format!("node {} {told}", node.hostname))
}
