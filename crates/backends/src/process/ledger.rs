//! Owns the ledger: a record of the agent's running processes in a file that survives it, so that a restarted agent
//! ends the processes of its previous run. Several agents may share a host, so only recorded processes are touched.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;

use super::means::Means;
use super::procfs;
use super::tree::{Leader, Tree, find, kill_all, terminate};
use crate::backend::Identity;
use crate::private::{self, DIR_MODE, FILE_MODE};

const FILE: &str = "ledger";
/// The boot id of the machine when the lines were written.
const BOOT_FILE: &str = "boot";
/// The directory of the control groups of these processes. An agent that was started in another session has another
/// one.
const GROUPS_FILE: &str = "groups";
/// Every line has the same length, so that it can be overwritten. The longest has an identity and two numbers: 79
/// bytes.
const LINE_BYTES: usize = 96;
/// The limit for an agent that is asked twice to stop.
const KILL_ALL_FOR: Duration = Duration::from_secs(2);
/// Between the two searches for processes to kill.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// One line per running execution, in reused positions: a file for each would cost as much as the process of a short
/// command. Not synced: a crash of the machine also ends the processes.
#[derive(Debug)]
pub struct Ledger {
    dir: PathBuf,
    pub(super) means: Means,
    ledger_file: Mutex<LedgerFile>,
    /// The trees that run now.
    trees: Mutex<HashMap<Identity, Arc<Tree>>>,
}

#[derive(Debug)]
struct LedgerFile {
    file: File,
    lines: HashMap<Identity, u64>,
    /// Empty lines before the last one.
    free: Vec<u64>,
    /// The line after the last.
    next: u64,
    /// Why the last `begin` could not be written.
    failing: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    identity: Identity,
    /// Not recorded for a process that was started in a control group, which is named after the identity. For others,
    /// recorded after they have run for a moment.
    leader: Option<Leader>,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot write the record of running work in `{dir}`: {error}")]
pub struct Error {
    dir: PathBuf,
    error: io::Error,
}

impl Ledger {
    pub fn open(dir: &Path) -> Result<Self, Error> {
        Self::open_with(dir, Means::found())
    }

    /// Opens it on a host that offers less.
    pub fn open_with(dir: &Path, means: Means) -> Result<Self, Error> {
        let failed = |error| Error { dir: dir.to_owned(), error };
        private::create_dir(dir).map_err(failed)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE);
        let file = options.open(dir.join(FILE)).map_err(failed)?;
        // An older agent left it readable to all.
        fs::set_permissions(dir, Permissions::from_mode(DIR_MODE)).map_err(failed)?;
        file.set_permissions(Permissions::from_mode(FILE_MODE)).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        let means = means.with_former_groups(fs::read_to_string(dir.join(GROUPS_FILE)).ok().as_deref());
        // Lines of an earlier run stay until they are swept.
        let next = bytes.div_ceil(LINE_BYTES as u64);
        let ledger_file = LedgerFile { file, lines: HashMap::new(), free: Vec::new(), next, failing: None };
        Ok(Self { dir: dir.to_owned(), means, ledger_file: Mutex::new(ledger_file), trees: Mutex::default() })
    }

    /// Called before the start: an unrecorded process could not be found again.
    pub(super) fn begin(&self, identity: Identity) -> io::Result<()> {
        let mut ledger_file = self.ledger_file.lock();
        let written = ledger_file.write(Entry { identity, leader: None });
        ledger_file.failing = written.as_ref().err().map(ToString::to_string);
        written
    }

    /// Returns why running work cannot be recorded, if the last attempt failed.
    pub fn problem(&self) -> Option<String> {
        let error = self.ledger_file.lock().failing.clone()?;
        let dir = self.dir.display();
        Some(format!("running work cannot be recorded: {error} ({dir}); a restarted agent could not end it"))
    }

    pub(super) fn started(&self, identity: Identity, leader: Leader) -> io::Result<()> {
        self.ledger_file.lock().write(Entry { identity, leader: Some(leader) })
    }

    /// Adds a running tree, for `kill_all`.
    pub(super) fn attend(&self, identity: Identity, tree: &Arc<Tree>) {
        self.trees.lock().insert(identity, tree.clone());
    }

