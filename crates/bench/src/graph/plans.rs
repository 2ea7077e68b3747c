//! Measures the cost of planning a large run without a server: from the bytes of a job file to the changes of the first
//! turn, and the memory of the plan.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use downbeat_core::backend::{Catalogue, Params};
use downbeat_core::ids::{LeaseToken, RunId};
use downbeat_core::level::LEVEL;
use downbeat_core::node::Reach;
use downbeat_core::plan::{Plan, resolve};
use downbeat_core::run::RunState;
use downbeat_core::run::engine::{Progress, Turn};
use downbeat_core::spec::{self, Definition};
use downbeat_core::work::Parent;
use downbeat_core::{Change, Dice, Timestamp};
use serde_json::Value;
use tokio::process::Command;
use uuid::Uuid;

use super::super::figures::{Figures, Latencies};
use super::super::node::succeeded;
use super::super::process;
use super::super::server::cannot;
use super::jobs::{self, Work};
use crate::Note;
use crate::failure::{Failure, Result};

type Make = fn(Work, usize) -> Value;
/// The planned graphs.
pub(super) const SHAPES: [(&str, Make); 3] =
    [("chain", jobs::chain), ("layers", jobs::layers), ("wide", jobs::wide)];
/// How often each round plans.
const TIMES: u32 = 4;
/// Memory is counted in pages: enough steps are kept at once to make the rounding irrelevant; for tiny graphs at most
/// this many plans.
const STEPS_KEPT: usize = 100_000;
const PLANS_KEPT: usize = 200;
/// The divisor for a smaller graph, whose memory per step should be the same.
const PART: usize = 10;

/// One plan, from the bytes of a file to the changes of its first turn, and the duration of each part.
struct Planned {
    progress: Progress,
    changes: Vec<Change>,
    read: Duration,
    compile: Duration,
    turn: Duration,
}

impl Planned {
    /// Plans as a server does with a submitted definition.
    fn from_json(bytes: &[u8], catalogue: &Catalogue) -> Result<Self> {
        let begun = Instant::now();
        let value: Value = serde_json::from_slice(bytes).map_err(|error| cannot("read JSON", &error))?;
        let definition = spec::from_json(&value, catalogue).map_err(|problems| refused(&problems))?;
        drop(value);
        let read = begun.elapsed();
        let begun = Instant::now();
        let plan = compile(definition)?;
        let compile = begun.elapsed();
        let begun = Instant::now();
        let run = RunId::from(Uuid::from_u128(1));
        let mut progress = Progress::new(Arc::new(plan), run, 1, RunState::Pending);
        let now = Timestamp::now();
        with_turn(now, |turn| progress.begin(turn));
        let changes = progress.take_changes(now);
        Ok(Self { progress, changes, read, compile, turn: begun.elapsed() })
    }

    fn all(&self) -> Duration {
        self.read + self.compile + self.turn
    }

    /// Runs the turn after the first task: for a wide graph, the turn that adds all other tasks.
    fn second_turn(&mut self) -> Duration {
        let added = self.changes.iter().find_map(|change| match change {
            Change::ExecutionsAdded { executions, .. } => executions.first(),
            _ => None,
        });
        let Some(execution) = added.map(|execution| execution.id) else { return Duration::ZERO };
        let now = Timestamp::now();
        let (run, token, outcome) = (self.progress.run().clone(), LeaseToken(Uuid::nil()), succeeded(now));
        let finished = Change::ExecutionFinished { of: Parent::Run(run), execution, token, outcome };
        let begun = Instant::now();
        with_turn(now, |turn| self.progress.observe(&finished, turn));
        self.changes = self.progress.take_changes(now);
        begun.elapsed()
    }
}

fn compile(definition: Definition) -> Result<Plan> {
    let resolved = resolve(&definition, &Params::new(), &[]).map_err(|error| cannot("resolve", &error))?;
    Plan::compile(Arc::new(definition), Arc::new(resolved)).map_err(|error| cannot("compile", &error))
}

