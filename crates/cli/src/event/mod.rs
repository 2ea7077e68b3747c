//! `event …`: what happened, in order.

mod list;

use clap::Subcommand;

use crate::client::Client;
use crate::exit::Failure;
use crate::out::Out;

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Events in the order of commits
    List(list::ListArgs),
}

pub(crate) async fn run(verb: Verb, client: &Client, out: Out) -> Result<(), Failure> {
    match verb {
        Verb::List(args) => list::run(args, client, out).await,
    }
}

pub(crate) use list::{follow, told};