    pub(super) fn end(&self, identity: Identity) {
        self.trees.lock().remove(&identity);
        self.ledger_file.lock().erase(identity);
    }

    /// Kills all running processes without TERM, for an agent that has no time left.
    pub async fn kill_all(&self) {
        // Twice: a process may have been started during the first search.
        for _ in 0..2 {
            let trees: Vec<(Identity, Arc<Tree>)> = self.trees.lock().drain().collect();
            let killed = trees.iter().map(async |(identity, tree)| {
                let left = kill_all(tree, KILL_ALL_FOR).await;
                if left > 0 {
                    tracing::error!(execution = %identity, left, "processes do not end");
                }
                self.means.release(tree.cgroup());
            });
            join_all(killed).await;
            tokio::time::sleep(LOOK_AGAIN_AFTER).await;
        }
    }

    /// Ends all recorded processes; call it before any work starts. Returns those that still ran.
    pub async fn sweep(&self, grace: Duration) -> Vec<Identity> {
        let recorded = self.recorded();
        let ended = if self.is_of_this_boot() {
            join_all(recorded.iter().map(|entry| self.end_former(*entry, grace))).await
        } else {
            tracing::info!("the machine was restarted: no process of the previous session is left");
            Vec::new()
        };
        for entry in recorded {
            let _ = fs::remove_file(self.dir.join(entry.identity.to_string()));
        }
        self.ledger_file.lock().clear();
        self.name_surroundings();
        if let Some(groups) = self.means.groups.clone() {
            let _ = tokio::task::spawn_blocking(move || groups.tidy()).await;
        }
        ended.into_iter().flatten().collect()
    }

    /// Returns its identity if a process of it still ran.
    async fn end_former(&self, entry: Entry, grace: Duration) -> Option<Identity> {
        let Entry { identity, leader } = entry;
        let tree = Arc::new(Tree::former(identity, leader, &self.means));
        let found = find(&tree).await > 0;
        if found {
            let left = terminate(&tree, grace).await;
            if left > 0 {
                tracing::error!(execution = %identity, left, "processes of an earlier run do not end");
            }
        }
        self.means.release(tree.cgroup());
        found.then_some(identity)
    }

    /// After a restart of the machine, recorded pids belong to other processes. Older agents did not write the boot id,
    /// or could leave half of it on a full disk: their records count as of this boot.
    fn is_of_this_boot(&self) -> bool {
        match (fs::read_to_string(self.dir.join(BOOT_FILE)), procfs::boot_id()) {
            (Ok(recorded), Some(now)) => recorded.trim().len() != now.len() || recorded.trim() == now,
            _ => true,
        }
    }

    fn name_surroundings(&self) {
        let groups = self.means.groups.as_ref().and_then(|groups| groups.dir.to_str().map(str::to_owned));
        for (file, text) in [(BOOT_FILE, procfs::boot_id()), (GROUPS_FILE, groups)] {
            let (file, text) = (self.dir.join(file), text.unwrap_or_default());
            let is_named = fs::read_to_string(&file).is_ok_and(|recorded| recorded == text);
            if is_named || (text.is_empty() && !file.exists()) {
                continue;
            }
            if let Err(error) = private::write(&file, &text) {
                let file = file.display();
                tracing::warn!(%file, %error, "cannot record where running work is; a restarted agent may not find all of it");
            }
        }
    }

    fn recorded(&self) -> Vec<Entry> {
        let text = fs::read(self.dir.join(FILE)).unwrap_or_default();
        let lines = String::from_utf8_lossy(&text).lines().filter_map(parse).collect::<Vec<_>>();
        // An older agent had one file per execution, named after it.
        let files = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let former = files.filter_map(|file| {
            let identity = file.file_name().to_str()?.parse().ok()?;
            let text = fs::read_to_string(file.path()).unwrap_or_default();
            Some(Entry { identity, leader: parse_leader(&mut text.split_whitespace()) })
        });
        lines.into_iter().chain(former).collect()
    }
}

