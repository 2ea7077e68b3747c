//! `node …`: the machines.

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
    /// All nodes of the cluster
    List(list::ListArgs),
    /// A node with everything that it says of itself
    Show {
        /// Hostname or id
        node: String,
    },
    /// What a node holds right now, for how long, and what it has done
    Work {
        /// Hostname or id
        node: String,
    },
    /// Remove a node that is gone for good: what it holds is lost, what waits for it fails
    #[command(
        after_help = "The agent of a deleted node ends, with exit code 4, when it hears of it. Started again, it \
                            registers the node anew."
    )]
    Delete {
        /// Hostname or id
        node: String,
        /// Also when it is online
        #[arg(long)]
        force: bool,
    },
    /// Let a node finish what it has and take no new work
    Drain {
        /// Hostname or id
        node: String,
    },
    /// Let a drained node take work again
    Undrain {
        /// Hostname or id
        node: String,
    },
    /// A verb that does not exist, and what came after it
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
