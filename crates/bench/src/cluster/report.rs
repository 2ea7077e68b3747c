//! Owns the result of this load, as a document and as tables. `docs/performance.md` describes the fields.

use serde::Serialize;

use super::reads::Read;
use crate::nodes::Beats;
use crate::page::Part;

/// The result for one size.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figures {
    pub load: &'static str,
    pub store: String,
    /// Executions of the list.
    pub n: u64,
    pub nodes: u32,
    /// From the edit of the list until all nodes had carried it out.
    pub seconds: f64,
    pub per_second: f64,
    /// Of all reads meanwhile.
    pub p50_ms: f64,
    pub p99_ms: f64,
    /// At the end, and the peak.
    pub server_rss_bytes: u64,
    pub server_rss_peak_bytes: u64,
    /// From the time when all nodes were online to the end.
    pub seconds_observed: f64,
    /// From the start of the first connection until all nodes were registered and online.
    pub online_after_seconds: f64,
    pub heartbeats: Heartbeats,
    pub first_task: Work,
    pub idle: Idle,
    pub list: Work,
    pub idle_after_list: Idle,
    pub reads: Vec<Read>,
}

/// The heartbeats of all nodes.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Heartbeats {
    /// How often a node became stale or offline; 0 if all heartbeats were in time.
    pub nodes_silent: u64,
    #[serde(flatten)]
    pub beats: Beats,
}

/// New tasks, carried out by all nodes.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Work {
    pub tasks: u32,
    pub executions: u64,
    /// From the request that edits the list until the status shows that all nodes have reported everything.
    pub seconds: f64,
    /// The response to that request.
    pub edited_after_ms: f64,
    pub executions_per_second: f64,
    pub server_cpu_us_per_execution: f64,
    pub nodes_cpu_us_per_execution: f64,
    /// Of one core.
    pub server_cpu_percent: f64,
    pub changes_per_commit: f64,
    pub ms_per_commit: f64,
}

/// A time without tasks and requests.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Idle {
    pub seconds: f64,
    /// Of one core.
    pub server_cpu_percent: f64,
    pub nodes_cpu_percent: f64,
    pub server_rss_bytes: u64,
}

/// The whole result.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// The largest size.
    #[serde(flatten)]
    largest: Box<Figures>,
    /// All sizes of `--scale`, the smallest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sizes: Vec<Figures>,
}

impl Figures {
    pub(super) fn with_beats(self, beats: Beats) -> Self {
        let heartbeats = Heartbeats { beats, ..self.heartbeats };
        Self { heartbeats, ..self }
    }

    fn facts(&self) -> Part {
        let Heartbeats { nodes_silent, beats } = &self.heartbeats;
        let beats = format!(
            "{}, {nodes_silent} nodes silent, late by {:.1} ms (p50), {:.1} ms (p99), {:.0} ms (max)",
            beats.count, beats.p50_ms, beats.p99_ms, beats.max_ms
        );
        let (rss, peak) = (mib(self.server_rss_bytes), mib(self.server_rss_peak_bytes));
        Part::Facts(vec![
            ("load", self.load.to_owned()),
            ("store", self.store.clone()),
            ("nodes", self.nodes.to_string()),
            ("observed for", format!("{:.1} s", self.seconds_observed)),
            ("all online after", format!("{:.2} s", self.online_after_seconds)),
            ("heartbeats", beats),
            ("one new task", self.first_task.line()),
            ("idle", self.idle.line()),
            ("list", self.list.line()),
            ("idle after it", self.idle_after_list.line()),
            ("server memory", format!("{rss}, at most {peak}")),
        ])
    }

    /// Returns the highest p99 of all calls.
    fn slowest_read(&self) -> f64 {
        self.reads.iter().map(|read| read.p99_ms).fold(0.0, f64::max)
    }
}

impl Work {
    fn line(&self) -> String {
        format!(
            "{} executions in {:.2} s, {:.0} per second, server cpu {:.0} µs per execution",
            self.executions, self.seconds, self.executions_per_second, self.server_cpu_us_per_execution
        )
    }
}

impl Idle {
    fn line(&self) -> String {
        format!("{:.1} s, server cpu {:.1} % of one core", self.seconds, self.server_cpu_percent)
    }
}

impl Report {
    /// Creates the result from those of all sizes, the largest last.
    pub(super) fn of(mut sizes: Vec<Figures>) -> Option<Self> {
        let largest = Box::new(sizes.last()?.clone());
        if sizes.len() == 1 {
            sizes.clear();
        }
        Some(Self { largest, sizes })
    }

    pub(crate) fn page(&self) -> Vec<Part> {
        let mut parts = vec![self.largest.facts(), reads_table(&self.largest.reads)];
        if !self.sizes.is_empty() {
            parts.push(scale_table(&self.sizes));
        }
        parts
    }
}

