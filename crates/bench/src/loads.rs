//! The loads: their arguments and their results.

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::failure::Result;
use crate::figures::Figures;
use crate::page::Part;
use crate::{Note, claims, cluster, fleet, graph, hostile, nodes, schedules, soak, takeover, tasks};

#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    load: Load,
}

#[derive(Debug, Subcommand)]
enum Load {
    /// No-op executions over some nodes: rate, and time from submit to result
    Tasks(tasks::TasksArgs),
    /// Barrier steps over many simulated nodes, each with its own connection
    Fleet(fleet::FleetArgs),
    /// Standing tasks of a cluster of simulated nodes: joining, heartbeats, new tasks, idling, and reads meanwhile
    Cluster(cluster::ClusterArgs),
    /// Graphs of placed tasks on real agents: in sequence, all at once, processes, and the speed of planning
    Graph(graph::GraphArgs),
    #[command(hide = true)]
    Plans(graph::PlansArgs),
    #[command(hide = true)]
    Nodes(nodes::NodesArgs),
    /// Stored jobs with schedules: memory, idling, many starts in one second, and how late starts are over minutes
    Schedules(schedules::SchedulesArgs),
    /// kill -9 of servers that share a PostgreSQL: how long their runs stand still until another server continues them
    Takeover(takeover::TakeoverArgs),
    /// No-ops for half an hour over a million finished executions in a PostgreSQL: do claims become slower?
    Claims(claims::ClaimsArgs),
    /// Large and awkward requests that any client may send: what they cost small runs, /healthz and the server's memory
    Hostile(hostile::HostileArgs),
}

impl BenchArgs {
    /// Returns whether it leaves the other cores to the measured processes.
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
    Cluster(cluster::Report),
    Graph(graph::Graph),
    Soak(soak::Soak),
    Hostile(hostile::Hostile),
}

impl Report {
    pub fn page(&self) -> Vec<Part> {
        match &self.0 {
            Measured::Figures(figures) => figures.page(),
            Measured::Fleet(fleet) => fleet.page(),
            Measured::Cluster(cluster) => cluster.page(),
            Measured::Graph(graph) => graph.page(),
            Measured::Soak(soak) => soak.page(),
            Measured::Hostile(hostile) => hostile.page(),
        }
    }
}

/// The output of a load.
#[derive(Debug)]
pub enum Output {
    Report(Box<Report>),
    /// Text for the process that started this one.
    Raw(String),
}

/// Runs a load. Calls `note` with its progress.
pub async fn run(args: BenchArgs, note: Note) -> Result<Output> {
    let measured = match args.load {
        Load::Tasks(args) => Measured::Figures(tasks::measure(args, note).await?),
        Load::Fleet(args) => Measured::Fleet(fleet::measure(args, note).await?),
        Load::Cluster(args) => Measured::Cluster(cluster::measure(args, note).await?),
        Load::Graph(args) => Measured::Graph(graph::measure(args, note).await?),
        Load::Plans(args) => return graph::hold_plans(&args).map(Output::Raw),
        Load::Nodes(args) => return nodes::serve(args).await.map(Output::Raw),
        Load::Schedules(args) => Measured::Figures(schedules::measure(args, note).await?),
        Load::Takeover(args) => Measured::Figures(takeover::measure(args, note).await?),
        Load::Claims(args) => Measured::Soak(claims::measure(args, note).await?),
        Load::Hostile(args) => Measured::Hostile(hostile::measure(args, note).await?),
    };
    Ok(Output::Report(Box::new(Report(measured))))
}
