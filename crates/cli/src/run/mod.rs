//! `run …`: runs and their results.

mod approve;
mod bars;
mod events;
mod follow;
mod id;
mod lines;
mod list;
mod logs;
mod one;
mod part;
mod results;
mod retry;
mod watch;

use clap::Subcommand;
use downbeat_client::Client;

use crate::exit::Result;
use crate::later;
use crate::out::Out;
use crate::render::Rows;

pub(crate) use lines::{Colour, Lines, Prefix};
pub(crate) use watch::Following;

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// List runs, newest first
    List(list::ListArgs),
    /// Show a run with every step on every node
    Show {
        #[command(flatten)]
        run: Which,
        /// Show every instance, however many there are
        #[arg(long)]
        all: bool,
    },
    /// List the results of a run: one for each step on each node and for each item
    Results(results::ResultsArgs),
    /// Follow a run until it ends; Ctrl-C leaves it running, with exit code 130
    Watch(Which),
    /// Print the output of a run's processes to standard output; lines of standard error are marked
    Logs(logs::LogsArgs),
    /// List the events of a run, in order
    Events(events::EventsArgs),
    /// Pause a run: running tasks finish, no new ones start
    Pause(Which),
    /// Continue a paused run
    Resume(Which),
    /// Approve a step that waits for a person, or reject it
    Approve(approve::ApproveArgs),
    /// Stop a run and all of its running tasks
    Cancel {
        #[command(flatten)]
        run: Which,
        /// End the run without waiting for its agents; its tasks may still run until the agents stop them
        #[arg(long)]
        force: bool,
    },
    /// Start a new run of what did not succeed in an ended run; successful results are reused
    Retry(retry::RetryArgs),
    /// A verb that does not exist, with its arguments
    #[command(external_subcommand)]
    Unknown(Vec<String>),
}

/// The run that a command works on.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Which {
    /// Id of the run, a unique start of the id, or `last`
    #[arg(value_name = "RUN")]
    run: String,
}

pub(crate) async fn exec(verb: Verb, client: &Client, out: Out) -> Result {
    match verb {
        Verb::List(args) => list::run(args, client, out).await,
        Verb::Show { run, all } => one::show(&run, Rows::of(all), client, out).await,
        Verb::Results(args) => results::run(args, client, out).await,
        Verb::Watch(run) => watch::run(&run, client, out).await,
        Verb::Logs(args) => logs::run(args, client, out).await,
        Verb::Events(args) => events::run(args, client, out).await,
        Verb::Pause(run) => one::pause(&run, client, out).await,
        Verb::Resume(run) => one::resume(&run, client, out).await,
        Verb::Approve(args) => approve::run(args, client, out).await,
        Verb::Cancel { run, force } => one::cancel(&run, force, client, out).await,
        Verb::Retry(args) => retry::run(args, client, out).await,
        Verb::Unknown(words) => Err(later::unknown(Some("run"), &words)),
    }
}
