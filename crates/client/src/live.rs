//! Owns following a run: its view is read once, and kept up to date by the run's event stream.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use downbeat_api::request::Request;
use downbeat_api::{Event, EventList, Plan, Run, RunStanding, request};
use downbeat_core::ids::{NodeId, RunId};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout_at};

use crate::error::Error;
use crate::fold::Projection;
use crate::http::Client;
use crate::stream::{Away, Stream};

/// Up to this many nodes or executions are read one by one, more with one request for all.
const ONE_BY_ONE: usize = 8;

/// A run that is followed.
pub struct Live {
    client: Client,
    id: RunId,
    plan: Plan,
    projection: Projection,
    stream: Stream<EventList>,
    has_ended: bool,
    away: Away,
}

/// What was heard of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    Something,
    /// The run has ended, and every event of it was applied.
    End,
    Nothing,
}

impl Client {
    /// Reads a run, and returns it with the stream of its events. `away` is called with the server that is waited for
    /// when none answers.
    pub async fn follow(
        &self,
        id: &RunId,
        away: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Live, Error> {
        let seq = self.ask_patiently(last_event(), &away).await?;
        let run = self.ask_patiently(request::run(id), &away).await?;
        let plan = self.ask_patiently(request::run_plan(id), &away).await?;
        let away: Away = Arc::new(away);
        let seq = seq.data.last().map_or(0, |event| event.seq);
        let projection = Projection::new(run, &plan, seq);
        let stream = self.stream_telling(events_after(id, seq), Arc::clone(&away));
        Ok(Live { client: self.clone(), id: id.clone(), plan, projection, stream, has_ended: false, away })
    }
}

fn last_event() -> Request<EventList> {
    request::events().with("follow", 0).with("limit", 1)
}

fn events_after(id: &RunId, seq: u64) -> Request<EventList> {
    request::run_events(id).with("follow", 1).with("since", seq)
}

impl Live {
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the run as of the last event that was heard.
    pub fn run(&mut self) -> &Run {
        self.projection.run()
    }

    /// Returns the run as of the last event that was heard, and its plan.
    pub fn view(&mut self) -> (&Run, &Plan) {
        (self.projection.run(), &self.plan)
    }

    /// Returns whether the run has ended, and every event of it was applied.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Waits for the next event of the run until the given time, and takes it in.
    pub async fn hear(&mut self, until: Instant) -> Result<Heard, Error> {
        if self.has_ended {
            return Ok(Heard::End);
        }
        match self.stream.connect().await {
            Ok(()) => {}
            // The server does not know the last event: its store is another one.
            Err(Error::Problem(problem)) if problem.status == 400 => {
                self.restart().await?;
                return Ok(Heard::Something);
            }
            Err(error) => return Err(error),
        }
        match timeout_at(until, self.stream.receive()).await {
            Ok(Some(Some(message))) => {
                self.apply(&message.decode()?).await?;
                Ok(Heard::Something)
            }
            Ok(Some(None)) => {
                self.has_ended = true;
                if !self.run().summary.state.is_terminal() {
                    self.refresh().await?;
                }
                Ok(Heard::End)
            }
            // Nothing came until then; or the connection broke, and the next call resumes it.
            Ok(None) | Err(_) => Ok(Heard::Nothing),
        }
    }

    async fn apply(&mut self, event: &Event) -> Result<(), Error> {
        let strangers = self.projection.strangers(event);
        if !strangers.is_empty() {
            self.learn(strangers).await?;
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

    /// Placed executions may be at any node of the cluster.
    async fn learn(&mut self, strangers: Vec<NodeId>) -> Result<(), Error> {
        let cluster = self.run().summary.cluster;
        let nodes = self.client.all_pages(request::cluster_nodes(cluster)).await?;
        let mut hostnames: HashMap<NodeId, String> =
            nodes.into_iter().map(|node| (node.id, node.hostname)).collect();
        if strangers.iter().any(|node| !hostnames.contains_key(node)) {
            let deleted = self.client.all_pages(request::deleted_nodes()).await?;
            for node in deleted {
                hostnames.entry(node.id).or_insert(node.hostname);
            }
        }
        for node in strangers {
            hostnames.entry(node).or_insert_with(|| node.to_string());
        }
        hostnames.into_iter().for_each(|(node, hostname)| self.projection.learn(node, hostname));
        Ok(())
    }

    /// Reads the whole run once more: for what no event says.
    pub async fn refresh(&mut self) -> Result<(), Error> {
        let run = self.ask(request::run(&self.id)).await?;
        self.projection.replace(run, self.projection.seq());
        Ok(())
    }

    /// Reads why the run and its steps wait, without its results.
    pub async fn look(&mut self) -> Result<(), Error> {
        match self.ask(request::standing(&self.id)).await {
            Ok(standing) => {
                let RunStanding { summary, waiting, .. } = standing;
                self.projection.set_waiting(summary.pending_reason, waiting);
                Ok(())
            }
            // A server of an earlier release shows whole runs only.
            Err(Error::Problem(problem)) if problem.status == 400 => self.refresh().await,
            Err(error) => Err(error),
        }
    }

    /// Begins again with the run as it is now.
    async fn restart(&mut self) -> Result<(), Error> {
        let seq = self.ask(last_event()).await?.data.last().map_or(0, |event| event.seq);
        let run = self.ask(request::run(&self.id)).await?;
        self.projection.replace(run, seq);
        self.stream = self.client.stream_telling(events_after(&self.id, seq), Arc::clone(&self.away));
        Ok(())
    }

    /// The server answered before: it is waited for while it is away.
    async fn ask<T: DeserializeOwned>(&self, request: Request<T>) -> Result<T, Error> {
        self.client.ask_patiently(request, &*self.away).await
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("id", &self.id).finish_non_exhaustive()
    }
}
