//! Owns the requests: method, path and response type of each, in one table.

use std::fmt::Display;
use std::marker::PhantomData;

use serde_json::Value;

use crate::{
    AppliedJob, Backfill, Cluster, ClusterStatus, DebugCommand, DebugResult, DeletedNode, Delivery,
    EventList, Execution, Failures, Frame, InstanceResult, Job, JobDiff, LimitUsage, List, ListChanges, Many,
    Matrix, Node, NodeCount, NodeSummary, NodeWork, OfferedBackend, Output, Plan, Rerun, Run, RunChunk,
    RunRow, Server, StandingTask, Stats, Status, Valid, Walk,
};

/// The default port of the REST API.
pub const HTTP_PORT: u16 = 4680;

/// The prefix of every path below.
pub const ROOT: [&str; 2] = ["api", "v1"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Post,
    Put,
    Patch,
    Delete,
}

/// A request whose response is a `T`.
#[derive(Debug)]
pub struct Request<T> {
    pub method: Method,
    template: &'static str,
    id: Option<String>,
    pub query: Vec<(&'static str, String)>,
    response: PhantomData<fn() -> T>,
}

impl<T> Request<T> {
    /// Returns the segments of the path after [`ROOT`], not encoded: an id is data, not a path.
    pub fn segments(&self) -> impl Iterator<Item = &str> {
        let segment =
            |segment| if segment == "{id}" { self.id.as_deref().unwrap_or_default() } else { segment };
        self.template.split('/').map(segment)
    }

    /// Adds a parameter to the query.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Display) -> Self {
        self.query.push((name, value.to_string()));
        self
    }

