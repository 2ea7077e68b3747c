//! `run …`: what was started, and what became of it.

mod bars;
mod cancel;
mod events;
mod follow;
mod id;
mod lines;
mod list;
mod logs;
mod part;
mod show;
mod watch;

use clap::Subcommand;

use crate::client::Client;
use crate::exit::Failure;
use crate::out::Out;

pub(crate) use watch::{wait, watch};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Runs, newest first
    List(list::ListArgs),
    /// A run with every step on every node
    Show {
        #[command(flatten)]
        run: Which,
    },
    /// Follow a run until it ends; Ctrl-C leaves it running
    Watch {
        #[command(flatten)]
        run: Which,
    },
    /// What a run's processes wrote
    Logs(logs::LogsArgs),
    /// What happened to a run, in order
    Events(events::EventsArgs),
    /// Stop a run and everything that it started
    Cancel {
        #[command(flatten)]
        run: Which,
    },
}

/// A run that is meant.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Which {
    /// Its id, a beginning of it that no other run has, or `last`
    #[arg(value_name = "RUN")]
    run: String,
}

pub(crate) async fn run(verb: Verb, client: &Client, out: Out) -> Result<(), Failure> {
    match verb {
        Verb::List(args) => list::run(args, client, out).await,
        Verb::Show { run } => show::run(&run, client, out).await,
        Verb::Watch { run } => watch::run(&run, client, out).await,
        Verb::Logs(args) => logs::run(args, client, out).await,
        Verb::Events(args) => events::run(args, client, out).await,
        Verb::Cancel { run } => cancel::run(&run, client, out).await,
    }
}
