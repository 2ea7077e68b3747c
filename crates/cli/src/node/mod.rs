//! `node …`: nodes and their executions.

mod delete;
mod drain;
mod list;
mod show;
mod work;

use clap::Subcommand;
use downbeat_client::Client;

use crate::exit::Failure;
use crate::later;
use crate::out::Out;

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// List the nodes of the cluster
    List(list::ListArgs),
    /// Show a node with everything that it has reported
    Show {
        /// Hostname or id
        node: String,
    },
    /// Show the executions that a node has leased, and the totals of finished ones
    Work {
        /// Hostname or id
        node: String,
    },
    /// Remove a node that will not return: its running executions are lost, those that wait for it fail
    #[command(
        after_help = "The agent of a deleted node exits with code 4 when it notices this. If it is started again, it \
                            registers the node again."
    )]
    Delete {
        /// Hostname or id
        node: String,
        /// Also if the node is online
        #[arg(long)]
        force: bool,
    },
    /// Drain a node: running tasks finish, no new ones start
    Drain {
        /// Hostname or id
        node: String,
    },
    /// Let a drained node accept new tasks again
    Undrain {
        /// Hostname or id
        node: String,
    },
    /// A verb that does not exist, with its arguments
    #[command(external_subcommand)]
    Unknown(Vec<String>),
}

pub(crate) async fn run(verb: Verb, client: &Client, out: Out) -> Result<(), Failure> {
    match verb {
        Verb::List(args) => list::run(args, client, out).await,
        Verb::Show { node } => show::run(&node, client, out).await,
        Verb::Work { node } => work::run(&node, client, out).await,
        Verb::Delete { node, force } => delete::run(&node, force, client, out).await,
        Verb::Drain { node } => drain::run(&node, drain::Drain::On, client, out).await,
        Verb::Undrain { node } => drain::run(&node, drain::Drain::Off, client, out).await,
        Verb::Unknown(words) => Err(later::unknown(Some("node"), &words)),
    }
}