    /// Adds a parameter to the query, if there is a value.
    #[must_use]
    pub fn with_any(self, name: &'static str, value: Option<impl Display>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// Replaces `since` in the query.
    #[must_use]
    pub fn since(mut self, seq: u64) -> Self {
        self.query.retain(|(name, _)| *name != "since");
        self.with("since", seq)
    }

    /// Returns the same request for a caller that reads only a part of the response.
    pub fn reading<Part>(self) -> Request<Part> {
        let Self { method, template, id, query, response: _ } = self;
        Request { method, template, id, query, response: PhantomData }
    }
}

impl<T> Clone for Request<T> {
    fn clone(&self) -> Self {
        Self { id: self.id.clone(), query: self.query.clone(), ..*self }
    }
}

macro_rules! requests {
    ($($method:ident $template:literal $name:ident($($id:ident)?) -> $response:ty;)*) => {
        $(
            #[doc = concat!("`", stringify!($method), " /api/v1/", $template, "`")]
            pub fn $name($($id: impl Display)?) -> Request<$response> {
                let id = None::<String>$(.or(Some($id.to_string())))?;
                let (method, template) = (Method::$method, $template);
                Request { method, template, id, query: Vec::new(), response: PhantomData }
            }
        )*

        /// Method and path of every request.
        pub const ALL: &[(Method, &str)] = &[$((Method::$method, $template)),*];
    };
}

requests! {
    Get "runs" runs() -> List<RunRow>;
    Post "runs" submit() -> Run;
    Post "runs/cancel" cancel_runs() -> Many;
    Post "runs/retry" retry_runs() -> Many;
    Get "runs/{id}" run(id) -> Run;
    Post "runs/{id}/cancel" cancel(id) -> Run;
    Post "runs/{id}/pause" pause(id) -> Run;
    Post "runs/{id}/resume" resume(id) -> Run;
    Post "runs/{id}/approve" approve(id) -> Run;
    Post "runs/{id}/retry" retry(id) -> Run;
    Get "runs/{id}/results" run_results(id) -> List<InstanceResult>;
    Get "runs/{id}/matrix" run_matrix(id) -> Matrix;
    Get "runs/{id}/executions" run_executions(id) -> List<Execution>;
    Get "runs/{id}/plan" run_plan(id) -> Plan;
    Get "runs/{id}/events" run_events(id) -> EventList;
    Get "runs/{id}/output" run_output(id) -> RunChunk;
    Get "runs/{id}/failures" run_failures(id) -> Failures;
    Get "executions/{id}" execution(id) -> Execution;
    Get "executions/{id}/output" output(id) -> Output;
    Get "nodes" nodes() -> List<NodeSummary>;
    Get "node-counts" node_counts() -> List<NodeCount>;
    Get "nodes/{id}" node(id) -> Node;
    Delete "nodes/{id}" delete_node(id) -> DeletedNode;
    Post "nodes/drain" drain_nodes() -> Many;
    Post "nodes/undrain" undrain_nodes() -> Many;
    Get "deleted-nodes" deleted_nodes() -> List<DeletedNode>;
    Get "nodes/{id}/executions" node_executions(id) -> List<Execution>;
    Get "nodes/{id}/workers" node_work(id) -> NodeWork;
    Post "nodes/{id}/drain" drain(id) -> Node;
    Post "nodes/{id}/undrain" undrain(id) -> Node;
    Post "nodes/{id}/reset" reset_node(id) -> Node;
    Get "nodes/{id}/debug" node_debug(id) -> List<DebugResult>;
    Post "nodes/{id}/debug" debug_node(id) -> DebugResult;
    Post "clusters/{id}/debug" debug_cluster(id) -> DebugCommand;
    Get "debug/{id}" debug(id) -> DebugCommand;
    Post "debug/{id}/cancel" cancel_debug(id) -> DebugCommand;
    Get "clusters" clusters() -> List<Cluster>;
    Post "clusters" create_cluster() -> Cluster;
    Get "clusters/{id}" cluster(id) -> Cluster;
    Patch "clusters/{id}" update_cluster(id) -> Cluster;
    Put "clusters/{id}" set_cluster(id) -> Cluster;
    Delete "clusters/{id}" delete_cluster(id) -> ();
    Get "clusters/{id}/status" cluster_status(id) -> ClusterStatus;
    Get "clusters/{id}/walks" cluster_walks(id) -> List<Walk>;
    Get "clusters/{id}/executions" cluster_executions(id) -> List<Execution>;
    Get "clusters/{id}/tasks" cluster_tasks(id) -> List<StandingTask>;
    Post "clusters/{id}/tasks" add_task(id) -> StandingTask;
    Put "clusters/{id}/tasks" apply_tasks(id) -> ListChanges;
    Put "clusters/{id}/tasks/reorder" reorder_tasks(id) -> ();
    Get "tasks/{id}" task(id) -> StandingTask;
    Put "tasks/{id}" update_task(id) -> StandingTask;
    Delete "tasks/{id}" delete_task(id) -> ();
    Post "tasks/{id}/rerun" rerun_task(id) -> Rerun;
    Get "tasks/{id}/executions" task_executions(id) -> List<Execution>;
    Get "clusters/{id}/nodes" cluster_nodes(id) -> List<NodeSummary>;
    Get "jobs" jobs() -> List<Job>;
    Post "jobs" apply_job() -> AppliedJob;
    Get "jobs/{id}" job(id) -> Job;
    Put "jobs/{id}" put_job(id) -> AppliedJob;
    Delete "jobs/{id}" delete_job(id) -> ();
    Post "jobs/{id}/pause" pause_job(id) -> Job;
    Post "jobs/{id}/resume" resume_job(id) -> Job;
    Post "jobs/{id}/runs" run_job(id) -> Run;
    Get "jobs/{id}/diff" diff_job(id) -> JobDiff;
    Post "jobs/{id}/rollback" roll_back_job(id) -> AppliedJob;
    Post "jobs/{id}/backfill" backfill_job(id) -> Backfill;
    Get "jobs/{id}/backfills" backfills(id) -> List<Backfill>;
    Get "backfills/{id}" backfill(id) -> Backfill;
    Post "backfills/{id}/cancel" cancel_backfill(id) -> Backfill;
    Get "deliveries" deliveries() -> List<Delivery>;
    Get "deliveries/{id}" delivery(id) -> Delivery;
    Post "deliveries/{id}/send" send_delivery(id) -> Delivery;
    Get "backends" backends() -> List<OfferedBackend>;
    Get "limits" limits() -> List<LimitUsage>;
    Get "schema/job" job_schema() -> Value;
    Post "plan" plan() -> Plan;
    Post "validate" validate() -> Valid;
    Get "events" events() -> EventList;
    Get "replication" replication() -> ();
    Get "live" live() -> Frame;
    Get "stats" stats() -> Stats;
    Get "servers" servers() -> List<Server>;
    Get "status" status() -> Status;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_one_segment() {
        let request = node_work("a/b").with("cluster", "x").with_any("limit", None::<u32>);
        assert_eq!(request.segments().collect::<Vec<_>>(), ["nodes", "a/b", "workers"]);
        assert_eq!(request.query, [("cluster", "x".to_owned())]);
    }
}
