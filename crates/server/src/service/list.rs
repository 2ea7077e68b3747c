//! Lists runs, executions, nodes, events and servers.

use downbeat_core::Event;
use downbeat_core::execution::Execution;
use downbeat_core::ids::ClusterId;
use downbeat_core::node::{NodeRecord, Tombstone};
use downbeat_core::run::RunRecord;
use downbeat_store::{EventFilter, ExecutionFilter, Listed, Page, RunFilter, ServerRecord, Tally};

use super::Service;
use crate::caller::Caller;
use crate::error::Error;

impl Service {
    pub async fn runs(
        &self,
        _caller: &Caller,
        filter: &RunFilter,
        page: Page,
    ) -> Result<Listed<RunRecord>, Error> {
        Ok(self.parts.store.runs(filter, page).await?)
    }

    pub async fn executions(
        &self,
        _caller: &Caller,
        filter: &ExecutionFilter,
        page: Page,
    ) -> Result<Listed<Execution>, Error> {
        Ok(self.parts.store.executions(filter, page).await?)
    }

    pub async fn nodes(
        &self,
        _caller: &Caller,
        cluster: Option<ClusterId>,
    ) -> Result<Vec<NodeRecord>, Error> {
        Ok(self.parts.store.nodes(cluster).await?)
    }

    pub async fn deleted_nodes(&self, _caller: &Caller) -> Result<Vec<Tombstone>, Error> {
        Ok(self.parts.store.tombstones(None).await?)
    }

    pub async fn events(
        &self,
        _caller: &Caller,
        filter: &EventFilter,
        most: u32,
    ) -> Result<Vec<Event>, Error> {
        Ok(self.parts.store.events(filter, most).await?)
    }

    /// Returns how many runs, executions and nodes are in each state.
    pub async fn tally(&self, _caller: &Caller) -> Result<Tally, Error> {
        Ok(self.parts.store.tally().await?)
    }

    pub async fn servers(&self, _caller: &Caller) -> Result<Vec<ServerRecord>, Error> {
        Ok(self.parts.store.servers().await?)
    }
}
