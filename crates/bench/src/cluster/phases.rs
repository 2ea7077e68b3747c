//! The phases of the load, in order: nodes join; one new task; idle; a list of tasks; idle again. Heartbeats are checked
//! over all of them.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::reads::{self, Read};
use super::report::{Figures, Heartbeats, Idle, Work};
use super::rest::{Rest, Status, task};
use crate::Note;
use crate::failure::{Failure, Result};
use crate::figures::Latencies;
use crate::nodes::Nodes;
use crate::process;
use crate::server::{PARKED, SUCCEEDED};
use crate::shares::{Meter, changes_per_commit, ms_per_commit};
use crate::site::Site;

/// The pause between two looks at the status: while nodes join and while they carry out one task, and while they carry
/// out the list.
const LOOK: Duration = Duration::from_millis(20);
const LOOK_SELDOM: Duration = Duration::from_millis(100);
/// `/metrics` of a large cluster costs the server much more than the status.
const LOOK_AT_METRICS: Duration = Duration::from_millis(250);

/// The second idle phase takes at least this part of the whole time, even if the list took too long.
const IDLE_AGAIN: u32 = 10;

/// One size of the load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub nodes: u32,
    pub tasks: u32,
    pub length: Duration,
}

impl Size {
    pub(super) async fn load(self, site: &Site, note: Note) -> Result<Figures> {
        note(&format!("{} nodes join", self.nodes));
        let begun = Instant::now();
        let mut nodes = Nodes::start(&site.first().grpc, self.nodes)?;
        let load = Load { size: self, site, rest: Rest::new(site.first())?, process: nodes.id(), note };
        let figures = tokio::select! {
            failure = nodes.failed() => Err(failure),
            figures = load.phases(begun) => figures,
        }?;
        let beats = nodes.leave().await?;
        Ok(figures.with_beats(beats))
    }
}

/// The load on a running system.
struct Load<'a> {
    size: Size,
    site: &'a Site,
    rest: Rest,
    /// The process of the simulated nodes.
    process: u32,
    note: Note,
}

/// The CPU time so far, and when it was read.
#[derive(Clone, Copy)]
struct Used {
    at: Instant,
    server_seconds: f64,
    nodes_seconds: f64,
}

/// Time and CPU time of one phase.
struct Took {
    seconds: f64,
    server_seconds: f64,
    nodes_seconds: f64,
}

/// The system before an edit of the list.
struct Before {
    /// New tasks of the edit.
    tasks: u32,
    /// All tasks after the edit.
    expected: u64,
    /// Executions that had succeeded.
    succeeded: f64,
    meter: Meter,
}

/// The list has been carried out.
struct Carried {
    took: Took,
    /// How long the edit took.
    edited: Duration,
    status: Status,
}