fn reads_table(reads: &[Read]) -> Part {
    Part::table(
        reads,
        &[
            ("read during the list", &|read| read.call.clone()),
            ("count", &|read| read.count.to_string()),
            ("failed", &|read| match &read.failure {
                Some(failure) => format!("{}: {failure}", read.failed),
                None => read.failed.to_string(),
            }),
            ("p50", &|read| format!("{:.1} ms", read.p50_ms)),
            ("p99", &|read| format!("{:.1} ms", read.p99_ms)),
            ("max", &|read| format!("{:.1} ms", read.max_ms)),
        ],
    )
}

fn scale_table(sizes: &[Figures]) -> Part {
    Part::table(
        sizes,
        &[
            ("nodes", &|size| size.nodes.to_string()),
            ("all online after", &|size| format!("{:.2} s", size.online_after_seconds)),
            ("one new task", &|size| format!("{:.2} s", size.first_task.seconds)),
            ("list", &|size| format!("{:.2} s", size.list.seconds)),
            ("executions/s", &|size| format!("{:.0}", size.list.executions_per_second)),
            ("server cpu", &|size| format!("{:.0} µs", size.list.server_cpu_us_per_execution)),
            ("idle cpu", &|size| format!("{:.1} %", size.idle.server_cpu_percent)),
            ("slowest read p99", &|size| format!("{:.1} ms", size.slowest_read())),
            ("silent nodes", &|size| size.heartbeats.nodes_silent.to_string()),
            ("heartbeat max", &|size| format!("{:.0} ms", size.heartbeats.beats.max_ms)),
            ("server memory", &|size| mib(size.server_rss_bytes)),
        ],
    )
}

fn mib(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / 1_048_576.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(nodes: u32) -> Figures {
        let work = |tasks: u32| Work {
            tasks,
            executions: u64::from(nodes * tasks),
            seconds: 0.5,
            edited_after_ms: 3.0,
            executions_per_second: f64::from(nodes * tasks) / 0.5,
            server_cpu_us_per_execution: 50.0,
            nodes_cpu_us_per_execution: 20.0,
            server_cpu_percent: 90.0,
            changes_per_commit: 80.0,
            ms_per_commit: 5.0,
        };
        let idle =
            Idle { seconds: 9.0, server_cpu_percent: 4.5, nodes_cpu_percent: 2.0, server_rss_bytes: 5 << 20 };
        let read = |call: &str, p99_ms: f64| Read {
            call: call.to_owned(),
            count: 7,
            failed: 0,
            failure: None,
            p50_ms: 1.0,
            p99_ms,
            max_ms: 40.0,
        };
        Figures {
            load: "cluster",
            store: "sqlite".to_owned(),
            n: u64::from(nodes * 20),
            nodes,
            seconds: 0.5,
            per_second: f64::from(nodes * 20) / 0.5,
            p50_ms: 1.0,
            p99_ms: 30.0,
            server_rss_bytes: 6 << 20,
            server_rss_peak_bytes: 7 << 20,
            seconds_observed: 20.0,
            online_after_seconds: 1.5,
            heartbeats: Heartbeats::default(),
            first_task: work(1),
            idle: idle.clone(),
            list: work(20),
            idle_after_list: idle,
            reads: vec![read("/status", 12.5), read("/nodes?limit=100", 30.0), read("/other", 8.0)],
        }
    }

    #[test]
    fn one_size_has_no_table_of_sizes() {
        let report = Report::of(vec![figures(50)]).unwrap();
        assert_eq!(report.page().len(), 2);
        let document = serde_json::to_value(&report).unwrap();
        assert_eq!((&document["nodes"], &document["sizes"]), (&50.into(), &serde_json::Value::Null));
    }

    #[test]
    fn the_table_shows_the_slowest_read_of_each_size_and_the_document_starts_with_the_largest() {
        let report = Report::of(vec![figures(100), figures(900)]).unwrap();
        let Some(Part::Table { head, rows }) = report.page().pop() else { panic!("sizes are a table") };
        let column = head.iter().position(|name| *name == "slowest read p99").unwrap();
        assert_eq!((rows[0][0].as_str(), rows[1][column].as_str()), ("100", "30.0 ms"));
        let document = serde_json::to_value(&report).unwrap();
        assert_eq!(document["nodes"], 900);
        assert_eq!(document["sizes"][0]["list"]["executions"], 2_000);
        assert_eq!(document["heartbeats"]["nodes_silent"], 0);
    }

    #[test]
    fn there_is_no_result_without_a_size() {
        assert!(Report::of(Vec::new()).is_none());
    }
}