fn with_turn(now: Timestamp, act: impl FnOnce(&mut Turn<'_>)) {
    let mut dice = Dice::new(1);
    act(&mut Turn {
        now,
        dice: &mut dice,
        reach: &|_| Reach::Here,
        facts: &|_| None,
        fits: &|_| Ok(()),
        level: LEVEL,
        serving_since: Timestamp::UNIX_EPOCH,
    });
}

fn refused(problems: &[spec::Problem]) -> Failure {
    let first = problems.first().map(|problem| problem.message.clone()).unwrap_or_default();
    Failure::bug(format!("the bench's own graph is refused: {first}"))
}

pub(super) async fn measure(
    name: &'static str,
    make: Make,
    steps: usize,
    rounds: u32,
    note: Note,
) -> Result<Figures> {
    let bytes = make(Work::Noop, steps).to_string().into_bytes();
    let catalogue = Catalogue::builtin();
    let mut parts = BTreeMap::new();
    let (mut all, mut total) = (Latencies::default(), Duration::ZERO);
    for _ in 0..rounds * TIMES {
        let mut planned = Planned::from_json(&bytes, &catalogue)?;
        all.add(planned.all());
        total += planned.all();
        let second_turn = planned.second_turn();
        for (part, took) in [
            ("read p50 ms", planned.read),
            ("compile p50 ms", planned.compile),
            ("first turn p50 ms", planned.turn),
            ("second turn p50 ms", second_turn),
            ("read with places p50 ms", read_with_places(&bytes, &catalogue)?),
        ] {
            parts.entry(part).or_insert_with(Latencies::default).add(took);
        }
    }
    let mut more: BTreeMap<&'static str, f64> =
        parts.iter().map(|(part, took)| (*part, took.ms(0.5))).collect();
    let part = (steps / PART).max(2);
    let (of_part, of_all) = (bytes_per_step(name, part).await?, bytes_per_step(name, steps).await?);
    more.extend([
        ("file bytes", bytes.len() as f64),
        ("ms per task", total.as_secs_f64() * 1e3 / f64::from(rounds * TIMES) / steps as f64),
        ("bytes per step", of_all),
        ("bytes per step of a tenth", of_part),
        ("rounds", f64::from(rounds * TIMES)),
    ]);
    note(&format!(
        "{steps} steps ({name}) planned in {:.1} ms; {of_all:.0} bytes per step, {of_part:.0} with {part} steps",
        all.ms(0.5)
    ));
    let (n, seconds) = (steps as u64, total.as_secs_f64());
    let per_second = n as f64 * f64::from(rounds * TIMES) / seconds;
    Ok(Figures { per_second, more, ..Figures::new(("graph", "steps"), "none", n, 0, seconds, &all) })
}

/// Reads with lines and columns, which is slower: `job run -f` does this before it sends a file.
fn read_with_places(bytes: &[u8], catalogue: &Catalogue) -> Result<Duration> {
    let begun = Instant::now();
    spec::parse_bytes(bytes, "graph.yaml", catalogue).map_err(|problems| refused(&problems))?;
    Ok(begun.elapsed())
}

/// Keep plans of one graph in this process, and print the memory per step
#[derive(Debug, Args)]
pub(crate) struct PlansArgs {
    name: String,
    steps: usize,
}

/// Returns the memory per step, measured in this process.
pub(in super::super) fn hold(args: &PlansArgs) -> Result<String> {
    let make = SHAPES.iter().find(|(name, _)| *name == args.name);
    let (_, make) = make.ok_or_else(|| Failure::bad_input(format!("there is no graph `{}`", args.name)))?;
    let bytes = make(Work::Noop, args.steps).to_string().into_bytes();
    let catalogue = Catalogue::builtin();
    let own = std::process::id();
    let count = STEPS_KEPT.div_ceil(args.steps.max(1)).min(PLANS_KEPT);
    let mut kept = Vec::with_capacity(count);
    // Memory that only reading needs is allocated once before, so that it is not counted.
    let first = Planned::from_json(&bytes, &catalogue)?.progress;
    let before = process::rss_bytes(own);
    for _ in 0..count {
        kept.push(Planned::from_json(&bytes, &catalogue)?.progress);
    }
    let grown = process::rss_bytes(own).saturating_sub(before);
    drop((first, kept));
    Ok(format!("{}\n", grown as f64 / (count * args.steps) as f64))
}

/// Measures in a new process, which has no free memory from earlier work.
async fn bytes_per_step(name: &str, steps: usize) -> Result<f64> {
    let ended = Command::from(process::this_program()?)
        .args(["bench", "plans", name, &steps.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|error| cannot("start a process that plans", &error))?;
    let text = String::from_utf8_lossy(&ended.stdout);
    text.trim().parse().map_err(|_| Failure::bug(format!("a process that plans ended with {}", ended.status)))
}
