//! Follows a run: its summary and results are read once, then updated by the run's event stream.

use std::collections::HashMap;
use std::fmt;

use downbeat_api::request::Request;
use downbeat_api::{Event, EventList, Gap, InstanceResult, List, Plan, Results, Run, WholeRun, request};
use downbeat_core::ids::{NodeId, RunId};
use downbeat_core::limits;
use tokio::time::{Instant, timeout_at};

use crate::error::{Error, Result};
use crate::fold::Projection;
use crate::http::{Client, last_event, last_seq};
use crate::stream::Stream;

/// Up to this many nodes or executions are read one by one, more with one request for all.
const ONE_BY_ONE: usize = 8;

/// A followed run.
pub struct Live {
    client: Client,
    id: RunId,
    plan: Plan,
    projection: Projection,
    stream: Stream<EventList>,
    has_ended: bool,
}

/// The result of waiting for an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    Event,
    /// The run has ended, and all of its events were applied.
    End,
    Timeout,
}

impl Client {
    /// Reads a run and opens the stream of its events.
    pub async fn follow(&self, id: &RunId) -> Result<Live> {
        let seq = last_seq(&self.ask(last_event()).await?);
        let whole = self.whole_run(id).await?;
        let plan = self.ask(request::run_plan(id)).await?;
        let projection = Projection::new(whole, &plan, seq);
        let stream = self.stream(events_after(id, seq));
        Ok(Live { client: self.clone(), id: id.clone(), plan, projection, stream, has_ended: false })
    }

    /// Returns all results of a run that a request selects, page by page.
    pub async fn all_results(&self, request: Request<List<InstanceResult>>) -> Result<Vec<InstanceResult>> {
        let mut results = Vec::new();
        self.each_page(request, |page| results.extend(page)).await?;
        Ok(results)
    }

    async fn each_page(
        &self,
        request: Request<List<InstanceResult>>,
        mut take: impl FnMut(Vec<InstanceResult>),
    ) -> Result<()> {
        let mut next = None;
        loop {
            let request = request.clone().with("limit", limits::PAGE_MOST).with_any("cursor", next);
            let page = self.ask(request).await?;
            take(page.data);
            next = page.pagination.next;
            if next.is_none() {
                return Ok(());
            }
        }
    }

    /// Reads a run and all of its results.
    async fn whole_run(&self, id: &RunId) -> Result<WholeRun> {
        let run = self.ask(request::run(id)).await?;
        let mut whole = WholeRun { run, results: Results::new() };
        self.each_page(request::run_results(id), |page| whole.extend(page)).await?;
        Ok(whole)
    }
}

fn events_after(id: &RunId, seq: u64) -> Request<EventList> {
    request::run_events(id).with("follow", 1).with("since", seq)
}

impl Live {
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the run as of the last applied event.
    pub fn whole(&mut self) -> &WholeRun {
        self.projection.whole()
    }

    /// Returns the run as of the last applied event, and its plan.
    pub fn view(&mut self) -> (&WholeRun, &Plan) {
        (self.projection.whole(), &self.plan)
    }

    /// Returns whether the run has ended and all of its events were applied.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Waits for the next event of the run until the given time, and applies it.
    pub async fn next_update(&mut self, until: Instant) -> Result<Update> {
        if self.has_ended {
            return Ok(Update::End);
        }
        match self.stream.connect().await {
            Ok(()) => {}
            // The server does not know the last event, because it has another store, or has removed later ones.
            Err(Error::Problem(problem)) if matches!(problem.status, 400 | 410) => {
                self.restart().await?;
                return Ok(Update::Event);
            }
            Err(error) => return Err(error),
        }
        match timeout_at(until, self.stream.receive()).await {
            Ok(Some(Some(message))) if message.name == Gap::NAME => {
                self.restart().await?;
                Ok(Update::Event)
            }
            Ok(Some(Some(message))) => {
                self.apply(&message.decode()?).await?;
                Ok(Update::Event)
            }
            Ok(Some(None)) => {
                self.has_ended = true;
                if !self.whole().run.summary.state.is_terminal() {
                    self.refresh().await?;
                }
                Ok(Update::End)
            }
            // No event in time; or the connection broke, and the next call resumes it.
            Ok(None) | Err(_) => Ok(Update::Timeout),
        }
    }

    async fn apply(&mut self, event: &Event) -> Result<()> {
        let unknown_nodes = self.projection.unknown_nodes(event);
        if !unknown_nodes.is_empty() {
            self.read_hostnames(unknown_nodes).await?;
        }
        self.projection.apply(event);
        let incomplete = self.projection.take_incomplete();
        if incomplete.len() > ONE_BY_ONE {
            return self.refresh().await;
        }
        for execution in incomplete {
            let execution = self.client.ask(request::execution(execution)).await?;
            self.projection.complete(&execution);
        }
        Ok(())
    }

    /// Placed executions may be on any node of the cluster.
    async fn read_hostnames(&mut self, unknown_nodes: Vec<NodeId>) -> Result<()> {
        let cluster = self.whole().run.summary.cluster;
        let nodes = self.client.all_pages(request::cluster_nodes(cluster)).await?;
        let mut hostnames: HashMap<NodeId, String> =
            nodes.into_iter().map(|node| (node.id, node.hostname)).collect();
        if unknown_nodes.iter().any(|node| !hostnames.contains_key(node)) {
            let deleted = self.client.all_pages(request::deleted_nodes()).await?;
            for node in deleted {
                hostnames.entry(node.id).or_insert(node.hostname);
            }
        }
        for node in unknown_nodes {
            hostnames.entry(node).or_insert_with(|| node.to_string());
        }
        hostnames.into_iter().for_each(|(node, hostname)| self.projection.set_hostname(node, hostname));
        Ok(())
    }

    /// Reads the whole run again, for facts that events of older servers do not contain.
    async fn refresh(&mut self) -> Result<()> {
        let whole = self.client.whole_run(&self.id).await?;
        self.projection.replace(whole, self.projection.seq());
        Ok(())
    }

    /// Reads why the run and its steps wait.
    pub async fn refresh_waiting(&mut self) -> Result<()> {
        let Run { summary, waiting, .. } = self.client.ask(request::run(&self.id)).await?;
        self.projection.set_waiting(summary.pending_reason, waiting);
        Ok(())
    }

    /// Starts again with the current run.
    async fn restart(&mut self) -> Result<()> {
        let seq = last_seq(&self.client.ask(last_event()).await?);
        let whole = self.client.whole_run(&self.id).await?;
        self.projection.replace(whole, seq);
        self.stream = self.client.stream(events_after(&self.id, seq));
        Ok(())
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("id", &self.id).finish_non_exhaustive()
    }
}
