//! Owns the end of a process tree: who belongs to an execution, and how all of them are ended.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::Instant;

use super::cgroup::Cgroup;
use super::procfs;
use crate::backend::Identity;
use crate::variables::EXECUTION;

/// How long KILL is repeated. What outlives it hangs in the kernel, and no signal reaches it.
const KILL_FOR: Duration = Duration::from_secs(10);
/// Whoever forks while the tree is being enclosed is caught by the next pass; who forks for ever, by none.
const ENCLOSE_PASSES: usize = 4;
const FIRST_LOOK: Duration = Duration::from_millis(5);
const LATER_LOOKS: Duration = Duration::from_millis(100);

/// Everything that an execution started, found by four marks, since each alone can be shed: the control group (not
/// available everywhere), the process group (left by `setsid`), the environment (cleared by `env -i`), and being
/// the child of somebody with a mark (lost when the parent dies).
#[derive(Debug)]
pub(crate) struct Tree {
    identity: Identity,
    marker: String,
    cgroup: OnceLock<Cgroup>,
    leader: Option<Leader>,
}

/// The process that was started first, leader of its process group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leader {
    pub(crate) pid: i32,
    pub(crate) started: u64,
}

impl Leader {
    pub(super) fn of(pid: i32) -> Option<Self> {
        procfs::one(pid).map(|process| Self { pid, started: process.started })
    }
}

impl Tree {
    pub(super) fn new(identity: Identity, leader: Option<Leader>) -> Self {
        Self { identity, marker: format!("{EXECUTION}={identity}"), cgroup: OnceLock::new(), leader }
    }

    /// The tree that a former life of the agent began.
    pub(crate) fn former(identity: Identity, leader: Option<Leader>) -> Self {
        let tree = Self::new(identity, leader);
        if let Some(cgroup) = Cgroup::find(identity) {
            let _ = tree.cgroup.set(cgroup);
        }
        tree
    }

    /// Puts all members into a control group of their own, where the host has such: what they start from now on
    /// cannot leave it. Blocks.
    pub(super) fn enclose(&self) {
        let Some(cgroup) = Cgroup::create(self.identity) else { return };
        let cgroup = self.cgroup.get_or_init(|| cgroup);
        for _ in 0..ENCLOSE_PASSES {
            let inside: HashSet<i32> = cgroup.members().into_iter().collect();
            let outside: Vec<i32> = self.members().into_iter().filter(|pid| !inside.contains(pid)).collect();
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

    /// Those that are alive now. Blocks for as long as reading `/proc` takes.
    pub(crate) fn members(&self) -> Vec<i32> {
        let all = procfs::all();
        let grouped: HashSet<i32> = self.cgroup.get().map(Cgroup::members).into_iter().flatten().collect();
        // While the leader is there, even as a zombie, nobody else can have its number as a group.
        let group = self.leader.filter(|leader| {
            all.iter().any(|process| process.pid == leader.pid && process.started == leader.started)
        });
        let own = std::process::id().cast_signed();
        let mut members: HashSet<i32> = all
            .iter()
            .filter(|process| {
                grouped.contains(&process.pid)
                    || group.is_some_and(|leader| leader.pid == process.group)
                    || procfs::carries(process.pid, &self.marker)
            })
            .map(|process| process.pid)
            .collect();
        // An agent that was itself started by an execution carries a marker; it never ends itself.
        members.remove(&own);
        loop {
            let children: Vec<i32> = all
                .iter()
                .filter(|process| members.contains(&process.parent) && !members.contains(&process.pid))
                .map(|process| process.pid)
                .filter(|pid| *pid != own)
                .collect();
            if children.is_empty() {
                break;
            }
            members.extend(children);
        }
        all.iter()
            .filter(|process| !process.zombie && members.contains(&process.pid))
            .map(|p| p.pid)
            .collect()
    }

    fn signal(&self, signal: Signal) -> usize {
        if signal == Signal::SIGKILL
            && let Some(cgroup) = self.cgroup.get()
        {
            cgroup.kill();
        }
        let members = self.members();
        for pid in &members {
            let _ = kill(Pid::from_raw(*pid), signal);
        }
        if signal != Signal::SIGKILL {
            // One that is stopped would not see it.
            for pid in &members {
                let _ = kill(Pid::from_raw(*pid), Signal::SIGCONT);
            }
        }
        members.len()
    }

    pub(super) fn remove_cgroup(&self) {
        if let Some(cgroup) = self.cgroup.get() {
            cgroup.remove();
        }
    }
}

/// TERM to all, then, after the grace period, KILL until nothing is left. Answers how many would not go.
pub(crate) async fn terminate(tree: &Arc<Tree>, grace: Duration) -> usize {
    let mut left = look(tree, |tree| tree.signal(Signal::SIGTERM)).await;
    let deadline = Instant::now() + grace;
    let mut pause = FIRST_LOOK;
    while left > 0 && Instant::now() < deadline {
        tokio::time::sleep(pause.min(deadline.saturating_duration_since(Instant::now()))).await;
        pause = (pause * 2).min(LATER_LOOKS);
        left = look(tree, |tree| tree.members().len()).await;
    }
    let deadline = Instant::now() + KILL_FOR;
    pause = FIRST_LOOK;
    while left > 0 && Instant::now() < deadline {
        look(tree, |tree| tree.signal(Signal::SIGKILL)).await;
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LATER_LOOKS);
        left = look(tree, |tree| tree.members().len()).await;
    }
    look(tree, |tree| {
        tree.remove_cgroup();
        0
    })
    .await;
    left
}

/// Reading `/proc` of a busy host takes milliseconds: not on a thread that carries heartbeats.
async fn look(tree: &Arc<Tree>, with: fn(&Tree) -> usize) -> usize {
    let tree = tree.clone();
    tokio::task::spawn_blocking(move || with(&tree)).await.unwrap_or(0)
}
