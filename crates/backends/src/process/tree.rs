//! Owns the end of a process tree: which processes belong to an execution, and how they are ended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::cgroup::{Cgroup, Groups};
use super::means::Means;
use super::procfs::{Proc, Process};
use crate::backend::Identity;
use crate::environment::EXECUTION;

/// How long KILL is repeated. Processes that survive it hang in the kernel, and no signal reaches them.
const KILL_FOR: Duration = Duration::from_secs(10);
/// A process that forks while the tree is being moved is found by the next pass; one that forks endlessly, by none.
const ENCLOSE_PASSES: usize = 4;
const FIRST_LOOK: Duration = Duration::from_millis(5);
const LATER_LOOKS: Duration = Duration::from_millis(100);
/// How long one search may take. Reading the environment of a process that hangs in the kernel never returns.
const LOOK_FOR: Duration = Duration::from_secs(2);
/// How long a search waits for a free place.
const TURN_WITHIN: Duration = Duration::from_secs(10);
/// Concurrent searches, over all trees: no more threads than this hang.
static LOOKS: Semaphore = Semaphore::const_new(12);
static READERS_OF_ENVIRONMENTS: Semaphore = Semaphore::const_new(4);
/// Processes whose environments are being read, and since when. One that hangs blocks one reader, not all.
static BEING_READ: Mutex<BTreeMap<(i32, u64), Instant>> = Mutex::new(BTreeMap::new());
/// Between two checks of a process that another thread reads.
const READ_PAUSE: Duration = Duration::from_millis(10);

/// Everything that an execution started. If its first process was started in a control group, these are the members of
/// the group, and their descendants that were moved out of it (`su`, `systemd-run`): no other process is read.
///
/// Otherwise processes are found by marks, each of which alone can be lost: the process group (left by `setsid`), the
/// environment (cleared by `env -i`), being a descendant of a marked process (lost when the parent ends, unless the
/// first process adopts orphans), the group that it was moved into later.
#[derive(Debug)]
pub(crate) struct Tree {
    identity: Identity,
    marker: String,
    proc: Proc,
    groups: Option<Groups>,
    cgroup: OnceLock<Cgroup>,
    /// The first process was started in the group.
    pub(super) is_born_inside: bool,
    pub(super) leader: Option<Leader>,
    /// Processes outside of the group, with their start times.
    known: Mutex<BTreeMap<i32, u64>>,
}

/// The process that was started first, leader of its process group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leader {
    pub(crate) pid: i32,
    pub(crate) started: u64,
}

impl Leader {
    /// Call it before a child of this process is reaped: until then its pid is not reused.
    pub(super) fn of(pid: i32, means: &Means) -> Option<Self> {
        means.proc.one(pid).map(|process| Self { pid, started: process.started })
    }
}

impl Tree {
    /// Returns the tree of a process that was just started: in this group, or else led by this leader.
    pub(super) fn new(
        identity: Identity,
        leader: Option<Leader>,
        cgroup: Option<Cgroup>,
        means: &Means,
    ) -> Self {
        Self {
            identity,
            marker: format!("{EXECUTION}={identity}"),
            proc: means.proc.clone(),
            groups: means.groups.clone(),
            is_born_inside: cgroup.is_some() && leader.is_none(),
            cgroup: cgroup.map(OnceLock::from).unwrap_or_default(),
            leader,
            known: Mutex::default(),
        }
    }

    /// Returns a tree that an earlier run of the agent started. If its processes were not started in their group, the
    /// leader is recorded as soon as there is a group.
    pub(crate) fn former(identity: Identity, leader: Option<Leader>, means: &Means) -> Self {
        Self::new(identity, leader, means.find_group(identity), means)
    }

    pub(super) fn cgroup(&self) -> Option<&Cgroup> {
        self.cgroup.get()
    }

