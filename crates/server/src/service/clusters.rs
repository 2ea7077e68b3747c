//! Creates, edits and deletes clusters: reads the record, applies a pure edit, commits it, and repeats that if another edit
//! was faster.

use std::collections::BTreeSet;
use std::sync::Arc;

use downbeat_core::cluster::ClusterRecord;
use downbeat_core::ids::{ClusterId, NodeId, RunId, TaskId};
use downbeat_core::portion::json_bytes;
use downbeat_core::run::RunRecord;
use downbeat_core::standing::edit::{self, Edited, Settings};
use downbeat_core::standing::{RerunScope, StandingTask, Walks};
use downbeat_core::{Applied, Change, Refusal, Timestamp, level, limits};
use downbeat_store::StandingKey;
use uuid::Uuid;

use super::Service;
use super::patience::{PATIENCE, read_in_time};
use crate::caller::Caller;
use crate::error::{Conflict, Error, Noun, Result};

/// How often an edit is repeated when others are faster.
const TRIES: usize = 20;
/// With more deleted tasks than this, an edit forgets those of which no execution is left. Until then they cost little.
const DELETED_FEW: usize = 20;
/// How many reads an edit makes to find them.
const DELETED_READS: usize = 10;
/// With more resets than this, a further one drops those that have been met, and the time of the registration is shown instead:
/// a script that resets all nodes of a large cluster, one by one, would make the list longer with each.
const RESETS_SHOWN: usize = 200;
/// How many names an error about an unknown cluster considers.
const NAMES: usize = 100;

impl Service {
    /// Returns the cluster with this name or id.
    pub async fn cluster_record(&self, _caller: &Caller, name_or_id: &str) -> Result<Arc<ClusterRecord>> {
        let standing = &self.parts.standing;
        if let Some(found) = standing.cluster(name_or_id) {
            return Ok(found);
        }
        // Another server may have created it just now.
        self.catch_up().await?;
        standing.cluster(name_or_id).ok_or_else(|| self.no_cluster(name_or_id).into())
    }

    /// Returns the name of a cluster, or its id if it is not known.
    pub(crate) fn cluster_name(&self, id: ClusterId) -> String {
        self.parts.standing.cluster_by_id(id).map_or_else(|| id.to_string(), |cluster| cluster.name.clone())
    }

    pub(crate) fn no_cluster(&self, name_or_id: &str) -> Noun {
        let known = self.parts.standing.clusters();
        let names = known.iter().take(NAMES).map(|cluster| cluster.name.clone()).collect();
        Noun::Cluster(name_or_id.to_owned(), names)
    }

    /// Returns a standing task that is not deleted, with its cluster.
    pub(crate) async fn standing_task(
        &self,
        _caller: &Caller,
        id: &str,
    ) -> Result<(Arc<ClusterRecord>, StandingTask)> {
        let missing = || Noun::StandingTask(id.to_owned());
        let task: TaskId = id.parse().map_err(|_| missing())?;
        if let Some(found) = self.parts.standing.task(task) {
            return Ok(found);
        }
        self.catch_up().await?;
        Ok(self.parts.standing.task(task).ok_or_else(missing)?)
    }

    /// Returns a standing task with its cluster, also if it is deleted and some of its executions are left.
    pub(crate) async fn any_standing_task(
        &self,
        caller: &Caller,
        id: &str,
    ) -> Result<(Arc<ClusterRecord>, StandingTask)> {
        match self.standing_task(caller, id).await {
            Err(Error::NoSuch(missing)) => {
                let deleted = id.parse::<TaskId>().ok().and_then(|id| {
                    self.parts.standing.clusters().into_iter().find_map(|cluster| {
                        let task = cluster.list.deleted.iter().find(|task| task.id == id)?.clone();
                        Some((cluster, task))
                    })
                });
                Ok(deleted.ok_or(missing)?)
            }
            found => found,
        }
    }

    pub async fn create_cluster(&self, caller: &Caller, settings: Settings) -> Result<Arc<ClusterRecord>> {
        self.check_clusters()?;
        let at = self.now();
        let id = ClusterId(self.parts.chance.dice().uuid_at(at));
        let cluster = edit::create(id, settings, at)?;
        let change = Change::ClusterCreated { cluster: cluster.clone(), by: caller.name().to_owned(), at };
        self.commit_one(change).await?.map_err(|refusal| self.refused(&cluster, refusal))?;
        Ok(Arc::new(cluster))
    }

