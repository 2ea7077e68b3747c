//! `bench cluster`: a cluster of simulated nodes that carry out its standing tasks. Measures how long the nodes need to
//! join, to report one new task and to carry out a list; what the server costs when nothing happens; whether every
//! heartbeat is in time; and how fast the server responds to reads meanwhile.

mod phases;
mod reads;
mod report;
mod rest;

use clap::Args;
use downbeat_core::Span;

use self::phases::Size;
pub(super) use self::report::Report;
use super::process;
use super::site::{Site, Wanted, within};
use crate::Note;
use crate::failure::{Failure, Result};

/// The sizes of `--scale`.
const SIZES: [u32; 3] = [1_000, 3_000, 9_000];

#[derive(Debug, Args)]
pub(crate) struct ClusterArgs {
    /// Number of simulated nodes
    #[arg(long, default_value_t = 9_000)]
    nodes: u32,
    /// Tasks in the list that is added at once
    #[arg(long, default_value_t = 20)]
    tasks: u32,
    /// How long the cluster is observed after all nodes are online; the list is added after half of it
    #[arg(long = "for", value_name = "DURATION", default_value = "5m")]
    length: Span,
    /// 1,000, 3,000 and 9,000 nodes, each for the whole duration: is the cost per node the same?
    #[arg(long, conflicts_with = "nodes")]
    scale: bool,
    /// sqlite (a fresh file), or a PostgreSQL in which a database is created and dropped: postgres://…
    #[arg(long, default_value = "sqlite")]
    store: String,
}

pub(super) async fn measure(args: ClusterArgs, note: Note) -> Result<Report> {
    if args.nodes == 0 || args.tasks == 0 || args.length.is_zero() {
        return Err(Failure::bad_input("--nodes, --tasks and --for must be more than 0"));
    }
    let sizes = if args.scale { &SIZES[..] } else { &[args.nodes] };
    // Before the first size: a limit that is too low for the last one is known in time.
    process::make_room_for(sizes.iter().copied().max().unwrap_or(0))?;
    let mut all = Vec::new();
    for &nodes in sizes {
        let size = Size { nodes, tasks: args.tasks, length: args.length.0 };
        let wanted = [Wanted::new(&args.store, 1)];
        all.push(within(&wanted, async |sites: &mut [Site]| size.load(&sites[0], note).await).await?);
    }
    Report::of(all).ok_or_else(|| Failure::bug("nothing was measured"))
}
