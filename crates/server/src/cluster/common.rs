//! Owns the common level of all live servers: it decides which kinds of changes may be written.
//! `downbeat_core::level` defines levels.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use downbeat_core::{Change, level};

/// The common level; cheap to clone. It is updated with each check of the servers.
///
/// An older server that joins is noticed by the next check. It reads changes of a newer kind that were
/// written before as unknown and ignores them, as after a downgrade.
#[derive(Clone, Debug)]
pub(crate) struct CommonLevel(Arc<AtomicU32>);

impl Default for CommonLevel {
    /// The level before the first check: the one that every server supports.
    fn default() -> Self {
        Self(Arc::new(AtomicU32::new(level::FIRST)))
    }
}

impl CommonLevel {
    pub(crate) fn update(&self, common: u32) {
        let before = self.0.swap(common, Ordering::AcqRel);
        if before != common {
            tracing::info!(before, common, "the common level of all live servers has changed");
        }
    }

    pub(crate) fn get(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Returns whether every live server supports a level.
    pub(crate) fn reaches(&self, level: u32) -> bool {
        self.get() >= level
    }

    pub(crate) fn allows(&self, change: &Change) -> bool {
        self.reaches(change.level())
    }
}