    /// Moves all members into their own control group, if the host has groups: processes that they start from then on
    /// cannot leave it. Blocks.
    pub(super) fn enclose(&self) {
        let Some(Ok(cgroup)) = self.groups.as_ref().map(|groups| groups.create(self.identity)) else {
            return;
        };
        let cgroup = self.cgroup.get_or_init(|| cgroup);
        for _ in 0..ENCLOSE_PASSES {
            let inside: BTreeSet<i32> = cgroup.members().into_iter().collect();
            let outside: Vec<i32> = self.members().difference(&inside).copied().collect();
            if outside.is_empty() {
                return;
            }
            for pid in outside {
                if let Err(error) = cgroup.join(pid) {
                    tracing::debug!(execution = %self.identity, pid, %error, "cannot enter a control group");
                }
            }
        }
    }

    /// Returns members of the group, known processes, and all descendants of both. Its cost grows with the tree.
    /// Blocks.
    fn members(&self) -> BTreeSet<i32> {
        let own = std::process::id().cast_signed();
        let grouped: BTreeSet<i32> = self.cgroup().map(Cgroup::members).into_iter().flatten().collect();
        let mut known = self.known.lock();
        self.forget_ended(&mut known);
        if let Some(leader) = self.leader.filter(|leader| !grouped.contains(&leader.pid))
            && self.proc.one(leader.pid).is_some_and(|one| one.started == leader.started && !one.zombie)
        {
            known.insert(leader.pid, leader.started);
        }
        let mut members: BTreeSet<i32> = grouped.iter().chain(known.keys()).copied().collect();
        // An agent that was itself started by an execution is a member of it; it never ends itself.
        members.remove(&own);
        let mut parents: Vec<i32> = members.iter().copied().collect();
        while let Some(parent) = parents.pop() {
            for child in self.proc.children(parent) {
                if child == own || members.contains(&child) {
                    continue;
                }
                if let Some(process) = self.proc.one(child).filter(|process| !process.zombie) {
                    known.insert(child, process.started);
                    members.insert(child);
                    parents.push(child);
                }
            }
        }
        members
    }

    /// Returns how many of the found processes are left. Cheaper than a search. Blocks.
    fn left(&self) -> usize {
        let mut known = self.known.lock();
        self.forget_ended(&mut known);
        known.len() + self.cgroup().map_or(0, |cgroup| cgroup.members().len())
    }

    fn forget_ended(&self, known: &mut BTreeMap<i32, u64>) {
        known.retain(|pid, started| {
            self.proc.one(*pid).is_some_and(|process| process.started == *started && !process.zombie)
        });
    }

    /// Marks processes by process group and by descent. Returns those whose environment has to be read, the youngest
    /// first: they are the most likely members.
    fn recognise(&self, all: &[Process]) -> Vec<Process> {
        let own = std::process::id().cast_signed();
        // While the leader exists, even as a zombie, its pid cannot be another process group.
        let leader = self.leader.filter(|leader| {
            all.iter().any(|process| process.pid == leader.pid && process.started == leader.started)
        });
        let mut known = self.known.lock();
        let mut found = true;
        while found {
            found = false;
            for process in all.iter().filter(|process| !process.zombie && process.pid != own) {
                let is_member = leader.is_some_and(|leader| leader.pid == process.group)
                    || known.contains_key(&process.parent);
                if is_member && known.insert(process.pid, process.started).is_none() {
                    found = true;
                }
            }
        }
        let since = self.leader.map_or(0, |leader| leader.started);
        let mut others: Vec<Process> = all
            .iter()
            .filter(|process| !process.zombie && process.pid != own && process.started >= since)
            .filter(|process| !known.contains_key(&process.pid))
            .copied()
            .collect();
        others.sort_by_key(|process| std::cmp::Reverse(process.started));
        others
    }

    /// Reads environments. Those that other threads read at the same time come last; those that hang are skipped.
    /// Blocks.
    fn read_environments(&self, others: Vec<Process>) {
        let mut later = Vec::new();
        for process in others {
            if !self.read_environment(&process) {
                later.push(process);
            }
        }
        for process in later {
            while !self.read_environment(&process) {
                let since = BEING_READ.lock().get(&(process.pid, process.started)).copied();
                if since.is_some_and(|since| since.elapsed() > LOOK_FOR) {
                    break;
                }
                std::thread::sleep(READ_PAUSE);
            }
        }
    }