    /// Edits a cluster. `make` gets the record and the time of the edit, and returns the versions to commit, each made from
    /// the one before; it is called again if another edit was faster. Returns the record after the edit.
    pub async fn edit_cluster<T>(
        &self,
        caller: &Caller,
        id: ClusterId,
        mut make: impl FnMut(&ClusterRecord, Timestamp) -> Result<(Vec<Edited>, T)>,
    ) -> Result<(Arc<ClusterRecord>, T)> {
        self.check_clusters()?;
        self.catch_up().await?;
        let turn = self.parts.standing.turn(id).ok_or_else(|| self.no_cluster(&id.to_string()))?;
        let Ok(_turn) = tokio::time::timeout(PATIENCE, turn.lock()).await else {
            let name = self.cluster_name(id);
            return Err(Conflict::ClusterBusy(name).into());
        };
        let forgotten = self.forgotten_tasks(id).await?;
        let mut last = None;
        for _ in 0..TRIES {
            let cluster = self.parts.standing.cluster_by_id(id);
            let cluster = cluster.ok_or_else(|| self.no_cluster(&id.to_string()))?;
            let at = self.now().max(cluster.updated_at);
            let before = edit::without_deleted(&cluster, &forgotten);
            let (edits, answer) = make(&before, at)?;
            let Some(next) = edits.last().filter(|edited| edited.is_change(&before)) else {
                return Ok((cluster, answer));
            };
            let next = Arc::new(next.cluster.clone());
            match self.commit_edits(caller, &cluster, edits, at).await? {
                Ok(()) => return Ok((next, answer)),
                Err(Refusal::StaleVersion) => last = Some(cluster),
                Err(refusal) => return Err(self.refused(&next, refusal)),
            }
            self.catch_up().await?;
        }
        let name = last.map(|cluster| cluster.name.clone()).unwrap_or_default();
        Err(Conflict::ClusterBusy(name).into())
    }

    /// Returns the numbers of deleted tasks of which no execution is left, as far as some reads show: since their deletion
    /// none was created. Each version of the list would contain them.
    async fn forgotten_tasks(&self, cluster: ClusterId) -> Result<Vec<u32>> {
        let record = self.parts.standing.cluster_by_id(cluster);
        let deleted = record.iter().flat_map(|record| &record.list.deleted);
        let mut numbers: BTreeSet<u32> = deleted.map(|task| task.number).collect();
        if numbers.len() <= DELETED_FEW {
            return Ok(Vec::new());
        }
        let run = RunId::standing(cluster);
        let mut forgotten = Vec::new();
        for _ in 0..DELETED_READS {
            let Some(&step) = numbers.first() else { break };
            let after = StandingKey { run: run.clone(), step, node: NodeId(Uuid::nil()) };
            let reading =
                async { Ok(self.parts.store.standing_results(Some(cluster), Some(&after), 1).await?) };
            // The next task that has executions, whether it is deleted or not.
            let next = read_in_time(reading).await?.first().map(|result| result.step);
            let rest = next.map(|next| numbers.split_off(&next)).unwrap_or_default();
            forgotten.extend(std::mem::replace(&mut numbers, rest));
            numbers.retain(|number| Some(*number) != next);
        }
        Ok(forgotten)
    }

    /// Commits new versions of a cluster, with the run of its standing tasks if it has none yet.
    async fn commit_edits(
        &self,
        caller: &Caller,
        cluster: &ClusterRecord,
        edits: Vec<Edited>,
        at: Timestamp,
    ) -> Result<Applied> {
        let has_tasks = edits.iter().any(|edited| !edited.cluster.list.tasks.is_empty());
        let has_run = self.parts.standing.with_walks(cluster.id, |walks| walks.owner().is_some());
        let mut changes = Vec::with_capacity(edits.len() + 1);
        changes.extend(edits.into_iter().map(|Edited { cluster, edit }| Change::ClusterChanged {
            cluster,
            edit,
            by: caller.name().to_owned(),
            at,
        }));
        let count = changes.len();
        if has_tasks && has_run != Some(true) {
            let run = RunRecord::standing(cluster.id, self.parts.server, at);
            changes.push(Change::RunCreated { run, max_pending: None, max_open: None, firing: None });
        }
        let outcomes = self.commit(changes).await?;
        Ok(outcomes.into_iter().take(count).collect())
    }

    pub async fn delete_cluster(&self, caller: &Caller, cluster: &ClusterRecord) -> Result<()> {
        self.check_clusters()?;
        if cluster.id == ClusterId::DEFAULT {
            return Err(Conflict::DefaultCluster.into());
        }
        let (name, by, at) = (cluster.name.clone(), caller.name().to_owned(), self.now());
        let change = Change::ClusterDeleted { cluster: cluster.id, name, by, at };
        self.commit_one(change).await?.map_err(|refusal| self.refused(cluster, refusal))?;
        Ok(())
    }

