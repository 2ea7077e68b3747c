//! Owns the server's metrics for Prometheus. They only count; nothing decides by them.

mod jobs;
mod nodes;
mod text;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use downbeat_api::Replica;
use downbeat_core::delivery::DeliveryStatus;
use downbeat_core::execution::Status;
use downbeat_core::ids::{ClusterId, NodeId};
use downbeat_core::node::NodeStatus;
use downbeat_core::retention::Held;
use downbeat_core::run::RunState;
use downbeat_store::Tally;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Metric, Registry};

use self::jobs::PerJob;
use self::nodes::{NodeName, PerNode};
pub(crate) use self::text::prometheus_text;
use crate::parts::Parts;

/// The metrics of one server; cheap to clone. Counting costs an atomic or a short lock; labels are looked
/// up once, at the start.
#[derive(Clone, Debug)]
pub(crate) struct Metrics(Arc<Figures>);

#[derive(Debug)]
struct Figures {
    registry: Registry,
    runs: [Gauge; RunState::ALL.len()],
    executions: [Counter; Status::ALL.len()],
    nodes: [Gauge; NodeStatus::ALL.len()],
    per_node: PerNode,
    per_job: PerJob,
    gauges: [Gauge; GAUGES.len()],
    pending_to_leased: Histogram,
    commit_batch_size: Histogram,
    commit_seconds: Histogram,
    deliveries: Family<Tried, Counter>,
    http_requests: Family<Request, Counter>,
    http_seconds: Family<Route, Histogram>,
    replica_lag_seconds: Gauge<f64, AtomicU64>,
}

/// A metric without labels that goes up and down.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Figure {
    QueueDepth,
    PollsParked,
    RunsWaiting,
    NodesHeld,
    FeedLag,
    Memory,
    Replica,
    ReplicaConnected,
    ReplicaLag,
    ReplicaCopies,
    StoreExecutions,
    StoreEvents,
    StoreOutput,
    StoreDisk,
}

/// The name and the help text of every [`Figure`], in the same order.
const GAUGES: [(&str, &str); 14] = [
    ("queue_depth", "Pending executions"),
    ("polls_parked", "Polls of nodes that are waiting for work at this server"),
    ("runs_waiting", "Runs that are waiting for their turn"),
    ("nodes_held", "Nodes that an exclusive run holds"),
    ("feed_lag_events", "Committed events that this server has not yet processed"),
    ("process_resident_memory_bytes", "Resident memory of the server process"),
    ("replica", "1 on a read replica, 0 on a primary"),
    ("replica_connected", "1 if this replica is connected to its primary"),
    ("replica_lag_events", "Events of the primary that this replica's copy lacks; -1 if unknown"),
    ("replica_copies", "How often this replica's copy was replaced since its start"),
    ("store_executions", "Executions in the store, measured every minute"),
    ("store_events", "Events in the store, measured every minute"),
    ("store_output_bytes", "Output in the store, measured every minute"),
    ("store_disk_bytes", "Size of the file or the database, measured every minute; 0 in memory"),
];