    /// Returns whether no other thread reads it.
    fn read_environment(&self, process: &Process) -> bool {
        let key = (process.pid, process.started);
        let mut being_read = BEING_READ.lock();
        if being_read.contains_key(&key) {
            return false;
        }
        being_read.insert(key, Instant::now());
        drop(being_read);
        let carries = self.proc.carries(process.pid, &self.marker);
        BEING_READ.lock().remove(&key);
        if carries {
            self.known.lock().insert(process.pid, process.started);
        }
        true
    }

    /// Returns how many processes it signalled. Blocks.
    fn signal(&self, signal: Signal) -> usize {
        let members = self.members();
        if signal == Signal::SIGKILL
            && let Some(cgroup) = self.cgroup()
        {
            // On kernels without it, each process is killed below.
            let _ = cgroup.kill();
        }
        let send = |signal| {
            for pid in &members {
                let _ = kill(Pid::from_raw(*pid), signal);
            }
        };
        send(signal);
        if signal != Signal::SIGKILL {
            // A stopped process does not receive the signal.
            send(Signal::SIGCONT);
        }
        members.len()
    }
}

/// Sends TERM to all, then, after the grace period, KILL until none is left. Returns how many do not end.
pub(crate) async fn terminate(tree: &Arc<Tree>, grace: Duration) -> usize {
    find(tree).await;
    let mut left = look(tree, |tree| tree.signal(Signal::SIGTERM)).await;
    let deadline = Instant::now() + grace;
    let mut pause = FIRST_LOOK;
    while left > 0 && Instant::now() < deadline {
        tokio::time::sleep(pause.min(deadline.saturating_duration_since(Instant::now()))).await;
        pause = (pause * 2).min(LATER_LOOKS);
        left = look(tree, Tree::left).await;
    }
    if find(tree).await > 0 { kill_all(tree, KILL_FOR).await } else { 0 }
}

/// Sends KILL until none is left, or the time is over. Returns how many do not end.
pub(super) async fn kill_all(tree: &Arc<Tree>, within: Duration) -> usize {
    let deadline = Instant::now() + within;
    let mut pause = FIRST_LOOK;
    loop {
        look(tree, |tree| tree.signal(Signal::SIGKILL)).await;
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LATER_LOOKS);
        let mut left = look(tree, Tree::left).await;
        if left == 0 {
            left = find(tree).await;
        }
        if left == 0 || Instant::now() >= deadline {
            return left;
        }
    }
}

/// Searches all members; returns how many there are. Only trees without a group of their own need to read every process
/// of the host.
pub(super) async fn find(tree: &Arc<Tree>) -> usize {
    if !tree.is_born_inside {
        let all = within_bounds(&LOOKS, tree, |tree| tree.proc.all()).await.unwrap_or_default();
        let others = tree.recognise(&all);
        let read = within_bounds(&READERS_OF_ENVIRONMENTS, tree, move |tree| tree.read_environments(others));
        if read.await.is_none() {
            tracing::warn!(
                execution = %tree.identity,
                "a process of this host hangs: not every environment could be read to find the processes of the execution"
            );
        }
        tree.recognise(&all);
    }
    look(tree, |tree| tree.members().len()).await
}

/// After a search that takes too long, something may be left.
async fn look(tree: &Arc<Tree>, with: fn(&Tree) -> usize) -> usize {
    within_bounds(&LOOKS, tree, with).await.unwrap_or(1)
}

