//! Owns the backends that nodes declare. All nodes of a release declare the same ones, so each schema is
//! stored once and shared: equal schemas are the same pointer, and catalogues compare pointers.

use std::collections::HashSet;
use std::sync::Arc;

use downbeat_core::backend::{BackendSchema, Catalogue};
use downbeat_core::collections::HashMap;
use downbeat_core::ids::ClusterId;
use downbeat_core::node::NodeRecord;

/// Below this number, schemas that no node declares any more are not removed.
const SWEEP_LEAST: usize = 1_024;

/// Every schema that a node declares, by content.
#[derive(Debug, Default)]
pub(super) struct Schemas {
    known: HashSet<Arc<BackendSchema>>,
    /// How many the last sweep kept. The next sweep comes at twice as many, so its cost is spread over the additions.
    kept: usize,
}

impl Schemas {
    pub(super) fn share(&mut self, backends: &mut [Arc<BackendSchema>]) {
        for backend in backends {
            match self.known.get(backend) {
                Some(known) => *backend = Arc::clone(known),
                None => {
                    self.known.insert(Arc::clone(backend));
                }
            }
        }
        if self.known.len() >= SWEEP_LEAST.max(2 * self.kept) {
            self.known.retain(|schema| Arc::strong_count(schema) > 1);
            self.kept = self.known.len();
        }
    }
}

/// The catalogue of each cluster: created on demand, kept until a node declares something else.
#[derive(Debug, Default)]
pub(super) struct Catalogues(HashMap<ClusterId, Made>);

#[derive(Debug)]
struct Made {
    of: Vec<Arc<BackendSchema>>,
    catalogue: Arc<Catalogue>,
}

impl Catalogues {
    /// Drops the catalogue if the node declares something new, or no longer declares something. Both
    /// records have shared schemas.
    pub(super) fn note(&mut self, former: Option<&NodeRecord>, node: &NodeRecord) {
        let Some(made) = self.0.get(&node.cluster) else { return };
        let declared = &node.description.backends;
        let former = former.map_or(&[][..], |former| &former.description.backends);
        if !holds_all(&made.of, declared) || !holds_all(declared, former) {
            self.0.remove(&node.cluster);
        }
    }

    pub(super) fn remove(&mut self, cluster: &ClusterId) {
        self.0.remove(cluster);
    }

    /// Returns the built-in backends and those that these nodes declare.
    pub(super) fn get<'a>(
        &mut self,
        cluster: ClusterId,
        nodes: impl Iterator<Item = &'a NodeRecord>,
    ) -> Arc<Catalogue> {
        let made = self.0.entry(cluster).or_insert_with(|| {
            let mut seen = HashSet::new();
            let backends =
                nodes.filter(|node| node.cluster == cluster).flat_map(|node| &node.description.backends);
            let of: Vec<_> =
                backends.filter(|backend| seen.insert(Arc::as_ptr(backend))).map(Arc::clone).collect();
            let catalogue = Arc::new(Catalogue::builtin().with(&of));
            Made { of, catalogue }
        });
        Arc::clone(&made.catalogue)
    }
}

/// Returns whether the first list holds every schema of the second. Both hold shared schemas.
fn holds_all(list: &[Arc<BackendSchema>], wanted: &[Arc<BackendSchema>]) -> bool {
    wanted.iter().all(|wanted| list.iter().any(|known| Arc::ptr_eq(known, wanted)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_that_no_node_declares_any_more_are_forgotten() {
        let mut schemas = Schemas::default();
        for number in 0..10 * SWEEP_LEAST {
            let (name, help, actions) = (format!("b{number}"), String::new(), Vec::new());
            schemas.share(&mut [Arc::new(BackendSchema { name, help, actions })]);
        }
        assert!(schemas.known.len() <= SWEEP_LEAST);
    }
}
