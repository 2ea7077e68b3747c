//! Owns the agent's side of a guard: starts the process when work needs it, and feeds it.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use super::line::{Line, Work};
use super::program::READY;
use super::watch::Deadlines;
use crate::process::Leader;

/// How long the start of a guard may take on a busy host.
const START: Duration = Duration::from_secs(10);

/// The guard of one attempt. The process is started when the attempt starts something that could outlive the agent.
/// When the last copy is dropped before [`Guard::done`], the guard ends the work.
#[derive(Clone, Debug)]
pub struct Guard(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    program: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    deadlines: Option<Deadlines>,
    /// To the process, while it runs.
    pipe: Option<File>,
}

impl Guard {
    /// `program` is this program, or one that has its command `guard` too.
    pub fn new(program: PathBuf, deadlines: Deadlines) -> Self {
        let state = State { deadlines: Some(deadlines), pipe: None };
        Self(Arc::new(Inner { program, state: Mutex::new(state) }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lease was renewed: the work may go on until then.
    pub fn extend(&self, deadlines: Deadlines) {
        let mut state = self.state();
        state.deadlines = Some(deadlines);
        state.write(&Line::Until(deadlines));
    }

    /// The work has ended.
    pub fn done(&self) {
        let mut state = self.state();
        state.write(&Line::Done);
        state.pipe = None;
    }

    /// To be called before the work starts. Work without a guard is not refused: it ends by the agent's own watch, for
    /// as long as the agent lives.
    pub(crate) async fn watch(&self, work: &Work) {
        let running = self.state().pipe.is_some();
        if !running {
            match tokio::time::timeout(START, start(&self.0)).await {
                Ok(Ok(pipe)) => self.state().pipe = Some(pipe),
                Ok(Err(error)) => return self.missing(&error),
                Err(_) => return self.missing(&"it does not start"),
            }
        }
        let mut state = self.state();
        state.write(&Line::Work(work.clone()));
        if let Some(deadlines) = state.deadlines {
            state.write(&Line::Until(deadlines));
        }
    }

    fn missing(&self, error: &dyn fmt::Display) {
        let program = self.0.program.display();
        tracing::warn!(%program, %error, "no guard: nobody ends `on_disconnect: stop` work if this agent dies");
    }

    pub(crate) fn started(&self, leader: Leader) {
        self.state().write(&Line::Started(leader));
    }
}

impl State {
    fn write(&mut self, line: &Line) {
        let Some(pipe) = &mut self.pipe else { return };
        // A line is shorter than what a pipe takes in one piece, so none is ever cut.
        match pipe.write_all(format!("{line}\n").as_bytes()) {
            Ok(()) => {}
            // The pipe is full: the guard does not read. What it read last holds.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                tracing::warn!(%error, "the guard of running work is gone");
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
    // Reaped whenever it ends.
    tokio::spawn(async move { child.wait().await });
    let mut lines = BufReader::new(stdout).lines();
    match lines.next_line().await? {
        Some(line) if line == READY => Ok(pipe),
        _ => Err(io::Error::other("it ended at once")),
    }
}
