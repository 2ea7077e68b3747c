//! Owns the duty of process 1: processes that lose their parent become its children, and stay zombies until it waits
//! for them. An agent has this duty as the first process of a container.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use tokio::signal::unix::{SignalKind, signal};

use super::procfs::Proc;

/// Between two searches. An orphan is a zombie in both: children that other code of this process waits for are gone by
/// then.
const PAUSE: Duration = Duration::from_secs(1);

/// Held for reading from before a process is created until it is listed, so that no search runs in between.
static STARTING: RwLock<()> = RwLock::new(());
/// Children that their starters wait for. Counted: a pid may be reused before the entry of its former child is removed.
static OWN: Mutex<BTreeMap<i32, u32>> = Mutex::new(BTreeMap::new());

/// A child that its starter waits for, until this is dropped.
#[derive(Debug)]
pub(super) struct Own(i32);

fn is_first_process() -> bool {
    std::process::id() == 1
}

/// Hold this while a process is created and listed. `None` in a process that does not adopt orphans.
pub(super) fn starting() -> Option<RwLockReadGuard<'static, ()>> {
    is_first_process().then(|| STARTING.read())
}

impl Own {
    pub(super) fn new(pid: i32) -> Option<Self> {
        is_first_process().then(|| Self::listed(pid))
    }

    fn listed(pid: i32) -> Self {
        *OWN.lock().entry(pid).or_default() += 1;
        Self(pid)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let mut own = OWN.lock();
        if let Some(count) = own.get_mut(&self.0) {
            *count -= 1;
            if *count == 0 {
                own.remove(&self.0);
            }
        }
    }
}

/// Reaps orphans forever. Returns at once in every process but the first of a machine or container.
pub async fn reap_orphans() {
    if !is_first_process() {
        return;
    }
    let mut ended = match signal(SignalKind::child()) {
        Ok(ended) => ended,
        Err(error) => {
            tracing::warn!(%error, "cannot detect orphans; they stay zombies; start the container with --init");
            return;
        }
    };
    let mut seen = HashSet::new();
    let mut is_put_off = false;
    loop {
        if seen.is_empty() && !is_put_off {
            ended.recv().await;
        }
        tokio::time::sleep(PAUSE).await;
        let before = seen.clone();
        let looked = tokio::task::spawn_blocking(move || reap(&before)).await.ok().flatten();
        is_put_off = looked.is_none();
        seen = looked.unwrap_or(seen);
    }
}

/// Reaps zombies that were found the last time; returns new ones. `None` if a process is being started.
fn reap(seen: &HashSet<(i32, u64)>) -> Option<HashSet<(i32, u64)>> {
    // Does not wait for the lock: starting a process may wait for a mount, and all other starts would then wait too.
    let _nobody_starts = STARTING.try_write()?;
    let this = std::process::id().cast_signed();
    let mut new = HashSet::new();
    for process in Proc::default().all() {
        if !process.zombie || process.parent != this || OWN.lock().contains_key(&process.pid) {
            continue;
        }
        if seen.contains(&(process.pid, process.started)) {
            let _ = waitpid(Pid::from_raw(process.pid), Some(WaitPidFlag::WNOHANG));
        } else {
            new.insert((process.pid, process.started));
        }
    }
    Some(new)
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Instant;

    use super::*;

    fn zombie() -> (std::process::Child, (i32, u64)) {
        let child = Command::new("true").spawn().unwrap();
        let pid = child.id().cast_signed();
        let begun = Instant::now();
        loop {
            match Proc::default().one(pid) {
                Some(process) if process.zombie => return (child, (pid, process.started)),
                _ => assert!(begun.elapsed() < Duration::from_secs(30), "the process does not end"),
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_zombie_is_an_orphan_at_the_second_look_unless_its_starter_waits_for_it() {
        let (_orphan, first) = zombie();
        let (mut child, second) = zombie();
        let own = Own::listed(second.0);
        let again = Own::listed(second.0);
        let seen = reap(&HashSet::new()).unwrap();
        assert!(seen.contains(&first) && !seen.contains(&second));
        reap(&HashSet::from([first, second]));
        assert_eq!(Proc::default().one(first.0), None);
        drop(own);
        reap(&HashSet::from([second]));
        assert!(child.try_wait().unwrap().unwrap().success(), "it was not reaped");
        drop(again);
        assert!(!OWN.lock().contains_key(&second.0));
        let _starting = STARTING.read();
        assert_eq!(reap(&HashSet::new()), None, "postponed while a process is being started");
    }
}