impl LedgerFile {
    fn write(&mut self, entry: Entry) -> io::Result<()> {
        let place = match self.lines.get(&entry.identity) {
            Some(place) => *place,
            None => {
                let place = self.free.pop().unwrap_or(self.next);
                self.next = self.next.max(place + 1);
                self.lines.insert(entry.identity, place);
                place
            }
        };
        self.write_line(place, &entry.to_string())
    }

    fn erase(&mut self, identity: Identity) {
        if let Some(place) = self.lines.remove(&identity) {
            let _ = self.write_line(place, "");
            self.free.push(place);
        }
    }

    fn write_line(&self, place: u64, text: &str) -> io::Result<()> {
        let line = format!("{text:<width$}\n", width = LINE_BYTES - 1);
        self.file.write_all_at(line.as_bytes(), place * LINE_BYTES as u64)
    }

    fn clear(&mut self) {
        if self.lines.is_empty() && self.file.set_len(0).is_ok() {
            (self.next, self.free) = (0, Vec::new());
        }
    }
}

impl std::fmt::Display for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.leader {
            Some(Leader { pid, started }) => write!(f, "{} {pid} {started}", self.identity),
            None => write!(f, "{}", self.identity),
        }
    }
}

fn parse(line: &str) -> Option<Entry> {
    let mut words = line.split_whitespace();
    Some(Entry { identity: words.next()?.parse().ok()?, leader: parse_leader(&mut words) })
}

