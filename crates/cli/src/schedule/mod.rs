//! `schedule …`: shows when schedules fire. Needs no server.

mod preview;

use clap::Subcommand;

use crate::exit::Result;
use crate::later;
use crate::out::Out;

pub(crate) use preview::time;

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Show the next times of a cron expression, or of a job file's schedules; needs no server
    Preview(preview::PreviewArgs),
    /// A verb that does not exist, with its arguments
    #[command(external_subcommand)]
    Unknown(Vec<String>),
}

pub(crate) fn run(verb: Verb, out: Out) -> Result {
    match verb {
        Verb::Preview(args) => preview::run(&args, out),
        Verb::Unknown(words) => Err(later::unknown(Some("schedule"), &words)),
    }
}
