//! Owns control groups of executions: `downbeat/<execution>.<attempt>` below the agent's own, where the host lets it.
//! They only find and kill; they limit nothing.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::backend::Identity;

/// A group that one execution's processes cannot leave by forking, whatever session or environment they give
/// themselves.
#[derive(Debug)]
pub(super) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// A new group; none when no hierarchy is writable.
    pub(super) fn create(identity: Identity) -> Option<Self> {
        let path = parent()?.join(identity.to_string());
        match fs::create_dir(&path) {
            Ok(()) => Some(Self { path }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Some(Self { path }),
            Err(_) => None,
        }
    }

    /// The group that a former life made.
    pub(super) fn find(identity: Identity) -> Option<Self> {
        let path = parent()?.join(identity.to_string());
        path.is_dir().then_some(Self { path })
    }

    pub(super) fn join(&self, pid: i32) -> io::Result<()> {
        fs::write(self.path.join("cgroup.procs"), pid.to_string())
    }

    pub(super) fn members(&self) -> Vec<i32> {
        let mut members = Vec::new();
        gather(&self.path, &mut members);
        members
    }

    /// All at once, also what forks at this moment. Only version 2 can; elsewhere signals do it, one by one.
    pub(super) fn kill(&self) {
        let _ = fs::write(self.path.join("cgroup.kill"), "1");
    }

    /// Fails while somebody is inside: a daemon that the work left behind on purpose keeps its group.
    pub(super) fn remove(&self) {
        let _ = fs::remove_dir(&self.path);
    }
}

/// A container engine that the work calls may make groups below.
fn gather(path: &Path, members: &mut Vec<i32>) {
    if let Ok(pids) = fs::read_to_string(path.join("cgroup.procs")) {
        members.extend(pids.lines().filter_map(|pid| pid.parse::<i32>().ok()));
    }
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            gather(&entry.path(), members);
        }
    }
}

fn parent() -> Option<&'static Path> {
    static PARENT: OnceLock<Option<PathBuf>> = OnceLock::new();
    PARENT.get_or_init(find_parent).as_deref()
}

/// Version 2, then its place on hosts that have both, then a version 1 hierarchy that costs nothing to be in.
fn find_parent() -> Option<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let candidates = [
        ("/sys/fs/cgroup", "", "cgroup.controllers"),
        ("/sys/fs/cgroup/unified", "", "cgroup.controllers"),
        ("/sys/fs/cgroup/pids", "pids", "cgroup.procs"),
        ("/sys/fs/cgroup/freezer", "freezer", "cgroup.procs"),
    ];
    candidates.into_iter().find_map(|(root, controller, proof)| {
        let root = Path::new(root);
        if !root.join(proof).exists() {
            return None;
        }
        let parent = root.join(own_group(&own, controller)).join("downbeat");
        fs::create_dir_all(&parent).ok()?;
        // A directory that can be made is not yet a group that can be entered: read-only mounts, no delegation.
        let probe = parent.join(format!("probe.{}", std::process::id()));
        fs::create_dir(&probe).ok()?;
        let writable = fs::OpenOptions::new().write(true).open(probe.join("cgroup.procs")).is_ok();
        let _ = fs::remove_dir(&probe);
        writable.then_some(parent)
    })
}

/// The agent's own group in a hierarchy, relative to its root. Outside of the visible part, the root itself.
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
    use super::*;

    #[test]
    fn the_agents_own_group_is_found_in_each_kind_of_hierarchy() {
        let own = "8:pids,misc:/box\n4:memory:/a/b\n0::/system.slice/downbeat.service\n";
        assert_eq!(own_group(own, ""), "system.slice/downbeat.service");
        assert_eq!(own_group(own, "pids"), "box");
        assert_eq!(own_group(own, "freezer"), "");
        assert_eq!(own_group("0::/../../elsewhere\n", ""), "");
    }
}
