//! Owns control groups of executions: `downbeat/<execution>.<attempt>` below the agent's own, if the host allows it.
//! They are used to find and kill processes, not to limit them.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::backend::Identity;

/// Levels of nested groups that are read.
const DEPTH: usize = 32;

/// The directory of the groups of all executions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Groups {
    pub(super) dir: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// Processes can only be moved into a group, which takes the kernel some 10 ms each.
    One,
    /// Processes can be started in a group, from Linux 5.7, and killed with it, from 5.14.
    Two,
}

/// A group that an execution's processes cannot leave by forking, whatever session or environment they set up.
#[derive(Debug)]
pub(super) struct Cgroup {
    path: PathBuf,
}

impl Groups {
    /// Returns `None` if no hierarchy is writable. Searched once.
    pub(super) fn found() -> Option<Self> {
        static FOUND: OnceLock<Option<Groups>> = OnceLock::new();
        FOUND.get_or_init(find).clone()
    }

    /// Returns the groups of an earlier run, to find its processes.
    pub(super) fn at(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), version: Version::One }
    }

    /// Returns whether processes can be started in these groups, if the kernel is new enough.
    pub(super) fn take_births(&self) -> bool {
        self.version == Version::Two
    }

    pub(super) fn create(&self, identity: Identity) -> io::Result<Cgroup> {
        let path = self.dir.join(identity.to_string());
        match fs::create_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(Cgroup { path }),
        }
    }

    /// Returns the group that an earlier run created.
    pub(super) fn find(&self, identity: Identity) -> Option<Cgroup> {
        let path = self.dir.join(identity.to_string());
        path.is_dir().then_some(Cgroup { path })
    }

    /// Removes all empty groups. Another agent may just have created one of them: it creates the group again when it is
    /// missing.
    pub(super) fn tidy(&self) {
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let is_ours = entry.file_name().to_str().is_some_and(|name| name.parse::<Identity>().is_ok());
            if is_ours {
                let _ = Cgroup { path: entry.path() }.remove();
            }
        }
    }
}

impl Cgroup {
    /// Opens the group, to start a process in it.
    pub(super) fn open(&self) -> io::Result<File> {
        File::open(&self.path)
    }

    pub(super) fn join(&self, pid: i32) -> io::Result<()> {
        fs::write(self.path.join("cgroup.procs"), pid.to_string())
    }

    pub(super) fn members(&self) -> Vec<i32> {
        let mut members = Vec::new();
        gather(&self.path, DEPTH, &mut members);
        members
    }

    /// Kills all at once, also processes that are forking. Fails on older kernels, where each member has to be killed.
    pub(super) fn kill(&self) -> io::Result<()> {
        fs::write(self.path.join("cgroup.kill"), "1")
    }

    /// Fails while a process is inside: a daemon that the work left behind on purpose keeps its group.
    pub(super) fn remove(&self) -> io::Result<()> {
        match fs::remove_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            // A container engine that the work called may have left groups below.
            Err(_) if self.members().is_empty() => remove_below(&self.path, DEPTH),
            result => result,
        }
    }
}

fn gather(path: &Path, depth: usize, members: &mut Vec<i32>) {
    if let Ok(pids) = fs::read_to_string(path.join("cgroup.procs")) {
        // A process outside of this agent's pid namespace has the number 0, which `kill` would apply to the agent's own
        // process group.
        members.extend(pids.lines().filter_map(|pid| pid.parse::<i32>().ok()).filter(|pid| *pid > 0));
    }
    for below in below(path, depth) {
        gather(&below, depth - 1, members);
    }
}

fn remove_below(path: &Path, depth: usize) -> io::Result<()> {
    for below in below(path, depth) {
        remove_below(&below, depth - 1)?;
    }
    fs::remove_dir(path)
}

fn below(path: &Path, depth: usize) -> impl Iterator<Item = PathBuf> {
    let entries = (depth > 0).then(|| fs::read_dir(path).ok()).flatten().into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path())
}

/// Version 2, then its path on hosts that have both, then a version 1 hierarchy without overhead.
fn find() -> Option<Groups> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let candidates = [
        ("/sys/fs/cgroup", "", "cgroup.controllers", Version::Two),
        ("/sys/fs/cgroup/unified", "", "cgroup.controllers", Version::Two),
        ("/sys/fs/cgroup/pids", "pids", "cgroup.procs", Version::One),
        ("/sys/fs/cgroup/freezer", "freezer", "cgroup.procs", Version::One),
    ];
    candidates.into_iter().find_map(|(root, controller, proof, version)| {
        let root = Path::new(root);
        if !root.join(proof).exists() {
            return None;
        }
        let dir = root.join(own_group(&own, controller)).join("downbeat");
        fs::create_dir_all(&dir).ok()?;
        // A directory that can be created may still not be a usable group: read-only mounts, no delegation.
        let probe = dir.join(format!("probe.{}", std::process::id()));
        fs::create_dir(&probe).ok()?;
        let writable = File::options().write(true).open(probe.join("cgroup.procs")).is_ok();
        let _ = fs::remove_dir(&probe);
        writable.then_some(Groups { dir, version })
    })
}

/// Returns the agent's own group in a hierarchy, relative to its root; the root if it is not visible.
fn own_group<'a>(own: &'a str, controller: &str) -> &'a str {
    let path = own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        (controllers == controller || controllers.split(',').any(|name| name == controller)).then_some(path)
    });
    match path {
        Some(path) if !path.contains("..") => path.trim_start_matches('/'),
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use downbeat_core::ids::ExecutionId;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn the_agents_own_group_is_found_in_each_kind_of_hierarchy() {
        let own = "8:pids,misc:/box\n4:memory:/a/b\n0::/system.slice/downbeat.service\n";
        assert_eq!(own_group(own, ""), "system.slice/downbeat.service");
        assert_eq!(own_group(own, "pids"), "box");
        assert_eq!(own_group(own, "freezer"), "");
        assert_eq!(own_group("0::/../../elsewhere\n", ""), "");
    }

    #[test]
    fn processes_of_another_pid_namespace_are_not_taken_for_the_agents_own_group() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("cgroup.procs"), "0\n12\n0\n").unwrap();
        assert_eq!(Cgroup { path: dir.path().to_owned() }.members(), [12]);
    }

    #[test]
    fn groups_in_which_nothing_runs_are_removed_with_those_below_them_and_others_stay() {
        let Some(groups) = Groups::found() else { return };
        let number = u128::from(std::process::id()) << 32;
        let group = |attempt| {
            let identity = Identity { execution: ExecutionId(Uuid::from_u128(number)), attempt };
            (identity, groups.create(identity).unwrap())
        };
        let ((left, left_group), (busy, busy_group)) = (group(1), group(2));
        fs::create_dir(left_group.path.join("below")).unwrap();
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        busy_group.join(child.id().cast_signed()).unwrap();
        groups.tidy();
        assert!(groups.find(left).is_none());
        assert_eq!(groups.find(busy).unwrap().members(), [child.id().cast_signed()]);
        child.kill().unwrap();
        child.wait().unwrap();
        groups.tidy();
        assert!(groups.find(busy).is_none());
    }
}
