//! `job …`: runs, plans and checks jobs.

mod file;
mod inline;
mod params;
mod plan;
mod run;
mod validate;

use clap::Subcommand;

use crate::args::Global;
use crate::connect::connect;
use crate::exit::Result;
use crate::later;
use crate::out::Out;

pub(crate) use file::JobFile;

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run one task, or a job file, now
    Run(run::RunArgs),
    /// Show which steps would run where and in which order; starts nothing
    Plan(plan::PlanArgs),
    /// Check a job file; needs no server
    Validate(validate::ValidateArgs),
    /// Print the JSON schema of job files, for editors
    Schema,
    /// A verb that does not exist, with its arguments
    #[command(external_subcommand)]
    Unknown(Vec<String>),
}

pub(crate) async fn run(verb: Verb, global: &Global, out: Out) -> Result {
    match verb {
        Verb::Run(args) => run::exec(args, global, out).await,
        Verb::Plan(args) => plan::run(args, &connect(global)?, out).await,
        Verb::Validate(args) => validate::run(&args, out),
        Verb::Schema => validate::schema(out),
        Verb::Unknown(words) => Err(later::unknown(Some("job"), &words)),
    }
}
