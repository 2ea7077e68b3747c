//! Looks up the hostnames that go with executions.

use std::collections::BTreeSet;

use downbeat_api::Names;
use downbeat_core::execution::Execution;
use downbeat_core::ids::NodeId;
use downbeat_core::run::RunRecord;
use downbeat_store::Store;

use super::problem::HttpResult;

/// Up to this many missing hostnames are read one by one; for more, one query reads the whole cluster.
const ONE_BY_ONE: usize = 8;

/// Returns the hostnames of a run's nodes: its targets, and the nodes of its placed executions.
pub(super) async fn names<'a>(
    store: &dyn Store,
    run: &RunRecord,
    executions: impl IntoIterator<Item = &'a Execution>,
) -> HttpResult<Names> {
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