    /// Asks for a standing task to be done again, on all nodes of the scopes. Each is an event with the whole list: if the
    /// list is large, they are several commits, and a failure in between leaves the rest undone.
    pub async fn rerun(
        &self,
        caller: &Caller,
        cluster: ClusterId,
        task: TaskId,
        scopes: &[RerunScope],
    ) -> Result<()> {
        let bytes = self.parts.standing.cluster_by_id(cluster).map_or(0, |cluster| json_bytes(&cluster.list));
        for scopes in scopes.chunks(limits::LISTS_PER_COMMIT_BYTES / bytes.max(1) + 1) {
            let rerun = |cluster: &ClusterRecord, at: Timestamp| -> Result<(Vec<Edited>, ())> {
                let cluster = &edit::without_met(cluster, |node, task, since| {
                    let was_tried = |walks: &Walks| walks.was_tried_since(node, task, since);
                    self.parts.standing.with_walks(cluster.id, was_tried).unwrap_or_default()
                });
                let mut edits: Vec<Edited> = Vec::with_capacity(scopes.len());
                for scope in scopes {
                    let before = edits.last().map_or(cluster, |edited| &edited.cluster);
                    edits.push(edit::rerun(before, task, *scope, |node, at| self.is_covered(node, at), at)?);
                }
                Ok((edits, ()))
            };
            self.edit_cluster(caller, cluster, rerun).await?;
        }
        Ok(())
    }

    /// Makes a node do all standing tasks again.
    pub async fn reset_node(
        &self,
        caller: &Caller,
        cluster: ClusterId,
        node: NodeId,
    ) -> Result<Arc<ClusterRecord>> {
        let reset = |cluster: &ClusterRecord, at: Timestamp| -> Result<(Vec<Edited>, ())> {
            let is_met = |node: NodeId, since: Timestamp| {
                let tried_all = |walks: &Walks| walks.tried_all_since(node, since);
                self.parts.standing.with_walks(cluster.id, tried_all).unwrap_or_default()
            };
            let shorter =
                (cluster.list.resets.len() > RESETS_SHOWN).then(|| edit::without_met_resets(cluster, is_met));
            let cluster = shorter.as_ref().unwrap_or(cluster);
            let edited = edit::reset_node(cluster, node, |node, at| self.is_covered(node, at), at)?;
            Ok((vec![edited], ()))
        };
        Ok(self.edit_cluster(caller, cluster, reset).await?.0)
    }

    /// Returns whether results of a node from before a time do not count anyway: it registered later, or is deleted.
    fn is_covered(&self, node: NodeId, at: Timestamp) -> bool {
        let board = self.parts.dispatcher.board();
        board.node(node).is_none_or(|node| node.kept_since.unwrap_or(node.registered_at) > at)
    }

    /// Refuses while an older server shares the store.
    fn check_clusters(&self) -> Result<()> {
        if self.parts.level.reaches(level::CLUSTERS) {
            return Ok(());
        }
        Err(Error::OlderServer("changes of clusters and standing tasks"))
    }

    fn refused(&self, cluster: &ClusterRecord, refusal: Refusal) -> Error {
        match refusal {
            Refusal::NameInUse(name) => Conflict::ClusterName(name).into(),
            Refusal::TooManyClusters(most) => Conflict::TooManyClusters(most).into(),
            Refusal::NotFound => self.no_cluster(&cluster.name).into(),
            Refusal::NotKnownToAll => {
                Error::Unavailable("an older server has just joined; try again".to_owned())
            }
            other => Error::Bug(format!("the store refused a change of a cluster: {other}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use downbeat_store::MemoryStore;

    use super::*;
    use crate::error::Class;
    use crate::{Settings as ServerSettings, Surroundings, start_within};

    #[tokio::test]
    async fn clusters_are_not_changed_while_an_older_server_is_live() {
        let settings = ServerSettings { name: "one".to_owned(), ..ServerSettings::default() };
        let store = Arc::new(MemoryStore::new());
        let server = start_within(settings, store, Surroundings::default()).await.unwrap();
        let service = server.service();
        service.parts.level.update(level::CLUSTERS - 1);
        let settings = Settings { name: Some("web".to_owned()), ..Settings::default() };
        let refused = service.create_cluster(&Caller::API, settings).await.unwrap_err();
        assert_eq!(refused.class(), Class::Unavailable);
        assert!(refused.to_string().ends_with("upgrade all servers"), "{refused}");
        service.parts.level.update(level::CLUSTERS - 1);
        let default = ClusterRecord::default_cluster();
        let refused = service.delete_cluster(&Caller::API, &default).await.unwrap_err();
        assert_eq!(refused.class(), Class::Unavailable);
    }
}
