//! `bench graph`: graphs of placed tasks on real agents, from submit to the end of the run with every result durable,
//! and the cost of planning such a run.

mod forks;
mod jobs;
mod plans;
mod runs;

use clap::{Args, ValueEnum};
use downbeat_core::limits;
use serde::Serialize;

use self::jobs::Work;
pub(super) use self::plans::{PlansArgs, hold as hold_plans};
use self::runs::Load;
use super::agents::Fleet;
use super::figures::Figures;
use crate::Note;
use crate::failure::{Failure, Result};
use crate::page::Part;

/// Steps of the published comparisons: in sequence, and at once.
const SEQUENTIAL: usize = 40;
const PARALLEL: usize = 400;

#[derive(Debug, Args)]
pub(crate) struct GraphArgs {
    /// What to measure
    #[arg(long, value_enum, default_value_t = Shape::All)]
    shape: Shape,
    /// How often to run each graph
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Tasks in each graph [default: 40 in sequence, 400 in parallel, 10,000 otherwise]
    #[arg(long)]
    n: Option<usize>,
    /// Slots of each agent [default: 32; 128 for `exec`, 256 for `noop`]
    #[arg(long)]
    slots: Option<u32>,
    /// sqlite (a fresh file), or a PostgreSQL in which a database is created and dropped: postgres://…
    #[arg(long, default_value = "sqlite")]
    store: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Shape {
    /// 40 tasks in sequence on one agent: no-ops, processes, shells
    Sequential,
    /// 400 tasks at once on one agent: no-ops, shells
    Parallel,
    /// 10,000 no-ops in one run, over eight agents
    Noop,
    /// 10,000 processes in one run on one agent, against the rate at which this machine starts processes
    Exec,
    /// A run of 10,000 steps, read, compiled and started without a server; memory per step
    Plan,
    All,
}

/// The results of the graphs.
#[derive(Debug, Serialize)]
pub(super) struct Graph {
    /// The result of the largest graph.
    #[serde(flatten)]
    largest: Shaped,
    shapes: Vec<Shaped>,
}

/// One graph.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Shaped {
    shape: &'static str,
    /// The action of each task, or the planned graph.
    work: &'static str,
    #[serde(flatten)]
    figures: Figures,
}

pub(super) async fn measure(args: GraphArgs, note: Note) -> Result<Graph> {
    let most = limits::STEPS_PER_RUN;
    if args.rounds == 0 || args.slots == Some(0) || args.n.is_some_and(|n| n < 2 || n > most) {
        return Err(Failure::bad_input(format!(
            "--rounds and --slots must be more than 0, and --n from 2 to {most}"
        )));
    }
    let wanted = |shape: Shape| args.shape == shape || args.shape == Shape::All;
    let (store, rounds) = (args.store.as_str(), args.rounds);
    let size = |usual: usize| args.n.unwrap_or(usual);
    let fleet = |usual: Fleet| Fleet { slots: args.slots.unwrap_or(usual.slots), ..usual };
    let mut shapes = Vec::new();
    let mut add = |shape: &'static str, work: &'static str, figures: Figures| {
        shapes.push(Shaped { shape, work, figures });
    };
    if wanted(Shape::Sequential) {
        for work in [Work::Fibonacci, Work::True, Work::Noop] {
            let load = Load { work, steps: size(SEQUENTIAL), rounds, fleet: fleet(runs::ONE) };
            add("sequential", work.name(), load.sequential(store, note).await?);
        }
    }
    if wanted(Shape::Parallel) {
        for work in [Work::Fibonacci, Work::Noop] {
            let load = Load { work, steps: size(PARALLEL), rounds, fleet: fleet(runs::ONE) };
            add("parallel", work.name(), load.parallel(store, note).await?);
        }
    }
    if wanted(Shape::Noop) {
        let (work, steps) = (Work::Noop, size(most));
        let load = Load { work, steps, rounds, fleet: fleet(runs::EIGHT) };
        add("noop", work.name(), load.parallel(store, note).await?);
    }
    if wanted(Shape::Exec) {
        let (work, steps) = (Work::True, size(most));
        let load = Load { work, steps, rounds, fleet: fleet(runs::CROWDED) };
        add("exec", work.name(), runs::beside_forks(&load, store, note).await?);
    }
    if wanted(Shape::Plan) {
        for (name, make) in plans::SHAPES {
            add("plan", name, plans::measure(name, make, size(most), rounds, note).await?);
        }
    }
    // The first of the largest ones.
    let largest = shapes.iter().rev().max_by_key(|shaped| shaped.rank()).cloned();
    let largest = largest.ok_or_else(|| Failure::bug("nothing was measured"))?;
    Ok(Graph { largest, shapes })
}

impl Shaped {
    /// Runs come before plans.
    fn rank(&self) -> (bool, u64) {
        (self.figures.nodes > 0, self.figures.n)
    }

    fn more(&self, name: &str, digits: usize) -> String {
        match self.figures.more.get(name) {
            Some(value) => format!("{value:.digits$}"),
            None => "-".into(),
        }
    }
}

impl Graph {
    pub(super) fn page(&self) -> Vec<Part> {
        let [one] = self.shapes.as_slice() else { return vec![self.overview()] };
        let Shaped { shape, work, figures } = one;
        let mut parts = figures.page();
        parts.insert(0, Part::Line(format!("{shape}: {work}")));
        parts
    }

    fn overview(&self) -> Part {
        Part::table(
            &self.shapes,
            &[
                ("shape", &|shaped| shaped.shape.to_owned()),
                ("work", &|shaped| shaped.work.to_owned()),
                ("store", &|shaped| shaped.figures.store.clone()),
                ("tasks", &|shaped| shaped.figures.n.to_string()),
                ("per second", &|shaped| format!("{:.0}", shaped.figures.per_second)),
                ("ms per task", &|shaped| shaped.more("ms per task", 3)),
                ("overhead ms", &|shaped| shaped.more("overhead ms per step", 2)),
                ("p50 ms", &|shaped| format!("{:.2}", shaped.figures.p50_ms)),
                ("p99 ms", &|shaped| format!("{:.2}", shaped.figures.p99_ms)),
                ("of fork+exec", &|shaped| shaped.more("of fork+exec", 2)),
                ("bytes per step", &|shaped| shaped.more("bytes per step", 0)),
            ],
        )
    }
}
