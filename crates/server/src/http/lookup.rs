//! Finds what a path names, or says that it does not exist; and the hostnames that go with executions.

use std::collections::BTreeSet;
use std::str::FromStr;

use downbeat_api::Names;
use downbeat_core::execution::Execution;
use downbeat_core::ids::{ClusterId, ExecutionId, NodeId, RunId};
use downbeat_core::node::NodeRecord;
use downbeat_core::run::RunRecord;
use downbeat_core::shown::shown;
use downbeat_store::Store;

use super::problem::{Answer, Failure};

/// Up to this many unknown hostnames are asked for one by one, more with one query for the whole cluster.
const ONE_BY_ONE: usize = 8;

pub(super) async fn run(store: &dyn Store, id: &str) -> Answer<RunRecord> {
    store.run(&RunId::from(id)).await?.ok_or_else(|| Failure::not_found("run", id))
}

pub(super) async fn execution(store: &dyn Store, id: &str) -> Answer<Execution> {
    let missing = || Failure::not_found("execution", id);
    let parsed = ExecutionId::from_str(id).map_err(|_| missing())?;
    store.execution(parsed).await?.ok_or_else(missing)
}

pub(super) async fn cluster(store: &dyn Store, name_or_id: &str) -> Answer<ClusterId> {
    // There is one in this version.
    let missing = || Failure::not_found_among("cluster", name_or_id, &["default"]);
    store.cluster(name_or_id).await?.ok_or_else(missing)
}

/// By id, or by hostname within a cluster (`default` when none is named).
pub(super) async fn node(store: &dyn Store, name_or_id: &str, cluster: Option<&str>) -> Answer<NodeRecord> {
    let id = node_id(store, name_or_id, cluster).await?;
    match store.node(id).await? {
        Some(node) => Ok(node),
        None => Err(no_node(store, name_or_id, cluster).await),
    }
}

/// Names those that are there: the one that was meant is probably among them.
async fn no_node(store: &dyn Store, name_or_id: &str, cluster: Option<&str>) -> Failure {
    let cluster = match cluster {
        Some(name) => self::cluster(store, name).await,
        None => Ok(ClusterId::DEFAULT),
    };
    let nodes = match cluster {
        Ok(cluster) => store.nodes(Some(cluster)).await,
        Err(failure) => return failure,
    };
    match nodes {
        Ok(nodes) => {
            let mut names: Vec<String> = nodes.iter().map(|node| shown(&node.description.hostname)).collect();
            names.sort_unstable();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            Failure::not_found_among("node", name_or_id, &names)
        }
        Err(error) => error.into(),
    }
}

/// The id that a node has or would have; whether it exists is not asked.
pub(super) async fn node_id(store: &dyn Store, name_or_id: &str, cluster: Option<&str>) -> Answer<NodeId> {
    if let Ok(id) = NodeId::from_str(name_or_id) {
        return Ok(id);
    }
    let cluster = match cluster {
        Some(name) => self::cluster(store, name).await?,
        None => ClusterId::DEFAULT,
    };
    Ok(NodeId::derive(cluster, name_or_id))
}

/// Hostnames of a run's nodes: those that it settled on, and those that took its placed executions.
pub(super) async fn names<'a>(
    store: &dyn Store,
    run: &RunRecord,
    executions: impl IntoIterator<Item = &'a Execution>,
) -> Answer<Names> {
    let mut names = Names::of_run(run);
    let nodes = executions.into_iter().filter_map(Execution::node);
    let missing: BTreeSet<NodeId> = nodes.filter(|node| !names.has(*node)).collect();
    if missing.len() <= ONE_BY_ONE {
        for id in missing {
            if let Some(node) = store.node(id).await? {
                names.insert(id, node.description.hostname);
            } else if let Some(deleted) = store.tombstones(Some(id)).await?.pop() {
                names.insert(id, deleted.hostname);
            }
        }
    } else {
        for deleted in store.tombstones(None).await? {
            names.insert(deleted.node, deleted.hostname);
        }
        for node in store.nodes(Some(run.cluster)).await? {
            names.insert(node.id, node.description.hostname);
        }
    }
    Ok(names)
}
