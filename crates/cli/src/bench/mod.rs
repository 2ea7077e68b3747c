//! `bench`: measures a server, its store and its agents on this machine. Servers are processes of their own, and so are
//! the many simulated nodes of `fleet` and the agents of `graph`; other agents live in this one. All speak over loopback.

mod agents;
mod claims;
mod database;
mod figures;
mod fleet;
mod graph;
mod http2;
mod node;
mod nodes;
mod process;
mod server;
mod shares;
mod sightings;
mod site;
mod soak;
mod tables;
mod takeover;
mod tasks;

use clap::{Args, Subcommand};

use crate::exit::Failure;
use crate::out::Out;

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
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
    pub(crate) fn is_modest(&self) -> bool {
        matches!(self.load, Load::Nodes(_) | Load::Plans(_))
    }
}

pub(crate) async fn run(args: BenchArgs, out: Out) -> Result<(), Failure> {
    let figures = match args.load {
        Load::Tasks(args) => tasks::measure(args, out).await?,
        Load::Fleet(args) => {
            let fleet = fleet::measure(args, out).await?;
            return out.result(&fleet, || fleet.table());
        }
        Load::Graph(args) => {
            let graph = graph::measure(args, out).await?;
            return out.result(&graph, || graph.table());
        }
        Load::Plans(args) => return graph::hold_plans(&args, out),
        Load::Nodes(args) => return nodes::serve(args).await,
        Load::Takeover(args) => takeover::measure(args, out).await?,
        Load::Claims(args) => {
            let soak = claims::measure(args, out).await?;
            return out.result(&soak, || soak.table());
        }
    };
    out.result(&figures, || figures.table())
}
