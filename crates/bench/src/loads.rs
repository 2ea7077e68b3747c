//! The loads: their arguments and reports.

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::failure::Failure;
use crate::figures::Figures;
use crate::page::Part;
use crate::{Note, claims, fleet, graph, nodes, soak, takeover, tasks};

#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    load: Load,
}

#[derive(Debug, Subcommand)]
enum Load {
    /// Run no-op executions on some nodes; measure the rate and the latency from submit to result
    Tasks(tasks::TasksArgs),
    /// Run barrier steps on many simulated nodes, each with its own connection
    Fleet(fleet::FleetArgs),
    /// Run graphs of placed tasks on real agents: sequential, parallel, processes; measure planning
    Graph(graph::GraphArgs),
    #[command(hide = true)]
    Plans(graph::PlansArgs),
    #[command(hide = true)]
    Nodes(nodes::NodesArgs),
    /// Kill servers that share a PostgreSQL with kill -9; measure how long their runs stand still until another server
    /// continues them
    Takeover(takeover::TakeoverArgs),
    /// Run no-ops for half an hour with a million finished executions in a PostgreSQL, to see whether claims become
    /// slower
    Claims(claims::ClaimsArgs),
}

impl BenchArgs {
    /// Returns true if this process must not use all cores, to leave them to the measured processes.
    pub fn is_modest(&self) -> bool {
        matches!(self.load, Load::Nodes(_) | Load::Plans(_))
    }
}

/// The result of a load.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub struct Report(Measured);

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Measured {
    Figures(Figures),
    Fleet(fleet::Fleet),
    Graph(graph::Graph),
    Soak(soak::Soak),
}

impl Report {
    /// Returns the report as parts to print.
    pub fn page(&self) -> Vec<Part> {
        match &self.0 {
            Measured::Figures(figures) => figures.page(),
            Measured::Fleet(fleet) => fleet.page(),
            Measured::Graph(graph) => graph.page(),
            Measured::Soak(soak) => soak.page(),
        }
    }
}

/// The output of a finished load.
#[derive(Debug)]
pub enum Output {
    Report(Box<Report>),
    /// Text for the parent process.
    Raw(String),
}

/// Runs a load and reports its progress to `note`.
pub async fn run(args: BenchArgs, note: Note) -> Result<Output, Failure> {
    let measured = match args.load {
        Load::Tasks(args) => Measured::Figures(tasks::measure(args, note).await?),
        Load::Fleet(args) => Measured::Fleet(fleet::measure(args, note).await?),
        Load::Graph(args) => Measured::Graph(graph::measure(args, note).await?),
        Load::Plans(args) => return graph::hold_plans(&args).map(Output::Raw),
        Load::Nodes(args) => return nodes::serve(args).await.map(|()| Output::Raw(String::new())),
        Load::Takeover(args) => Measured::Figures(takeover::measure(args, note).await?),
        Load::Claims(args) => Measured::Soak(claims::measure(args, note).await?),
    };
    Ok(Output::Report(Box::new(Report(measured))))
}
