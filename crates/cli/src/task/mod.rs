//! `task …`: the standing tasks of a cluster.

mod add;
mod apply;
mod executions;
mod list;
mod logs;
mod rerun;
mod update;
mod which;

use clap::Subcommand;

use crate::args::Global;
use crate::connect::connect;
use crate::exit::Result;
use crate::later;
use crate::out::Out;

use which::Which;

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Add a standing task: every node of the cluster does it once, after the tasks before it
    Add(add::AddArgs),
    /// List the standing tasks, in their order
    List,
    /// Show a standing task
    Show(Which),
    /// Change a standing task; nodes that have done it do not do it again
    Update(update::UpdateArgs),
    /// Delete a standing task; where it runs, it ends first
    Delete(Which),
    /// Put the standing tasks in another order
    Reorder(list::ReorderArgs),
    /// Make the standing tasks those of a file, and show the differences
    Apply(apply::ApplyArgs),
    /// Let nodes do a standing task again
    Rerun(rerun::RerunArgs),
    /// List the executions of a standing task: each attempt on each node
    Executions(executions::ExecutionsArgs),
    /// Print the output of a standing task on a node
    Logs(logs::LogsArgs),
    /// A verb that does not exist, with its arguments
    #[command(external_subcommand)]
    Unknown(Vec<String>),
}

pub(crate) async fn run(verb: Verb, global: &Global, out: Out) -> Result {
    let client = || connect(global);
    match verb {
        Verb::Add(args) => add::run(args, global, out).await,
        Verb::List => list::run(&client()?, out).await,
        Verb::Show(which) => list::show(&which, &client()?, out).await,
        Verb::Update(args) => update::run(args, global, out).await,
        Verb::Delete(which) => list::delete(&which, &client()?, out).await,
        Verb::Reorder(args) => list::reorder(args, &client()?, out).await,
        Verb::Apply(args) => apply::run(&args, &client()?, out).await,
        Verb::Rerun(args) => rerun::run(args, &client()?, out).await,
        Verb::Executions(args) => executions::run(args, &client()?, out).await,
        Verb::Logs(args) => logs::run(args, &client()?, out).await,
        Verb::Unknown(words) => Err(later::unknown(Some("task"), &words)),
    }
}
