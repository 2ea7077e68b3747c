//! Owns the limits that processes get: the agent's own as they were before it raised them for itself.

use std::sync::OnceLock;

use downbeat_spawn::OpenFiles;
use nix::sys::resource::{Resource, getrlimit};

static OPEN_FILES: OnceLock<OpenFiles> = OnceLock::new();

/// Remembers how many files this process may have open now: processes that it starts later get the same limit. To be
/// called before the limit is raised. Many programs cannot do with a high one: they close or poll all numbers up to it.
pub fn keep_limits_for_children() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        OPEN_FILES.get_or_init(|| OpenFiles { soft, hard });
    }
}

pub(super) fn open_files() -> Option<OpenFiles> {
    OPEN_FILES.get().copied()
}
