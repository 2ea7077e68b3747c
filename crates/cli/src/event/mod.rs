//! `event …`: what happened, in order.

mod list;

use clap::Subcommand;
use downbeat_client::Client;

use crate::exit::Result;
use crate::later;
use crate::out::Out;

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// List events in the order of commits
    List(list::ListArgs),
    /// A verb that does not exist, with its arguments
    #[command(external_subcommand)]
    Unknown(Vec<String>),
}

pub(crate) async fn run(verb: Verb, client: &Client, out: Out) -> Result {
    match verb {
        Verb::List(args) => list::run(args, client, out).await,
        Verb::Unknown(words) => Err(later::unknown(Some("event"), &words)),
    }
}

pub(crate) use list::{follow, list};
