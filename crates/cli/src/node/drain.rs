//! `node drain` and `node undrain`.

use downbeat_api::request;
use downbeat_client::{Body, Client};

use crate::exit::Failure;
use crate::out::Out;

#[derive(Clone, Copy, Debug)]
pub(super) enum Drain {
    On,
    Off,
}

pub(super) async fn run(name: &str, drain: Drain, client: &Client, out: Out) -> Result<(), Failure> {
    let (request, text) = match drain {
        Drain::On => (request::drain(name), "is draining: running tasks finish, no new ones start"),
        Drain::Off => (request::undrain(name), "accepts new tasks again"),
    };
    let request = request.with_any("cluster", client.cluster());
    let node = client.send(request, Body::Empty, None).await?;
    out.result(&node, || format!("node {} {text}", node.hostname))
}
