//! Follows a run: its view is read once, then updated by the run's event stream.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use downbeat_api::request::Request;
use downbeat_api::{Event, EventList, Gap, Plan, Run, RunProgress, request};
use downbeat_core::ids::{NodeId, RunId};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout_at};

use crate::error::{Error, Result};
use crate::fold::Projection;
use crate::http::{Client, last_event, last_seq};
use crate::stream::{OnUnreachable, Stream};

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
    unreachable: OnUnreachable,
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
    /// Reads a run and opens the stream of its events. Calls `unreachable` with the server that it waits for if none
    /// responds.
    pub async fn follow(
        &self,
        id: &RunId,
        unreachable: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Live> {
        let seq = self.ask_patiently(last_event(), &unreachable).await?;
        let run = self.ask_patiently(request::run(id), &unreachable).await?;
        let plan = self.ask_patiently(request::run_plan(id), &unreachable).await?;
        let unreachable: OnUnreachable = Arc::new(unreachable);
        let seq = last_seq(&seq);
        let projection = Projection::new(run, &plan, seq);
        let stream = self.stream_reporting(events_after(id, seq), Arc::clone(&unreachable));
        Ok(Live {
            client: self.clone(),
            id: id.clone(),
            plan,
            projection,
            stream,
            has_ended: false,
            unreachable,
        })
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
    pub fn run(&mut self) -> &Run {
        self.projection.run()
    }

    /// Returns the run as of the last applied event, and its plan.
    pub fn view(&mut self) -> (&Run, &Plan) {
        (self.projection.run(), &self.plan)
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
                if !self.run().summary.state.is_terminal() {
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
            let execution = self.ask(request::execution(execution)).await?;
            self.projection.complete(&execution);
        }
        Ok(())
    }

    /// Placed executions may be on any node of the cluster.
    async fn read_hostnames(&mut self, unknown_nodes: Vec<NodeId>) -> Result<()> {
        let cluster = self.run().summary.cluster;
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

    /// Reads the whole run again, for facts that events do not contain.
    pub async fn refresh(&mut self) -> Result<()> {
        let run = self.ask(request::run(&self.id)).await?;
        self.projection.replace(run, self.projection.seq());
        Ok(())
    }

    /// Reads why the run and its steps wait, without its results.
    pub async fn refresh_waiting(&mut self) -> Result<()> {
        match self.ask(request::run_progress(&self.id)).await {
            Ok(progress) => {
                let RunProgress { summary, waiting, .. } = progress;
                self.projection.set_waiting(summary.pending_reason, waiting);
                Ok(())
            }
            // An older server returns only whole runs.
            Err(Error::Problem(problem)) if problem.status == 400 => self.refresh().await,
            Err(error) => Err(error),
        }
    }

    /// Starts again with the current run.
    async fn restart(&mut self) -> Result<()> {
        let seq = last_seq(&self.ask(last_event()).await?);
        let run = self.ask(request::run(&self.id)).await?;
        self.projection.replace(run, seq);
        self.stream =
            self.client.stream_reporting(events_after(&self.id, seq), Arc::clone(&self.unreachable));
        Ok(())
    }

    /// Waits for a server that is unreachable: it responded before.
    async fn ask<T: DeserializeOwned>(&self, request: Request<T>) -> Result<T> {
        self.client.ask_patiently(request, &*self.unreachable).await
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("id", &self.id).finish_non_exhaustive()
    }
}
