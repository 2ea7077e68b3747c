//! Reads `/proc`: processes, their children, their environments.

use std::fs::{self, File};
use std::io::Read;
use std::path::PathBuf;

/// Larger than any `/proc/PID/stat`: a short name and some fifty numbers.
const STAT_BYTES: usize = 2048;
/// Indexes of fields after the name.
const GROUP: usize = 2;
const STARTED: usize = 19;

/// The directory of processes: `/proc`, or a replacement in tests.
#[derive(Clone, Debug)]
pub(super) struct Proc(PathBuf);

/// A process, or a zombie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) parent: i32,
    pub(super) group: i32,
    /// In ticks since boot. Identifies a process together with the pid, which alone is reused.
    pub(super) started: u64,
    pub(super) zombie: bool,
}

impl Default for Proc {
    fn default() -> Self {
        Self(PathBuf::from("/proc"))
    }
}

impl Proc {
    #[cfg(test)]
    pub(super) fn at(root: &std::path::Path) -> Self {
        Self(root.to_owned())
    }

    /// Returns all processes that this agent can see, including zombies.
    pub(super) fn all(&self) -> Vec<Process> {
        let Ok(entries) = fs::read_dir(&self.0) else { return Vec::new() };
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        pids.filter_map(|pid| self.one(pid)).collect()
    }

    pub(super) fn one(&self, pid: i32) -> Option<Process> {
        // The kernel returns all of it at once: a second read to detect the end would cost as much as the first.
        let mut stat = [0; STAT_BYTES];
        let length = File::open(self.path(pid).join("stat")).ok()?.read(&mut stat).ok()?;
        parse(pid, &stat[..length])
    }

    /// Returns the children of all its threads. Empty on kernels without `CONFIG_PROC_CHILDREN`.
    pub(super) fn children(&self, pid: i32) -> Vec<i32> {
        let threads = fs::read_dir(self.path(pid).join("task")).into_iter().flatten().flatten();
        let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
        lists.flat_map(|list| list.split_whitespace().flat_map(str::parse).collect::<Vec<i32>>()).collect()
    }

    /// Returns whether the process's initial environment contains exactly this `NAME=value`. The kernel locks that
    /// process for it: the call never returns if the process hangs in the kernel with the lock.
    pub(super) fn carries(&self, pid: i32, marker: &str) -> bool {
        fs::read(self.path(pid).join("environ"))
            .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|entry| entry == marker.as_bytes()))
    }

    fn path(&self, pid: i32) -> PathBuf {
        self.0.join(pid.to_string())
    }
}

/// The name is in parentheses and may itself contain blanks, parentheses and any bytes: fields are counted after the
/// last parenthesis.
fn parse(pid: i32, stat: &[u8]) -> Option<Process> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let mut fields = str::from_utf8(&stat[name_end + 1..]).ok()?.split_ascii_whitespace();
    Some(Process {
        pid,
        zombie: matches!(fields.next()?, "Z" | "X"),
        parent: fields.next()?.parse().ok()?,
        group: fields.next()?.parse().ok()?,
        started: fields.nth(STARTED - GROUP - 1)?.parse().ok()?,
    })
}

/// Returns the id of this boot of the machine: pids of another boot have no meaning.
pub fn boot_id() -> Option<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_or_strange_bytes_does_not_shift_the_fields() {
        let stat = b"7 (a) b (\xff) S 3 5 5 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0";
        assert_eq!(
            parse(7, stat),
            Some(Process { pid: 7, parent: 3, group: 5, started: 4242, zombie: false })
        );
    }

    #[test]
    fn this_process_is_listed_and_its_children_are_its_own() {
        let own = std::process::id().cast_signed();
        let proc = Proc::default();
        assert!(proc.all().iter().any(|process| process.pid == own && !process.zombie));
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id().cast_signed();
        assert!(proc.children(own).contains(&pid));
        assert_eq!(proc.one(pid).unwrap().parent, own);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
