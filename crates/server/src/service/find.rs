//! Finds the run, execution, node or cluster that a request names. Data of a found object is read from the store.

use std::str::FromStr;

use downbeat_core::execution::Execution;
use downbeat_core::ids::{ClusterId, ExecutionId, NodeId, RunId};
use downbeat_core::node::NodeRecord;
use downbeat_core::run::RunRecord;
use downbeat_core::shown::shown;

use super::Service;
use crate::caller::Caller;
use crate::error::{Conflict, Error, Noun};

impl Service {
    pub async fn run(&self, _caller: &Caller, id: &RunId) -> Result<RunRecord, Error> {
        Ok(self.parts.store.run(id).await?.ok_or_else(|| Noun::Run(id.clone()))?)
    }

    /// Returns the run, if it has not ended.
    pub(super) async fn open_run(&self, caller: &Caller, id: &RunId) -> Result<RunRecord, Error> {
        let run = self.run(caller, id).await?;
        if run.live.is_ended() {
            return Err(Conflict::RunEnded(run.id.clone(), run.state()).into());
        }
        Ok(run)
    }

    pub async fn execution(&self, _caller: &Caller, id: &str) -> Result<Execution, Error> {
        let missing = || Noun::Execution(id.to_owned());
        let parsed = ExecutionId::from_str(id).map_err(|_| missing())?;
        Ok(self.parts.store.execution(parsed).await?.ok_or_else(missing)?)
    }

    /// Returns the cluster with this name or id; without a name, the default cluster.
    pub async fn cluster(&self, _caller: &Caller, name_or_id: Option<&str>) -> Result<ClusterId, Error> {
        let Some(name) = name_or_id else { return Ok(ClusterId::DEFAULT) };
        Ok(self.parts.store.cluster(name).await?.ok_or_else(|| Noun::Cluster(name.to_owned()))?)
    }

    /// Returns the node with this id, or with this hostname in a cluster.
    pub async fn node(
        &self,
        caller: &Caller,
        name_or_id: &str,
        cluster: Option<&str>,
    ) -> Result<NodeRecord, Error> {
        let id = self.node_id(caller, name_or_id, cluster).await?;
        if let Some(node) = self.parts.store.node(id).await? {
            return Ok(node);
        }
        let nodes = self.parts.store.nodes(Some(self.cluster(caller, cluster).await?)).await?;
        let mut known: Vec<String> = nodes.iter().map(|node| shown(&node.description.hostname)).collect();
        known.sort_unstable();
        Err(Noun::Node(name_or_id.to_owned(), known).into())
    }

    /// Returns the id that a node has or would have; the node need not exist.
    pub async fn node_id(
        &self,
        caller: &Caller,
        name_or_id: &str,
        cluster: Option<&str>,
    ) -> Result<NodeId, Error> {
        match NodeId::from_str(name_or_id) {
            Ok(id) => Ok(id),
            Err(_) => Ok(NodeId::derive(self.cluster(caller, cluster).await?, name_or_id)),
        }
    }
}
