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
mod pause;
mod retry;
mod show;
mod watch;

use clap::Subcommand;
use downbeat_client::Client;

use crate::exit::Failure;
use crate::later;
use crate::out::Out;
use crate::render::Rows;

pub(crate) use watch::{wait, watch};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Runs, newest first
    List(list::ListArgs),
    /// A run with every step on every node
    Show {
        #[command(flatten)]
        run: Which,
        /// Every instance, however many there are
        #[arg(long)]
        all: bool,
    },
    /// Follow a run until it ends; Ctrl-C leaves it running, with exit code 130
    Watch {
        #[command(flatten)]
        run: Which,
    },
    /// What a run's processes wrote, on standard output; lines of standard error are marked
    Logs(logs::LogsArgs),
    /// What happened to a run, in order
    Events(events::EventsArgs),
    /// Let what runs end, and begin nothing more
    Pause {
        #[command(flatten)]
        run: Which,
    },
    /// Go on with a run that is paused
    Resume {
        #[command(flatten)]
        run: Which,
    },
    /// Stop a run and everything that it started
    Cancel {
        #[command(flatten)]
        run: Which,
    },
    /// A new run that does what an ended one did not; what succeeded is taken over
    Retry(retry::RetryArgs),
    /// A verb that does not exist, and what came after it
    #[command(external_subcommand)]
    Unknown(Vec<String>),
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
        Verb::Show { run, all } => show::run(&run, Rows::of(all), client, out).await,
        Verb::Watch { run } => watch::run(&run, client, out).await,
        Verb::Logs(args) => logs::run(args, client, out).await,
        Verb::Events(args) => events::run(args, client, out).await,
        Verb::Pause { run } => pause::pause(&run, client, out).await,
        Verb::Resume { run } => pause::resume(&run, client, out).await,
        Verb::Cancel { run } => cancel::run(&run, client, out).await,
        Verb::Retry(args) => retry::run(args, client, out).await,
        Verb::Unknown(words) => Err(later::unknown(Some("run"), &words)),
    }
}