/// Not on a thread that carries heartbeats, and with a time limit.
async fn within_bounds<T: Send + 'static>(
    places: &'static Semaphore,
    tree: &Arc<Tree>,
    with: impl FnOnce(&Tree) -> T + Send + 'static,
) -> Option<T> {
    let tree = tree.clone();
    let place = timeout(TURN_WITHIN, places.acquire()).await.ok()?.ok()?;
    let looked = tokio::task::spawn_blocking(move || {
        let looked = with(&tree);
        drop(place);
        looked
    });
    timeout(LOOK_FOR, looked).await.ok()?.ok()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use downbeat_core::ids::ExecutionId;
    use futures_util::future::join_all;
    use nix::sys::stat::Mode;
    use uuid::Uuid;

    use super::*;

    fn identity() -> Identity {
        Identity { execution: ExecutionId(Uuid::from_u128(7)), attempt: 1 }
    }

    /// A process that does not exist, in a fake `/proc`. Reading its environment never returns.
    fn hanging(root: &Path, pid: i32, started: u64) {
        let dir = root.join(pid.to_string());
        fs::create_dir(&dir).unwrap();
        let stat = format!("{pid} (stuck) D 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {started} 0 0");
        fs::write(dir.join("stat"), stat).unwrap();
        nix::unistd::mkfifo(&dir.join("environ"), Mode::S_IRWXU).unwrap();
    }

    #[tokio::test]
    async fn a_read_of_proc_that_hangs_holds_up_the_end_of_a_tree_only_for_a_while() {
        let root = tempfile::tempdir().unwrap();
        let hung = i32::MAX;
        hanging(root.path(), hung, 50);
        let means = Means::found().without_groups().with_proc(Proc::at(root.path()));
        let trees: Vec<_> = (0..8).map(|_| Arc::new(Tree::former(identity(), None, &means))).collect();
        let ending = join_all(trees.iter().map(|tree| terminate(tree, Duration::ZERO)));
        let ended = timeout(LOOK_FOR * 10, ending).await;
        assert_eq!(ended, Ok(vec![0; 8]), "the process that hangs is not known to be a member");
        while READERS_OF_ENVIRONMENTS.available_permits() < 3 {
            tokio::task::yield_now().await;
        }
        assert!(BEING_READ.lock().contains_key(&(hung, 50)), "only one reader hangs");
        // So that the threads that read it end with the test.
        let environ = root.path().join(hung.to_string()).join("environ");
        while READERS_OF_ENVIRONMENTS.available_permits() < 4 {
            // For both, since opening it only for writing waits for a reader.
            drop(fs::OpenOptions::new().read(true).write(true).open(&environ).unwrap());
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn the_end_of_a_tree_that_was_born_in_a_group_needs_no_look_at_other_processes() {
        let no_proc = tempfile::tempdir().unwrap();
        let means = Means::found().with_proc(Proc::at(no_proc.path()));
        let unique = u128::from(std::process::id()) << 40;
        let identity = Identity { execution: ExecutionId(Uuid::from_u128(unique)), attempt: 1 };
        let Some(group) = means.group_to_be_born_in(identity) else { return };
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id().cast_signed();
        group.join(pid).unwrap();
        let tree = Arc::new(Tree::new(identity, None, Some(group), &means));
        assert_eq!(find(&tree).await, 1);
        assert_eq!(terminate(&tree, Duration::from_secs(60)).await, 0);
        assert!(!child.wait().unwrap().success());
        means.release(tree.cgroup());
        assert!(means.groups.as_ref().unwrap().find(identity).is_none());
    }

    #[test]
    fn environments_are_read_of_processes_that_can_be_members_and_the_youngest_first() {
        let means = Means::found().without_groups();
        let leader = Leader { pid: 100, started: 50 };
        let tree = Tree::former(identity(), Some(leader), &means);
        let process = |pid, parent, group, started| Process { pid, parent, group, started, zombie: false };
        let all = [
            process(100, 1, 100, 50),
            process(101, 1, 100, 51),
            process(102, 101, 102, 52),
            process(103, 1, 103, 53),
            process(104, 1, 104, 54),
            process(90, 1, 90, 40),
        ];
        let others: Vec<i32> = tree.recognise(&all).iter().map(|process| process.pid).collect();
        assert_eq!(others, [104, 103]);
        assert_eq!(tree.known.lock().keys().copied().collect::<Vec<_>>(), [100, 101, 102]);
    }
}
