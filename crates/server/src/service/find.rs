//! Finds the run, execution, node or cluster that a request names, and lists them. Data of a found object is
//! read from the store.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::Arc;

use downbeat_api::Names;
use downbeat_core::execution::Execution;
use downbeat_core::ids::{ClusterId, ExecutionId, NodeId, RunId};
use downbeat_core::node::{NodeRecord, Tombstone};
use downbeat_core::portion::json_bytes;
use downbeat_core::run::{RunBrief, RunRecord};
use downbeat_core::shown::shown;
use downbeat_core::{Event, Portion, limits};
use downbeat_store::{
    EventFilter, ExecutionFilter, Listed, Page, Position, RunFilter, RunKey, ServerRecord, Tally, Volume,
};

use super::Service;
use crate::caller::Caller;
use crate::error::{Conflict, Noun, Result};

/// Up to this many hostnames that the board does not know are read one by one; for more, one query reads the nodes that were
/// deleted last, and only the others are.
const ONE_BY_ONE: usize = 8;

/// Refuses the runs of standing tasks. No request reads or changes one: a cluster whose run was cancelled or paused would
/// never do a standing task again.
pub(super) fn check_shown(run: &RunId) -> Result<()> {
    if run.is_standing() { Err(Noun::Run(run.clone()).into()) } else { Ok(()) }
}

impl Service {
    /// Returns a run. The runs of standing tasks are not shown.
    pub async fn run(&self, _caller: &Caller, id: &RunId) -> Result<RunRecord> {
        check_shown(id)?;
        let missing = || Noun::Run(id.clone());
        let run = self.parts.views.run(id).await?.ok_or_else(missing)?;
        // The rows of a deleted cluster are there for a while.
        if self.has_cluster(run.cluster).await? { Ok(run) } else { Err(missing().into()) }
    }

    /// Returns whether a cluster exists. The store is asked only about those that this server does not know (yet).
    pub(crate) async fn has_cluster(&self, cluster: ClusterId) -> Result<bool> {
        Ok(self.parts.standing.cluster_by_id(cluster).is_some()
            || self.parts.views.cluster(&cluster.to_string()).await?.is_some())
    }

    pub(super) async fn open_run(&self, caller: &Caller, id: &RunId) -> Result<RunRecord> {
        let run = self.run(caller, id).await?;
        if run.live.is_ended() {
            return Err(Conflict::RunEnded(run.id.clone(), run.state()).into());
        }
        Ok(run)
    }

    pub async fn execution(&self, _caller: &Caller, id: &str) -> Result<Execution> {
        let missing = || Noun::Execution(id.to_owned());
        let parsed = ExecutionId::from_str(id).map_err(|_| missing())?;
        Ok(self.parts.views.execution(parsed).await?.ok_or_else(missing)?)
    }

    /// Returns the cluster with this name or id; without a name, the default cluster.
    pub async fn cluster(&self, _caller: &Caller, name_or_id: Option<&str>) -> Result<ClusterId> {
        let Some(name) = name_or_id else { return Ok(ClusterId::DEFAULT) };
        Ok(self.parts.views.cluster(name).await?.ok_or_else(|| self.no_cluster(name))?)
    }

    /// Returns the node with this id, or with this hostname in a cluster.
    pub async fn node(&self, caller: &Caller, name_or_id: &str, cluster: Option<&str>) -> Result<NodeRecord> {
        let id = self.node_id(caller, name_or_id, cluster).await?;
        if let Some(node) = self.parts.views.node(id).await? {
            return Ok(node);
        }
        let nodes = self.known_nodes(Some(self.cluster(caller, cluster).await?));
        let mut known: Vec<String> = nodes.iter().map(|node| shown(&node.description.hostname)).collect();
        known.sort_unstable();
        Err(Noun::Node(name_or_id.to_owned(), known).into())
    }

    /// Returns the id that a node has or would have; the node need not exist.
    pub async fn node_id(&self, caller: &Caller, name_or_id: &str, cluster: Option<&str>) -> Result<NodeId> {
        let id = NodeId::from_str(name_or_id).ok();
        let is_known = |id: NodeId| self.parts.dispatcher.board().node(id).is_some();
        if let Some(id) = id.filter(|id| is_known(*id)) {
            return Ok(id);
        }
        // A hostname may look like an id.
        let named = NodeId::derive(self.cluster(caller, cluster).await?, name_or_id);
        Ok(id.filter(|_| !is_known(named)).unwrap_or(named))
    }

    pub async fn runs(
        &self,
        _caller: &Caller,
        filter: &RunFilter,
        page: &Page<RunKey>,
    ) -> Result<Listed<RunBrief, RunKey>> {
        Ok(self.parts.views.runs(filter, page).await?)
    }

