//! Owns the limit of open files of the agent and its children. A process costs the agent a few (two pipes, its pidfd),
//! and the default of a shell is too low for many processes. Children get the agent's original limit: some programs
//! close every file that they might have.

use std::sync::OnceLock;

pub use downbeat_spawn::OpenFiles;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Files of one process: its streams and its pidfd.
const FILES_PER_SLOT: u64 = 5;
/// Connections, the outbox, the runtime, files of backends.
const OTHER_FILES: u64 = 128;

static GIVEN: OnceLock<OpenFiles> = OnceLock::new();

/// Raises this process's limit to the maximum. Returns the new limit.
pub fn raise_open_files() -> nix::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    // Only the first call sees the original limit.
    GIVEN.get_or_init(|| OpenFiles { soft, hard });
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(hard)
}

/// Returns the limit for children; `None` if this process did not change its own.
pub fn open_files_of_children() -> Option<OpenFiles> {
    GIVEN.get().copied()
}

/// Returns the number of placed executions that this many files allow; at least one.
pub fn slots_within(open_files: u64) -> u32 {
    let slots = open_files.saturating_sub(OTHER_FILES) / FILES_PER_SLOT;
    u32::try_from(slots).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_may_open_as_many_as_the_system_allows_and_its_children_what_it_was_given() {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        for _ in 0..2 {
            assert_eq!(raise_open_files(), Ok(hard));
            assert_eq!(getrlimit(Resource::RLIMIT_NOFILE), Ok((hard, hard)));
            assert_eq!(open_files_of_children(), Some(OpenFiles { soft, hard }));
        }
    }

    #[test]
    fn slots_are_bounded_by_open_files() {
        assert_eq!([0, 128, 1_024, u64::MAX].map(slots_within), [1, 1, 179, u32::MAX]);
    }
}
