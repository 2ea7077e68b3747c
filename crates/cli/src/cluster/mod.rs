//! `cluster …`: clusters, and how far their nodes are with the standing tasks.

mod delete;
mod one;
mod status;

use clap::Subcommand;
use downbeat_client::Client;

use crate::exit::Result;
use crate::later;
use crate::out::Out;

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Create a cluster; agents join it with `downbeat agent --cluster NAME`
    Create(one::CreateArgs),
    /// List the clusters
    List(one::ListArgs),
    /// Show a cluster
    Show(Which),
    /// Show how far the nodes are with the standing tasks, and which nodes are stuck
    Status(status::StatusArgs),
    /// Change the name, the description, or what nodes do when they register again
    Update(one::UpdateArgs),
    /// Delete a cluster with its nodes, tasks, runs and events; its agents exit
    Delete(delete::DeleteArgs),
    /// A verb that does not exist, with its arguments
    #[command(external_subcommand)]
    Unknown(Vec<String>),
}

/// The cluster that a command works on.
#[derive(Debug, clap::Args)]
pub(crate) struct Which {
    /// Name or id
    name: String,
}

pub(crate) async fn run(verb: Verb, client: &Client, out: Out) -> Result {
    match verb {
        Verb::Create(args) => one::create(args, client, out).await,
        Verb::List(args) => one::list(args, client, out).await,
        Verb::Show(which) => one::show(&which.name, client, out).await,
        Verb::Status(args) => status::run(args, client, out).await,
        Verb::Update(args) => one::update(args, client, out).await,
        Verb::Delete(args) => delete::run(args, client, out).await,
        Verb::Unknown(words) => Err(later::unknown(Some("cluster"), &words)),
    }
}
