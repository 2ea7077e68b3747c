//! Owns classes. A class is placed work that the same nodes fit, so that one check of a node serves
//! thousands of executions.

use downbeat_core::ids::ClusterId;
use downbeat_core::spec::Placement;
use downbeat_core::work::{Origin, Parent, Work};

/// The requirements on nodes for one class of work.
#[derive(Clone, Debug)]
pub(super) struct Class {
    pub cluster: ClusterId,
    pub backend: String,
    pub action: String,
    pub placement: Placement,
    /// Set if the placement counts per run, or if the run may hold nodes for itself.
    pub parent: Option<Parent>,
}

impl Class {
    pub(super) fn new(work: &Work, of: &Origin) -> Self {
        Self {
            cluster: work.cluster,
            backend: work.backend.clone(),
            action: work.action.clone(),
            placement: work.placement.clone(),
            parent: work.is_placed_per_parent().then(|| of.parent()),
        }
    }

    /// Writes a text that identifies the class.
    pub(super) fn write_text(text: &mut String, work: &Work, of: &Origin) {
        let parent = match of {
            Origin::Step { run, .. } => run.as_str(),
        };
        let counted = if work.is_placed_per_parent() { parent } else { "" };
        for part in [&work.backend, &work.action, counted] {
            text.push('\0');
            text.push_str(part);
        }
        text.push('\0');
        if work.placement != Placement::default() {
            text.push_str(&serde_json::to_string(&work.placement).expect("a placement is plain data"));
        }
    }
}
