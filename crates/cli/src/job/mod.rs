//! `job …`: stores, runs, plans, checks and imports jobs.

mod apply;
mod backfill;
mod file;
mod import;
mod inline;
mod params;
mod plan;
mod run;
mod stored;
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
    /// Run one task, a job file or a stored job, now
    Run(run::RunArgs),
    /// Store the jobs of files: new ones, or new versions
    Apply(apply::ApplyArgs),
    /// List the stored jobs
    List,
    /// Show a stored job, with the next times of its schedules
    Show(stored::Which),
    /// Delete a stored job; its runs stay
    Delete(stored::Which),
    /// Pause the schedules of a job
    Pause(stored::Which),
    /// Resume the schedules of a job; times of the pause are skipped
    Resume(stored::Which),
    /// List the runs of a stored job, with their durations as a chart
    History(stored::HistoryArgs),
    /// Show in what two versions of a job differ
    Diff(stored::DiffArgs),
    /// Make an earlier version of a job the next one
    Rollback(stored::RollbackArgs),
    /// Run a stored job for the times of its schedules in a range of the past
    Backfill(backfill::BackfillArgs),
    /// Show which steps would run where and in which order; starts nothing
    Plan(plan::PlanArgs),
    /// Check a job file; needs no server
    Validate(validate::ValidateArgs),
    /// Turn the schedules of another tool into job files; needs no server
    #[command(subcommand)]
    Import(import::From),
    /// Print the JSON schema of job files, for editors
    Schema,
    /// A verb that does not exist, with its arguments
    #[command(external_subcommand)]
    Unknown(Vec<String>),
}

pub(crate) async fn run(verb: Verb, global: &Global, out: Out) -> Result {
    match verb {
        Verb::Run(args) => run::exec(args, global, out).await,
        Verb::Apply(args) => apply::run(&args, &connect(global)?, out).await,
        Verb::List => stored::list(&connect(global)?, out).await,
        Verb::Show(which) => stored::show(&which, &connect(global)?, out).await,
        Verb::Delete(which) => stored::delete(&which, &connect(global)?, out).await,
        Verb::Pause(which) => stored::pause(&which, &connect(global)?, out).await,
        Verb::Resume(which) => stored::resume(&which, &connect(global)?, out).await,
        Verb::History(args) => stored::history(&args, &connect(global)?, out).await,
        Verb::Diff(args) => stored::diff(&args, &connect(global)?, out).await,
        Verb::Rollback(args) => stored::roll_back(&args, &connect(global)?, out).await,
        Verb::Backfill(args) => backfill::run(&args, &connect(global)?, out).await,
        Verb::Plan(args) => plan::run(args, &connect(global)?, out).await,
        Verb::Validate(args) => validate::run(&args, out),
        Verb::Import(from) => import::run(from, out),
        Verb::Schema => validate::schema(out),
        Verb::Unknown(words) => Err(later::unknown(Some("job"), &words)),
    }
}
