//! The loads: their arguments, and what one comes to.

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
    /// No-op executions over some nodes: how many per second, and how long one takes from submit to result
    Tasks(tasks::TasksArgs),
    /// Barrier steps over many simulated nodes, each with its own connection
    Fleet(fleet::FleetArgs),
    /// Graphs of placed tasks on real agents: one after the other, all at once, processes, and how fast a plan is made
    Graph(graph::GraphArgs),
    #[command(hide = true)]
    Plans(graph::PlansArgs),
    #[command(hide = true)]
    Nodes(nodes::NodesArgs),
    /// kill -9 of servers that share a PostgreSQL: how long their runs stand still until another moves them on
    Takeover(takeover::TakeoverArgs),
    /// No-ops for half an hour over a million finished executions in a PostgreSQL: do claims become slower?
    Claims(claims::ClaimsArgs),
}

impl BenchArgs {
    /// Whether it leaves the other cores to what is measured.
    pub fn is_modest(&self) -> bool {
        matches!(self.load, Load::Nodes(_) | Load::Plans(_))
    }
}

/// What a load came to.
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
    /// Returns the report as people read it.
    pub fn page(&self) -> Vec<Part> {
        match &self.0 {
            Measured::Figures(figures) => figures.page(),
            Measured::Fleet(fleet) => fleet.page(),
            Measured::Graph(graph) => graph.page(),
            Measured::Soak(soak) => soak.page(),
        }
    }
}

/// What is to be printed when a load is over.
#[derive(Debug)]
pub enum Output {
    Report(Box<Report>),
    /// Text for the process that started this one.
    Raw(String),
}

/// Runs a load. `note` is told how far it is.
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
