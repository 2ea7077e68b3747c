//! Owns the agent's side of a guard: starts the process when work needs it, and writes to it.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use super::line::{Line, Work};
use super::program::READY;
use super::watch::Deadlines;
use crate::process::Leader;

/// How long the start of a guard may take on a busy host.
const START: Duration = Duration::from_secs(10);

/// The guard of one attempt. The process is started when the attempt starts work that could outlive the agent. If the
/// last copy is dropped before [`Guard::done`], the guard ends the work.
#[derive(Clone, Debug)]
pub struct Guard(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    program: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    deadlines: Deadlines,
    /// To the process, while it runs.
    pipe: Option<File>,
    /// Some of the work may still run.
    is_left_over: bool,
}

impl Guard {
    /// `program` is this program, or one that also has the command `guard`.
    pub fn new(program: PathBuf, deadlines: Deadlines) -> Self {
        let state = Mutex::new(State { deadlines, pipe: None, is_left_over: false });
        Self(Arc::new(Inner { program, state }))
    }

    /// Moves the deadlines after the lease was renewed.
    pub fn extend(&self, deadlines: Deadlines) {
        let mut state = self.0.state.lock();
        state.deadlines = deadlines;
        state.write(&Line::Until(deadlines));
    }

    /// Notes that the work has ended. If some of it may still run, the guard ends it.
    pub fn done(&self) {
        let mut state = self.0.state.lock();
        if !state.is_left_over {
            state.write(&Line::Done);
        }
        state.pipe = None;
    }

    /// Notes that not all of the work could be ended.
    pub(crate) fn leave_over(&self) {
        self.0.state.lock().is_left_over = true;
    }

    /// Call it before the work starts. Work without a guard is not refused: the agent ends it, as long as it runs.
    pub(crate) async fn watch(&self, work: &Work) {
        let running = self.0.state.lock().pipe.is_some();
        if !running {
            match tokio::time::timeout(START, start(&self.0)).await {
                Ok(Ok(pipe)) => self.0.state.lock().pipe = Some(pipe),
                Ok(Err(error)) => return self.missing(&error),
                Err(_) => return self.missing(&"it does not start"),
            }
        }
        let mut state = self.0.state.lock();
        state.write(&Line::Work(work.clone()));
        let deadlines = state.deadlines;
        state.write(&Line::Until(deadlines));
    }

    fn missing(&self, error: &dyn fmt::Display) {
        let program = self.0.program.display();
        tracing::warn!(%program, %error, "no guard: `on_disconnect: stop` work continues if this agent crashes");
    }

    pub(crate) fn started(&self, leader: Leader) {
        self.0.state.lock().write(&Line::Started(leader));
    }
}

impl State {
    fn write(&mut self, line: &Line) {
        let Some(pipe) = &mut self.pipe else { return };
        // A line is shorter than a pipe's atomic write, so it is never cut.
        match pipe.write_all(format!("{line}\n").as_bytes()) {
            Ok(()) => {}
            // The pipe is full: the guard does not read. The deadlines that it read last apply.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                tracing::warn!(%error, "the guard of running work has ended");
                self.pipe = None;
            }
        }
    }
}

async fn start(guard: &Inner) -> io::Result<File> {
    let mut child = Command::new(&guard.program)
        .arg0("downbeat")
        .arg("guard")
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(io::Error::other("it has no pipes"));
    };
    let pipe = File::from(stdin.into_owned_fd()?);
    // tokio resets it. A write that waits for a guard would delay all leases of this agent.
    fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    // Reaped whenever it ends.
    tokio::spawn(async move { child.wait().await });
    let mut lines = BufReader::new(stdout).lines();
    match lines.next_line().await? {
        Some(line) if line == READY => Ok(pipe),
        _ => Err(io::Error::other("it ended at once")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use downbeat_core::ids::ExecutionId;
    use uuid::Uuid;

    use super::*;
    use crate::backend::Identity;

    const DEADLINES: Deadlines = Deadlines { end: Duration::from_secs(1), kill: Duration::from_secs(2) };

    /// A guard that is ready, and then runs the script.
    async fn guard(dir: &Path, script: &str) -> Guard {
        let program = dir.join("guard");
        // Written by another process: a file that this process had open for writing could not be executed at once.
        let made = Command::new("sh")
            .args(["-c", "printf '#!/bin/sh\necho ready\n%s\n' \"$1\" > \"$0\" && chmod +x \"$0\""])
            .args([program.as_os_str(), script.as_ref()])
            .status();
        assert!(made.await.unwrap().success());
        let guard = Guard::new(program, DEADLINES);
        let identity = Identity { execution: ExecutionId(Uuid::from_u128(1)), attempt: 1 };
        guard.watch(&Work::Processes(identity)).await;
        assert!(guard.0.state.lock().pipe.is_some());
        guard
    }

    #[tokio::test]
    async fn a_guard_that_does_not_read_blocks_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let guard = guard(dir.path(), "exec sleep 30").await;
        // More than any pipe holds.
        for _ in 0..100_000 {
            guard.extend(DEADLINES);
        }
        assert!(guard.0.state.lock().pipe.is_some(), "it is still there");
    }

    #[tokio::test]
    async fn a_guard_learns_that_work_is_done_unless_some_of_it_may_still_run() {
        for (is_left_over, is_sent) in [(false, true), (true, false)] {
            let dir = tempfile::tempdir().unwrap();
            let guard = guard(dir.path(), "cd \"${0%/*}\"; cat > part; mv part heard").await;
            if is_left_over {
                guard.leave_over();
            }
            guard.done();
            let heard = dir.path().join("heard");
            let wait = async {
                while !heard.exists() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(START, wait).await.expect("the pipe is closed");
            let heard = fs::read_to_string(heard).unwrap();
            assert_eq!(heard.contains(&format!("{}\n", Line::Done)), is_sent, "{heard}");
        }
    }
}