impl Load<'_> {
    /// Returns all figures but the latencies of heartbeats. `begun` is when the nodes were started.
    async fn phases(&self, begun: Instant) -> Result<Figures> {
        let Size { nodes, tasks, length } = self.size;
        let expected = u64::from(nodes);
        self.rest.until("nodes join", LOOK, |status| status.active_nodes >= expected).await?;
        let online_after = begun.elapsed();
        self.all_poll().await?;
        let (observed, seq) = (Instant::now(), self.site.first().last_seq().await?);
        self.note(&format!("all online after {:.2} s; one new task", online_after.as_secs_f64()));

        let first = task("first");
        let first_task = self.one_task(&first).await?;
        self.note(&format!("reported by all nodes after {:.2} s; idle", first_task.seconds));

        let idle = self.idle(length.div_f64(2.0).saturating_sub(observed.elapsed())).await;
        self.note(&format!("{:.1} % of one core; a list of {tasks} tasks", idle.server_cpu_percent));

        // The first task stays: all nodes have carried it out.
        let added = (1..=tasks).map(|number| task(&format!("task-{number:02}")));
        let all: Vec<Value> = std::iter::once(first).chain(added).collect();
        let (list, reads, latencies) = self.list(tasks, &all).await?;
        self.note(&format!("{:.0} executions per second; idle again", list.executions_per_second));

        let rest = length.saturating_sub(observed.elapsed()).max(length / IDLE_AGAIN);
        let idle_after = self.idle(rest).await;
        let seconds_observed = observed.elapsed().as_secs_f64();

        let server = self.site.first();
        let nodes_silent = server.silent_nodes(seq).await?;
        Ok(Figures {
            load: "cluster",
            store: self.site.store.clone(),
            n: list.executions,
            nodes,
            seconds: list.seconds,
            per_second: list.executions_per_second,
            p50_ms: latencies.ms(0.5),
            p99_ms: latencies.ms(0.99),
            server_rss_bytes: server.rss_bytes(),
            server_rss_peak_bytes: server.peak_rss_bytes(),
            seconds_observed,
            online_after_seconds: online_after.as_secs_f64(),
            heartbeats: Heartbeats { nodes_silent, ..Heartbeats::default() },
            first_task,
            idle,
            list,
            idle_after_list: idle_after,
            reads,
        })
    }

    fn note(&self, text: &str) {
        (self.note)(&format!("{} nodes: {text}", self.size.nodes));
    }

    async fn all_poll(&self) -> Result<()> {
        self.site.first().reached(PARKED, f64::from(self.size.nodes), LOOK_AT_METRICS).await
    }

    /// Adds one task to the list, and waits until all nodes have reported it.
    async fn one_task(&self, task: &Value) -> Result<Work> {
        let before = self.before(1).await?;
        let carried = self.carry_out(LOOK, before.expected, self.rest.add_task(task)).await?;
        self.after(before, carried).await
    }

    /// Replaces the list by one with this many new tasks, with reads until all nodes have carried it out.
    async fn list(&self, tasks: u32, list: &[Value]) -> Result<(Work, Vec<Read>, Latencies)> {
        let before = self.before(tasks).await?;
        let work = self.carry_out(LOOK_SELDOM, before.expected, self.rest.set_tasks(list));
        let (carried, reads, latencies) = reads::beside(&self.rest, work).await;
        Ok((self.after(before, carried?).await?, reads, latencies))
    }

    async fn before(&self, tasks: u32) -> Result<Before> {
        let status = self.rest.until("the list is read", LOOK, |_| true).await?;
        Ok(Before {
            tasks,
            expected: status.total_tasks + u64::from(tasks),
            succeeded: self.site.first().metrics().await?.get(SUCCEEDED),
            meter: Meter::begin(self.site).await?,
        })
    }

    /// Edits the list, and waits until all nodes have carried it out.
    async fn carry_out(
        &self,
        every: Duration,
        expected: u64,
        edit: impl Future<Output = Result<()>>,
    ) -> Result<Carried> {
        let (nodes, used) = (u64::from(self.size.nodes), self.used());
        edit.await?;
        let edited = used.at.elapsed();
        let is_complete =
            |status: &Status| status.total_tasks == expected && status.nodes_with_all_tasks_complete == nodes;
        let status = self.rest.until("nodes carry out the list", every, is_complete).await?;
        Ok(Carried { took: self.took_since(used), edited, status })
    }

    /// Returns the figures of the work, after all nodes wait for the next task. Fails if an execution is missing, or was
    /// repeated.
    async fn after(&self, before: Before, Carried { took, edited, status }: Carried) -> Result<Work> {
        self.all_poll().await?;
        let (nodes, shares) = (u64::from(self.size.nodes), before.meter.end(self.site).await?);
        if let Some(task) = status.tasks.iter().find(|task| task.counts.succeeded != nodes) {
            let found = task.counts.succeeded;
            return Err(Failure::bug(format!("a complete task has succeeded on {found} of {nodes} nodes")));
        }
        let executions = nodes * u64::from(before.tasks);
        let succeeded = self.site.first().metrics().await?.get(SUCCEEDED) - before.succeeded;
        if succeeded != executions as f64 {
            return Err(Failure::bug(format!("{succeeded} executions succeeded instead of {executions}")));
        }
        let us_per_execution = |seconds: f64| seconds * 1e6 / executions as f64;
        Ok(Work {
            tasks: before.tasks,
            executions,
            seconds: took.seconds,
            edited_after_ms: edited.as_secs_f64() * 1e3,
            executions_per_second: executions as f64 / took.seconds,
            server_cpu_us_per_execution: us_per_execution(took.server_seconds),
            nodes_cpu_us_per_execution: us_per_execution(took.nodes_seconds),
            server_cpu_percent: 100.0 * took.server_seconds / took.seconds,
            changes_per_commit: changes_per_commit(&shares),
            ms_per_commit: ms_per_commit(&shares),
        })
    }

    /// Waits without any request: only heartbeats and polls reach the server.
    async fn idle(&self, length: Duration) -> Idle {
        let used = self.used();
        tokio::time::sleep(length).await;
        let took = self.took_since(used);
        Idle {
            seconds: took.seconds,
            server_cpu_percent: 100.0 * took.server_seconds / took.seconds,
            nodes_cpu_percent: 100.0 * took.nodes_seconds / took.seconds,
            server_rss_bytes: self.site.first().rss_bytes(),
        }
    }

    fn used(&self) -> Used {
        Used {
            at: Instant::now(),
            server_seconds: self.site.first().cpu_seconds(),
            nodes_seconds: process::cpu_seconds(self.process),
        }
    }

    fn took_since(&self, before: Used) -> Took {
        let now = self.used();
        Took {
            seconds: now.at.duration_since(before.at).as_secs_f64().max(f64::MIN_POSITIVE),
            server_seconds: now.server_seconds - before.server_seconds,
            nodes_seconds: now.nodes_seconds - before.nodes_seconds,
        }
    }
}