fn parse_leader<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<Leader> {
    Some(Leader { pid: words.next()?.parse().ok()?, started: words.next()?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use downbeat_core::ids::ExecutionId;
    use uuid::Uuid;

    use super::super::cgroup::Groups;
    use super::super::procfs::Proc;
    use super::*;

    fn identity(number: u128) -> Identity {
        Identity { execution: ExecutionId(Uuid::from_u128(number)), attempt: u32::MAX }
    }

    fn running(dir: &Path) -> Vec<Entry> {
        let mut found = Ledger::open(dir).unwrap().recorded();
        found.sort_by_key(|entry| entry.identity.execution);
        found
    }

    #[test]
    fn running_work_is_on_record_for_the_next_run() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(dir.path()).unwrap();
        let leader = Leader { pid: i32::MAX, started: u64::MAX };
        for number in 1..=4 {
            ledger.begin(identity(number)).unwrap();
        }
        ledger.started(identity(2), leader).unwrap();
        ledger.end(identity(3));
        ledger.end(identity(1));
        ledger.begin(identity(5)).unwrap();
        drop(ledger);
        let expected = [(2, Some(leader)), (4, None), (5, None)];
        assert_eq!(
            running(dir.path()),
            expected.map(|(number, leader)| Entry { identity: identity(number), leader })
        );
    }

    #[test]
    fn only_its_owner_can_read_the_record_also_of_an_older_agent() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path().join("running");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join(FILE), "").unwrap();
        for (path, mode) in [(dir.clone(), 0o755), (dir.join(FILE), 0o644)] {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        Ledger::open(&dir).unwrap();
        for (path, mode) in [(dir.clone(), DIR_MODE), (dir.join(FILE), FILE_MODE)] {
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, mode);
        }
    }

    #[test]
    fn places_are_used_again() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(dir.path()).unwrap();
        for number in 1..=1_000 {
            ledger.begin(identity(number)).unwrap();
            ledger.end(identity(number));
        }
        assert_eq!(fs::metadata(dir.path().join(FILE)).unwrap().len(), LINE_BYTES as u64);
        assert_eq!(running(dir.path()), []);
    }

    #[test]
    fn work_started_before_the_sweep_does_not_overwrite_former_lines() {
        let dir = tempfile::tempdir().unwrap();
        Ledger::open(dir.path()).unwrap().begin(identity(1)).unwrap();
        Ledger::open(dir.path()).unwrap().begin(identity(2)).unwrap();
        assert_eq!(running(dir.path()).len(), 2);
    }

    #[tokio::test]
    async fn files_of_an_older_agent_are_swept_with_the_rest_and_then_gone() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(identity(1).to_string()), "2147483647 2").unwrap();
        fs::write(dir.path().join(identity(2).to_string()), "").unwrap();
        let ledger = Ledger::open(dir.path()).unwrap();
        ledger.begin(identity(3)).unwrap();
        drop(ledger);
        let entries = running(dir.path());
        assert_eq!(entries[0].leader, Some(Leader { pid: i32::MAX, started: 2 }));
        assert_eq!(entries.len(), 3);
        // No process has such a pid.
        assert_eq!(Ledger::open(dir.path()).unwrap().sweep(Duration::ZERO).await, []);
        assert_eq!(running(dir.path()), []);
        let left = fs::read_dir(dir.path()).unwrap().flatten().filter(|file| {
            let name = file.file_name();
            ![FILE, BOOT_FILE, GROUPS_FILE].iter().any(|kept| name == *kept)
        });
        assert_eq!(left.count(), 0, "only the ledger and its origin");
    }

    #[tokio::test]
    async fn after_a_restart_of_the_machine_nobody_is_taken_for_what_was_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let mut stranger = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Proc::default().one(stranger.id().cast_signed()).unwrap();
        let leader = Leader { pid: process.pid, started: process.started };
        let record = |boot: &str| {
            let ledger = Ledger::open(dir.path()).unwrap();
            ledger.begin(identity(1)).unwrap();
            ledger.started(identity(1), leader).unwrap();
            fs::write(dir.path().join(BOOT_FILE), boot).unwrap();
        };
        record(&procfs::boot_id().unwrap().chars().rev().collect::<String>());
        assert_eq!(Ledger::open(dir.path()).unwrap().sweep(Duration::ZERO).await, []);
        assert_eq!(running(dir.path()), [], "it is forgotten");
        assert_eq!(stranger.try_wait().unwrap(), None, "the other process still runs");
        record(&procfs::boot_id().unwrap());
        assert_eq!(Ledger::open(dir.path()).unwrap().sweep(Duration::ZERO).await, [identity(1)]);
        assert!(!stranger.wait().unwrap().success());
    }

    #[tokio::test]
    async fn a_name_of_the_boot_that_was_cut_off_does_not_let_left_over_work_run_on() {
        for cut in ["", "\n", "0bd5"] {
            let dir = tempfile::tempdir().unwrap();
            let mut left = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
            let process = Proc::default().one(left.id().cast_signed()).unwrap();
            let ledger = Ledger::open(dir.path()).unwrap();
            ledger.started(identity(1), Leader { pid: process.pid, started: process.started }).unwrap();
            fs::write(dir.path().join(BOOT_FILE), cut).unwrap();
            assert_eq!(Ledger::open(dir.path()).unwrap().sweep(Duration::ZERO).await, [identity(1)]);
            assert!(!left.wait().unwrap().success());
            let named = fs::read_to_string(dir.path().join(BOOT_FILE)).unwrap();
            assert_eq!(Some(named), procfs::boot_id());
        }
    }

    #[tokio::test]
    async fn work_that_was_born_in_a_group_of_another_session_is_found_there() {
        let Some(groups) = Groups::found() else { return };
        let unique = identity(u128::from(std::process::id()) << 48);
        let elsewhere = groups.dir.join(format!("session.{}", std::process::id()));
        fs::create_dir(&elsewhere).unwrap();
        let group = Groups::at(&elsewhere).create(unique).unwrap();
        // Only the group identifies it.
        let mut left = std::process::Command::new("sleep").arg("1000").env_clear().spawn().unwrap();
        group.join(left.id().cast_signed()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        Ledger::open(dir.path()).unwrap().begin(unique).unwrap();
        fs::write(dir.path().join(GROUPS_FILE), elsewhere.to_str().unwrap()).unwrap();
        assert_eq!(Ledger::open(dir.path()).unwrap().sweep(Duration::ZERO).await, [unique]);
        assert!(!left.wait().unwrap().success());
        let noted = fs::read_to_string(dir.path().join(GROUPS_FILE)).unwrap();
        assert_eq!(Path::new(&noted), groups.dir, "from now on it is this one");
        let _ = group.remove();
        fs::remove_dir(&elsewhere).unwrap();
    }
}