/// The only label of a metric, with its value.
type Label = [(&'static str, &'static str); 1];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    method: String,
    path: String,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Tried {
    action: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Route {
    method: String,
    path: String,
}

/// 0.1 ms to 100 s: from a commit to a job that waits for a machine.
const LATENCY_S: [f64; 16] =
    [0.0001, 0.0003, 0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0];

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("downbeat");
        let runs = Family::<Label, Gauge>::default();
        registry.register("runs", "Runs by state", runs.clone());
        let executions = Family::<Label, Counter>::default();
        registry.register("executions", "Ended executions by outcome", executions.clone());
        let nodes = Family::<Label, Gauge>::default();
        registry.register("nodes", "Nodes by status", nodes.clone());
        let per_node = PerNode::default();
        registry.register_collector(Box::new(per_node.clone()));
        let per_job = PerJob::default();
        registry.register_collector(Box::new(per_job.clone()));
        let gauges = GAUGES.map(|(name, help)| registered(&mut registry, name, help, Gauge::default()));
        let seconds = || Histogram::new(LATENCY_S);
        let sizes = Histogram::new(exponential_buckets(1.0, 2.0, 14));
        let mut histogram = |name, help, histogram| registered(&mut registry, name, help, histogram);
        let pending_to_leased =
            histogram("pending_to_leased_seconds", "From an execution's creation to its lease", seconds());
        let commit_batch_size =
            histogram("commit_batch_size", "Changes in one transaction of the journal", sizes);
        let commit_seconds =
            histogram("commit_seconds", "Duration of one transaction of the journal", seconds());
        let deliveries = Family::default();
        registry.register(
            "deliveries",
            "Tries to send a message about a run, by outcome",
            deliveries.clone(),
        );
        let http_requests = Family::default();
        registry.register("http_requests", "HTTP requests", http_requests.clone());
        let http_seconds = Family::new_with_constructor((|| Histogram::new(LATENCY_S)) as fn() -> Histogram);
        let help = "From the head of an HTTP request to the head of its response";
        registry.register("http_request_seconds", help, http_seconds.clone());
        let replica_lag_seconds = Gauge::default();
        registry.register("replica_lag_seconds", "Age of this replica's copy", replica_lag_seconds.clone());
        let figures = Figures {
            runs: RunState::ALL.map(|state| runs.get_or_create_owned(&[("state", state.as_str())])),
            executions: Status::ALL
                .map(|status| executions.get_or_create_owned(&[("outcome", status.as_str())])),
            nodes: NodeStatus::ALL.map(|status| nodes.get_or_create_owned(&[("status", status.as_str())])),
            per_node,
            per_job,
            gauges,
            pending_to_leased,
            commit_batch_size,
            commit_seconds,
            deliveries,
            http_requests,
            http_seconds,
            replica_lag_seconds,
            registry,
        };
        for status in Status::ALL.into_iter().filter(|status| status.is_open()) {
            executions.remove(&[("outcome", status.as_str())]);
        }
        Self(Arc::new(figures))
    }

    pub(crate) fn set(&self, figure: Figure, value: u64) {
        self.0.gauges[figure as usize].set(signed(value));
    }

    /// Sets the runs that the store counts.
    pub(crate) fn set_runs(&self, tally: &Tally) {
        for (state, gauge) in RunState::ALL.iter().zip(&self.0.runs) {
            let count = tally.runs.iter().find(|(other, _)| other == state).map_or(0, |(_, count)| *count);
            gauge.set(signed(count));
        }
    }

    pub(crate) fn set_nodes(&self, nodes: impl Iterator<Item = NodeStatus>) {
        let mut counts = [0; NodeStatus::ALL.len()];
        for status in nodes {
            counts[status as usize] += 1;
        }
        for (gauge, count) in self.0.nodes.iter().zip(counts) {
            gauge.set(count);
        }
    }

    pub(crate) fn per_node(&self) -> &PerNode {
        &self.0.per_node
    }

    pub(crate) fn per_job(&self) -> &PerJob {
        &self.0.per_job
    }

    pub(crate) fn execution_ended(&self, status: Status) {
        self.0.executions[status as usize].inc();
    }

    pub(crate) fn observe_pending_to_leased(&self, waited: Duration) {
        self.0.pending_to_leased.observe(waited.as_secs_f64());
    }

    pub(crate) fn on_commit(&self, size: usize, elapsed: Duration) {
        self.0.commit_batch_size.observe(size as f64);
        self.0.commit_seconds.observe(elapsed.as_secs_f64());
    }

    pub(crate) fn set_held(&self, held: &Held) {
        self.set(Figure::StoreExecutions, held.executions);
        self.set(Figure::StoreEvents, held.events);
        self.set(Figure::StoreOutput, held.output_bytes);
        self.set(Figure::StoreDisk, held.disk_bytes.unwrap_or(0));
    }

    pub(crate) fn set_replica(&self, lag: &Replica) {
        self.set(Figure::Replica, 1);
        self.set(Figure::ReplicaConnected, u64::from(lag.connected));
        // An unknown lag must not look like a small one.
        self.0.gauges[Figure::ReplicaLag as usize].set(lag.lag_events.map_or(-1, signed));
        self.0.replica_lag_seconds.set(lag.lag.map_or(f64::NAN, |time| time.0.as_secs_f64()));
        self.set(Figure::ReplicaCopies, lag.copies);
    }

    /// Counts a try to send a message.
    pub(crate) fn delivery_tried(&self, action: &'static str, status: DeliveryStatus) {
        let outcome = match status {
            DeliveryStatus::Delivered => "delivered",
            DeliveryStatus::Pending => "retried",
            DeliveryStatus::Failed => "given_up",
        };
        self.0.deliveries.get_or_create(&Tried { action, outcome }).inc();
    }

    /// `path` is the route's pattern: actual paths would create a series for every id.
    pub(crate) fn on_request(&self, method: &str, path: &str, status: u16, elapsed: Duration) {
        let (method, path) = (method.to_owned(), path.to_owned());
        self.0
            .http_requests
            .get_or_create(&Request { method: method.clone(), path: path.clone(), status })
            .inc();
        self.0.http_seconds.get_or_create(&Route { method, path }).observe(elapsed.as_secs_f64());
    }

    pub(crate) fn encode(&self) -> String {
        if let Some(bytes) = resident_bytes() {
            self.set(Figure::Memory, bytes);
        }
        let mut text = String::new();
        encode(&mut text, &self.0.registry).expect("writing to a string does not fail");
        text
    }
}

