//! Owns the classes of placed work: executions that the same nodes fit share one, so that a node is looked at once for
//! thousands of tasks.

use downbeat_core::ids::ClusterId;
use downbeat_core::spec::Placement;
use downbeat_core::work::{Origin, Parent, Work};

/// What the nodes of one class of work must satisfy.
#[derive(Clone, Debug)]
pub(super) struct Class {
    pub cluster: ClusterId,
    pub backend: String,
    pub action: String,
    pub placement: Placement,
    /// Set when the placement counts per run, or the run may have nodes that others do not have.
    pub parent: Option<Parent>,
}

impl Class {
    /// Returns the class of an execution of this work.
    pub(super) fn new(work: &Work, of: &Origin) -> Self {
        Self {
            cluster: work.cluster,
            backend: work.backend.clone(),
            action: work.action.clone(),
            placement: work.placement.clone(),
            parent: work.is_placed_per_parent().then(|| of.parent()),
        }
    }

    /// Writes a text that is the same for executions of one class and of no other.
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
