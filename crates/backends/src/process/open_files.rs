//! Owns how many files the agent and its children may have open. A process costs the agent a few (two pipes, its pidfd),
//! and what a shell allows a program by default is too little for many of them. Children get back what the agent was
//! given: some programs close every file that they might have.

use std::sync::OnceLock;

pub use downbeat_spawn::OpenFiles;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Files of one process, with its outputs and what follows its end.
const FILES_PER_SLOT: u64 = 5;
/// Connections, the outbox, the runtime, what backends open.
const OTHER_FILES: u64 = 128;

static GIVEN: OnceLock<OpenFiles> = OnceLock::new();

/// Allows this process as many as the system lets it allow itself. Returns how many that is.
pub fn raise_open_files() -> nix::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    // Only the first call sees what was given.
    GIVEN.get_or_init(|| OpenFiles { soft, hard });
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(hard)
}

/// The limit that children are to have. Nothing: this process did not change its own.
pub fn open_files_of_children() -> Option<OpenFiles> {
    GIVEN.get().copied()
}

/// How many placed executions so many files are enough for; at least one.
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
