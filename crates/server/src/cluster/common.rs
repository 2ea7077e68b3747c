//! Owns what this server knows of the level that all living servers have in common: which kinds of changes may be
//! written. What levels mean is `downbeat_core::level`'s.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use downbeat_core::{Change, level};

/// Looked at anew with each sign of life; cheap to clone.
///
/// An older server that joins is heard of with the next look. What was written of a new kind until then it reads as
/// unknown and performs nothing of it, as after a downgrade.
#[derive(Clone, Debug)]
pub(crate) struct CommonLevel(Arc<AtomicU32>);

impl Default for CommonLevel {
    /// Until it has looked: what every server knows.
    fn default() -> Self {
        Self(Arc::new(AtomicU32::new(level::FIRST)))
    }
}

impl CommonLevel {
    pub(crate) fn update(&self, common: u32) {
        let before = self.0.swap(common, Ordering::AcqRel);
        if before != common {
            tracing::info!(before, common, "the level that all living servers have in common is another");
        }
    }

    /// Whether every living server knows what came with a level.
    pub(crate) fn reaches(&self, level: u32) -> bool {
        self.0.load(Ordering::Acquire) >= level
    }

    pub(crate) fn allows(&self, change: &Change) -> bool {
        level::allows(self.0.load(Ordering::Acquire), change)
    }
}