    /// Returns a page of executions. A page with large executions has fewer rows than its limit: it is read in steps,
    /// each as long as the rows before it suggest.
    pub async fn executions(
        &self,
        _caller: &Caller,
        filter: &ExecutionFilter,
        page: &Page<ExecutionId>,
    ) -> Result<Listed<Execution, ExecutionId>> {
        let portion = Portion::new(page.limit as usize, limits::PAGE_BYTES);
        let mut step = Page { limit: page.limit.min(limits::PAGE_DEFAULT), start: page.start.clone() };
        let mut found = self.parts.views.executions(filter, &step).await?;
        let mut sizes: Vec<usize> = found.rows.iter().map(json_bytes).collect();
        let mut is_full = sizes.len() == step.limit as usize;
        while is_full && let Some(start) = found.next.clone() {
            let (rows, bytes) = (sizes.len(), sizes.iter().sum::<usize>());
            let fitting = portion.bytes.saturating_sub(bytes) / (bytes / rows).max(1);
            let limit = fitting.min(portion.rows - rows);
            if limit == 0 {
                break;
            }
            step = Page { limit: u32::try_from(limit).unwrap_or(page.limit), start };
            let more = self.parts.views.executions(filter, &step).await?;
            is_full = more.rows.len() == limit;
            sizes.extend(more.rows.iter().map(json_bytes));
            found.rows.extend(more.rows);
            found.next = more.next;
        }
        let fitting = portion.fitting(sizes);
        if fitting < found.rows.len() {
            found.rows.truncate(fitting);
            found.next = found.rows.last().map(|last| Position::after(last.id));
        }
        Ok(found)
    }

    /// Returns the nodes of a cluster (or of all) from the board, in no order. Only the store knows when each was last
    /// seen.
    pub(crate) fn known_nodes(&self, cluster: Option<ClusterId>) -> Vec<Arc<NodeRecord>> {
        let board = self.parts.dispatcher.board();
        board.nodes().filter(|node| cluster.is_none_or(|cluster| node.cluster == cluster)).cloned().collect()
    }

    /// Returns the latest deletions of nodes: as many as one request may read.
    pub async fn deleted_nodes(&self, _caller: &Caller) -> Result<Vec<Tombstone>> {
        Ok(self.parts.views.latest_tombstones(limits::ROWS_READ).await?)
    }

    pub async fn events(
        &self,
        _caller: &Caller,
        filter: &EventFilter,
        portion: Portion,
    ) -> Result<Vec<Event>> {
        Ok(self.parts.views.events(filter, portion).await?)
    }

    /// Returns how many runs, executions and nodes are in each state.
    pub async fn tally(&self, _caller: &Caller) -> Result<Tally> {
        Ok(self.parts.views.tally().await?)
    }

    pub(crate) async fn volume(&self, _caller: &Caller) -> Result<Volume> {
        Ok(self.parts.views.volume().await?)
    }

    pub async fn servers(&self, _caller: &Caller) -> Result<Vec<ServerRecord>> {
        Ok(self.parts.views.servers().await?)
    }

    /// Returns the hostnames of a run's nodes: its targets, and the nodes of its placed executions.
    pub(crate) async fn names<'a>(
        &self,
        run: &RunRecord,
        executions: impl IntoIterator<Item = &'a Execution>,
    ) -> Result<Names> {
        self.names_of(run, executions.into_iter().filter_map(Execution::node).collect()).await
    }

    /// Returns the hostnames of a run's targets and of other nodes.
    pub(crate) async fn names_of(&self, run: &RunRecord, nodes: BTreeSet<NodeId>) -> Result<Names> {
        self.complete_names(Names::of_run(run), nodes).await
    }

    /// Returns the hostnames of nodes.
    pub(crate) async fn names_of_nodes(&self, nodes: BTreeSet<NodeId>) -> Result<Names> {
        self.complete_names(Names::default(), nodes).await
    }

    async fn complete_names(&self, mut names: Names, nodes: BTreeSet<NodeId>) -> Result<Names> {
        let store = &self.parts.views;
        let mut missing = nodes;
        missing.retain(|node| !names.has(*node));
        {
            let board = self.parts.dispatcher.board();
            missing.retain(|id| match board.node(*id) {
                Some(node) => {
                    names.insert(*id, node.description.hostname.clone());
                    false
                }
                None => true,
            });
        }
        if missing.len() > ONE_BY_ONE {
            for deleted in store.latest_tombstones(limits::ROWS_READ).await? {
                if missing.remove(&deleted.node) {
                    names.insert(deleted.node, deleted.hostname);
                }
            }
        }
        for id in missing {
            if let Some(deleted) = store.tombstones(Some(id)).await?.pop() {
                names.insert(id, deleted.hostname);
            } else if let Some(node) = store.node(id).await? {
                names.insert(id, node.description.hostname);
            }
        }
        Ok(names)
    }
}