/// Updates the metrics that are read from the server's state on request.
pub(crate) async fn update(parts: &Parts) {
    let metrics = &parts.metrics;
    let nodes: Vec<(NodeId, ClusterId, String)> = {
        let board = parts.dispatcher.board();
        metrics.set(Figure::QueueDepth, board.waiting() as u64);
        metrics.set(Figure::PollsParked, board.parked() as u64);
        metrics.set_nodes(board.nodes().map(|node| node.status));
        metrics.set(Figure::NodesHeld, board.held_nodes() as u64);
        board.nodes().map(|node| (node.id, node.cluster, node.description.hostname.clone())).collect()
    };
    let clusters: HashMap<ClusterId, String> =
        parts.standing.clusters().iter().map(|cluster| (cluster.id, cluster.name.clone())).collect();
    let name = |(node, cluster, hostname): (NodeId, ClusterId, String)| {
        Some((node, NodeName { cluster: clusters.get(&cluster)?.clone(), hostname }))
    };
    metrics.per_node().name(nodes.into_iter().filter_map(name).collect());
    metrics.per_job().name(clusters);
    metrics.set(Figure::RunsWaiting, parts.admission.waiting() as u64);
    if let Some(replica) = &parts.replica {
        metrics.set_replica(&replica.lag(parts.clock.now()));
    }
    if let Ok(tally) = parts.views.tally().await {
        metrics.set_runs(&tally);
    }
    // Read first: events that are published in between must not look like a negative lag.
    let published = parts.feed.last_seq();
    if let Ok(committed) = parts.store.last_seq().await {
        metrics.set(Figure::FeedLag, committed.saturating_sub(published));
    }
}

fn registered<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Reads the kernel's figure; `None` without `/proc`.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_its_name_and_value() {
        let metrics = Metrics::new();
        metrics.set_runs(&Tally { runs: vec![(RunState::Failed, 2)], ..Tally::default() });
        let runs = [RunState::Pending, RunState::Running, RunState::Completed];
        metrics.set_runs(&Tally { runs: runs.map(|state| (state, 1)).to_vec(), ..Tally::default() });
        metrics.set(Figure::QueueDepth, 9);
        metrics.set_nodes([NodeStatus::Online, NodeStatus::Stale, NodeStatus::Online].into_iter());
        metrics.execution_ended(Status::Succeeded);
        metrics.on_commit(7, Duration::from_millis(2));
        metrics.observe_pending_to_leased(Duration::from_millis(1));
        metrics.set(Figure::PollsParked, 4);
        metrics.set(Figure::FeedLag, 5);
        metrics.set(Figure::RunsWaiting, 6);
        metrics.set(Figure::NodesHeld, 3);
        metrics.set_held(&Held {
            executions: 11,
            events: 12,
            output_bytes: 13,
            disk_bytes: Some(14),
            ..Held::default()
        });
        metrics.on_request("GET", "/api/v1/runs", 200, Duration::from_millis(1));
        let text = metrics.encode();
        for line in [
            r#"downbeat_runs{state="running"} 1"#,
            r#"downbeat_runs{state="completed"} 1"#,
            r#"downbeat_runs{state="pending"} 1"#,
            r#"downbeat_runs{state="failed"} 0"#,
            r#"downbeat_nodes{status="online"} 2"#,
            r#"downbeat_nodes{status="stale"} 1"#,
            r#"downbeat_executions_total{outcome="succeeded"} 1"#,
            r#"downbeat_executions_total{outcome="lost"} 0"#,
            "downbeat_queue_depth 9",
            "downbeat_pending_to_leased_seconds_count 1",
            "downbeat_commit_batch_size_sum 7.0",
            "downbeat_commit_seconds_count 1",
            "downbeat_polls_parked 4",
            "downbeat_feed_lag_events 5",
            "downbeat_runs_waiting 6",
            "downbeat_nodes_held 3",
            "downbeat_store_executions 11",
            "downbeat_store_events 12",
            "downbeat_store_output_bytes 13",
            "downbeat_store_disk_bytes 14",
            r#"downbeat_http_requests_total{method="GET",path="/api/v1/runs",status="200"} 1"#,
            r#"downbeat_http_request_seconds_count{method="GET",path="/api/v1/runs"} 1"#,
        ] {
            assert!(text.lines().any(|have| have == line), "no `{line}` in\n{text}");
        }
        assert!(!text.contains(r#"outcome="pending""#), "an open execution has no outcome");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn memory_is_read_from_the_kernel() {
        assert!(resident_bytes().is_some_and(|bytes| bytes > 100_000));
    }
}
