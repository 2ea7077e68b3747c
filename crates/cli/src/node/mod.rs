//! `node …`: nodes and their executions.

mod drain;
mod list;
mod one;

use clap::Subcommand;
use downbeat_client::Client;

use crate::exit::Result;
use crate::later;
use crate::out::Out;

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// List the nodes of the cluster
    List(list::ListArgs),
    /// Show a node with everything that it has reported
    Show(Which),
    /// Show the executions that a node has leased, and the totals of finished ones
    Work(Which),
    /// Remove a node that will not return: its running executions are lost, those that wait for it fail
    #[command(
        after_help = "The agent of a deleted node exits with code 4 when it notices this. If it is started again, it \
                            registers the node again."
    )]
    Delete {
        #[command(flatten)]
        which: Which,
        /// Also if the node is online
        #[arg(long)]
        force: bool,
    },
    /// Let a node do all standing tasks again
    Reset(Which),
    /// Drain a node, or all nodes of a selector: running tasks finish, no new ones start
    Drain(WhichNodes),
    /// Let drained nodes accept new tasks again
    Undrain(WhichNodes),
    /// A verb that does not exist, with its arguments
    #[command(external_subcommand)]
    Unknown(Vec<String>),
}

/// The node that a command works on.
#[derive(Debug, clap::Args)]
pub(crate) struct Which {
    /// Hostname or id
    node: String,
}

/// One node, or all nodes of a selector.
#[derive(Debug, clap::Args)]
pub(crate) struct WhichNodes {
    /// Hostname or id
    #[arg(required_unless_present = "selector")]
    node: Option<String>,
    /// All nodes that a job with this target would run on: 'group:web and not node:web-09', or all
    #[arg(long, value_name = "SELECTOR", conflicts_with = "node")]
    selector: Option<String>,
    /// Only count the nodes of the selector
    #[arg(long, requires = "selector")]
    dry_run: bool,
}

pub(crate) async fn run(verb: Verb, client: &Client, out: Out) -> Result {
    match verb {
        Verb::List(args) => list::run(args, client, out).await,
        Verb::Show(which) => one::show(&which.node, client, out).await,
        Verb::Work(which) => one::work(&which.node, client, out).await,
        Verb::Delete { which, force } => one::delete(&which.node, force, client, out).await,
        Verb::Reset(which) => one::reset(&which.node, client, out).await,
        Verb::Drain(which) => drain::drain(which, client, out).await,
        Verb::Undrain(which) => drain::undrain(which, client, out).await,
        Verb::Unknown(words) => Err(later::unknown(Some("node"), &words)),
    }
}
