//! Applies changes to clusters.

use super::tables::Tables;
use crate::change::{Applied, Refusal};
use crate::cluster::ClusterRecord;
use crate::ids::{ClusterId, RunId};
use crate::limits;

/// The part of a cluster that guards read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterLive {
    pub name: String,
    pub version: u64,
}

impl ClusterLive {
    pub fn of(cluster: &ClusterRecord) -> Self {
        Self { name: cluster.name.clone(), version: cluster.version }
    }
}

impl Tables {
    pub(super) fn create_cluster(&mut self, cluster: &ClusterRecord) -> Applied {
        if self.clusters.contains_key(&cluster.id) {
            return Err(Refusal::WrongState);
        }
        self.is_name_free(cluster)?;
        if self.clusters.len() >= limits::CLUSTERS && !self.is_copy {
            return Err(Refusal::TooManyClusters(self.clusters.len()));
        }
        self.clusters.insert(cluster.id, ClusterLive::of(cluster));
        Ok(())
    }

    pub(super) fn change_cluster(&mut self, cluster: &ClusterRecord) -> Applied {
        let stored = self.clusters.get(&cluster.id).ok_or(Refusal::NotFound)?;
        if stored.version + 1 != cluster.version {
            return Err(Refusal::StaleVersion);
        }
        self.is_name_free(cluster)?;
        self.clusters.insert(cluster.id, ClusterLive::of(cluster));
        Ok(())
    }

    pub(super) fn delete_cluster(&mut self, cluster: ClusterId) -> Applied {
        if cluster == ClusterId::DEFAULT {
            return Err(Refusal::WrongState);
        }
        // A copy may get only the event of the deletion: the others are removed some time after it.
        let was_found = self.clusters.remove(&cluster).is_some() || self.is_copy;
        was_found.then_some(()).ok_or(Refusal::NotFound)
    }

    /// Refuses a name that another cluster has.
    fn is_name_free(&self, cluster: &ClusterRecord) -> Applied {
        let has_name =
            |(id, other): (&ClusterId, &ClusterLive)| *id != cluster.id && other.name == cluster.name;
        if self.clusters.iter().any(has_name) {
            return Err(Refusal::NameInUse(cluster.name.clone()));
        }
        Ok(())
    }

    /// Refuses if the cluster of a run has another version than this one.
    pub(super) fn has_version(&self, run: &RunId, version: Option<u64>) -> Applied {
        let Some(version) = version.filter(|_| !self.is_copy) else { return Ok(()) };
        let cluster = self.homes.get(run).and_then(|home| self.clusters.get(&home.cluster));
        match cluster {
            None => Err(Refusal::NotFound),
            Some(cluster) if cluster.version != version => Err(Refusal::StaleVersion),
            Some(_) => Ok(()),
        }
    }
}
