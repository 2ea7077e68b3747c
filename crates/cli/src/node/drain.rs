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
    let (request, told) = match drain {
        Drain::On => (request::drain(name), "finishes what it has and takes no new work"),
        Drain::Off => (request::undrain(name), "takes work again"),
    };
    let request = request.with_any("cluster", client.cluster());
    let node = client.send(request, Body::Empty, None).await?;
    out.result(&node, || format!("node {} {told}", node.hostname))
}
