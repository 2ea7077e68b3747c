//! Owns the host's facilities for starting and finding processes.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::cgroup::{Cgroup, Groups};
use super::procfs::Proc;
use crate::backend::Identity;

/// Groups that daemons keep are checked again after this many of them, or after this time.
const TIDY_AFTER: u32 = 64;
const TIDY_EVERY: Duration = Duration::from_secs(3600);

/// How processes are started on this host. Tests disable some of it.
#[derive(Debug)]
pub struct Means {
    pub(super) groups: Option<Groups>,
    /// The groups of an earlier run of the agent.
    former: Option<Groups>,
    /// Processes can be started in a group. False once the kernel, or a filter, has refused.
    births: AtomicBool,
    /// Processes can be started by `downbeat_spawn`.
    pub(super) clone: bool,
    pub(super) proc: Proc,
    /// Groups that were not empty when their execution ended, since the last check.
    left: AtomicU32,
    tidied: Mutex<Instant>,
}

impl Means {
    pub fn found() -> Self {
        let groups = Groups::found();
        let births = groups.as_ref().is_some_and(Groups::take_births);
        Self {
            groups,
            former: None,
            births: AtomicBool::new(births),
            clone: downbeat_spawn::is_supported(),
            proc: Proc::default(),
            left: AtomicU32::new(0),
            tidied: Mutex::new(Instant::now()),
        }
    }

    /// As with cgroup v1, or a kernel before 5.7: processes are moved into their group if they run for a while.
    #[must_use]
    pub fn without_births(self) -> Self {
        Self { births: AtomicBool::new(false), ..self }
    }

    /// As in a container that cannot write to the hierarchy.
    #[must_use]
    pub fn without_groups(self) -> Self {
        Self { groups: None, former: None, ..self }.without_births()
    }

    /// As with a kernel before 5.4, or on another processor: the standard library starts processes.
    #[must_use]
    pub fn without_clone(self) -> Self {
        Self { clone: false, ..self }.without_births()
    }

    /// Also searches groups of an earlier run in the directory that it recorded.
    pub(super) fn with_former_groups(self, noted: Option<&str>) -> Self {
        let noted = noted.map(|noted| Path::new(noted.trim())).filter(|noted| noted.is_absolute());
        Self { former: noted.map(Groups::at), ..self }
    }

    /// Returns the group that an earlier run created.
    pub(super) fn find_group(&self, identity: Identity) -> Option<Cgroup> {
        [&self.groups, &self.former].into_iter().flatten().find_map(|groups| groups.find(identity))
    }

    #[cfg(test)]
    pub(super) fn with_proc(self, proc: Proc) -> Self {
        Self { proc, ..self }
    }

    /// Creates a group to start a process in.
    pub(super) fn group_to_be_born_in(&self, identity: Identity) -> Option<Cgroup> {
        if !self.clone || !self.births.load(Ordering::Relaxed) {
            return None;
        }
        let created = self.groups.as_ref()?.create(identity);
        let log = |error: &_| tracing::debug!(execution = %identity, %error, "cannot create a control group");
        created.inspect_err(log).ok()
    }

    /// Notes that the kernel cannot start processes in a group.
    pub(super) fn no_births(&self, error: &downbeat_spawn::Error) {
        if self.births.swap(false, Ordering::Relaxed) {
            tracing::warn!(%error, "processes cannot start inside a control group; moving them into one if they run for a while");
        }
    }

    /// Removes the group of an execution that ended, unless a daemon keeps it.
    pub(super) fn release(&self, group: Option<&Cgroup>) {
        if group.is_some_and(|group| group.remove().is_err()) {
            self.left.fetch_add(1, Ordering::Relaxed);
        }
        let left = self.left.load(Ordering::Relaxed);
        if left == 0 {
            return;
        }
        let mut tidied = self.tidied.lock();
        if is_tidy_due(left, tidied.elapsed())
            && let Some(groups) = self.groups.clone()
        {
            *tidied = Instant::now();
            self.left.store(0, Ordering::Relaxed);
            tokio::task::spawn_blocking(move || groups.tidy());
        }
    }
}

fn is_tidy_due(left: u32, since: Duration) -> bool {
    left >= TIDY_AFTER || (left > 0 && since >= TIDY_EVERY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_daemons_kept_are_looked_at_hourly_and_when_there_are_many() {
        let minute = Duration::from_secs(60);
        assert!(!is_tidy_due(0, TIDY_EVERY * 2));
        assert!(!is_tidy_due(1, minute));
        assert!(is_tidy_due(1, TIDY_EVERY));
        assert!(is_tidy_due(TIDY_AFTER, minute));
    }
}
