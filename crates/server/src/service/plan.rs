//! Creates plans: which task runs where and in which order.

use std::sync::Arc;

use downbeat_api::NodeReason;
use downbeat_core::backend::{Catalogue, Params};
use downbeat_core::ids::ClusterId;
use downbeat_core::plan::{Plan, Resolved, resolve};
use downbeat_core::run::RunRecord;
use downbeat_core::spec::{Definition, resolve_params};
use downbeat_store::InstanceFacts;

use super::Service;
use crate::caller::Caller;
use crate::error::{Error, Result};
use crate::heavy::{Place, is_heavy, is_heavy_plan};

impl Service {
    /// Creates the plan of a definition, and returns the result of `show`. Starts nothing.
    pub async fn plan<T: Send + 'static>(
        &self,
        caller: &Caller,
        definition: Definition,
        params: &Params,
        show: impl FnOnce(Plan) -> T + Send + 'static,
    ) -> Result<T> {
        self.catch_up().await?;
        let params = resolve_params(&definition, params).map_err(Error::Params)?;
        let cluster = self.cluster(caller, definition.cluster.as_deref()).await?;
        self.compile(cluster, Arc::new(definition), &params, show).await
    }

    /// Creates the plan of a stored run again, and returns the result of `show`.
    pub async fn plan_of<T: Send + 'static>(
        &self,
        run: RunRecord,
        show: impl FnOnce(Plan) -> T + Send + 'static,
    ) -> Result<T> {
        let definition = Arc::clone(&run.definition);
        let nodes = run.resolved.nodes.len();
        let make = move || {
            let plan = Plan::compile(Arc::clone(&run.definition), Arc::clone(&run.resolved));
            let again =
                |error| Error::Bug(format!("cannot compile the plan of run `{}` again: {error}", run.id));
            Ok(show(plan.map_err(again)?))
        };
        self.by_size(&definition, nodes, make).await
    }

    /// Returns the backends that a definition may name: built-in ones, and those that nodes declare.
    pub fn catalogue(&self, cluster: ClusterId) -> Arc<Catalogue> {
        self.parts.dispatcher.board().catalogue(cluster)
    }

    /// Returns the run's nodes that are stale, offline or deleted now, by hostname, each with the
    /// consequence for its steps.
    pub fn silent_nodes(&self, resolved: &Resolved) -> Vec<NodeReason> {
        let board = self.parts.dispatcher.board();
        let silent = resolved.silent_nodes(|id| board.node(id).map(|node| node.status));
        silent.into_iter().map(NodeReason::from).collect()
    }

    /// Creates a plan, and returns the result of `show`.
    pub(crate) async fn compile<T: Send + 'static>(
        &self,
        cluster: ClusterId,
        definition: Arc<Definition>,
        params: &Params,
        show: impl FnOnce(Plan) -> T + Send + 'static,
    ) -> Result<T> {
        let targeted = definition.target.is_some()
            || definition.tasks.iter().any(|entry| entry.leaves().iter().any(|task| task.target.is_some()));
        let nodes = if targeted { self.known_nodes(Some(cluster)) } else { Vec::new() };
        let (on, params) = (nodes.len(), params.clone());
        let sized = Arc::clone(&definition);
        let make = move || {
            let resolved = Arc::new(resolve(&definition, &params, &nodes)?);
            Ok(show(Plan::compile(definition, resolved)?))
        };
        self.by_size(&sized, on, make).await
    }

    /// Returns the facts about all instances of a run, and a place for the work on them. It waits for the place first:
    /// the facts of a large run take much memory.
    pub(crate) async fn instance_facts(&self, run: &RunRecord) -> Result<(Vec<InstanceFacts>, ViewPlace)> {
        let counts = self.parts.counted.of(self.views().as_ref(), run).await?;
        let place = match is_heavy(counts.iter().map(|count| count.total).sum()) {
            true => Some(self.parts.large_views.place().await?),
            false => None,
        };
        Ok((self.views().instance_facts(&run.id).await?, ViewPlace(place)))
    }

    /// Creates a large plan as heavy work, where it waits for a free slot and does not delay others.
    /// Creates a small plan here: the hand-over would cost more.
    pub(super) async fn by_size<T: Send + 'static>(
        &self,
        definition: &Definition,
        nodes: usize,
        make: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if is_heavy_plan(definition, nodes) { self.parts.heavy.run(make).await? } else { make() }
    }
}

/// Where a view is made: here if it is small, otherwise as heavy work.
#[derive(Debug)]
pub(crate) struct ViewPlace(Option<Place>);

impl ViewPlace {
    pub(crate) async fn make<T: Send + 'static>(
        self,
        make: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        match self.0 {
            Some(place) => place.run(make).await,
            None => Ok(make()),
        }
    }
}
