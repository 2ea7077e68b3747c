//! Owns one child process from start to end: its streams, its exit, and stopping its tree.

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use nix::sys::signal::Signal;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::explain;
use super::ledger::Ledger;
use super::start::{Process, candidates, environment, start};
use super::tree::{Leader, Tree, terminate};
use crate::backend::{Call, Finish};
use crate::blocking::USERS_FILES;
use crate::guard::Work;
use crate::output::{OutputSink, Stream};

/// After the child's exit, its pipes are read for this long. Usually the pipes close with it; a daemon that it left
/// behind may hold them open forever.
const DRAIN: Duration = Duration::from_millis(250);
/// Work that runs longer than this is recorded with its process, and moved into a control group if it was not started
/// in one. Moving takes the kernel some 10 ms (it waits for all processors), which would be most of the time of a short
/// command.
const LASTING: Duration = Duration::from_millis(50);
/// Limits moves to one tree at a time: when many short commands run at once, most have ended before their move.
static ENCLOSING: Semaphore = Semaphore::const_new(1);
/// How long the end of a process waits for a move in progress.
const ENCLOSE_FOR: Duration = Duration::from_secs(2);
const READ_BYTES: usize = 16 * 1024;
/// Programs here are on disks that a machine cannot run without.
const SYSTEM: [&str; 4] = ["/usr", "/bin", "/sbin", "/lib"];

/// The program to run, without a shell.
#[derive(Debug, Default)]
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) working_dir: Option<PathBuf>,
    pub(crate) stdin: Option<String>,
}

/// Runs a program to its end. After a normal exit its daemons continue, as users of a job runner expect; a cancel ends
/// the whole tree.
pub(crate) async fn run(program: Program, call: &Call, ledger: &Ledger) -> Finish {
    if call.cancel.is_cancelled() {
        return Finish::cancelled(None);
    }
    if let Some(dir) = &program.working_dir {
        match call.cancel.run_until_cancelled(enter(dir)).await {
            None => return Finish::cancelled(None),
            Some(Err(error)) => return explain::wrong_dir(&program, &error),
            Some(Ok(())) => {}
        }
    }
    match call.cancel.run_until_cancelled(look_at(&program, call)).await {
        None => return Finish::cancelled(None),
        Some(Err(error)) => return Finish::failed(None, format!("cannot run `{}`: {error}", program.name)),
        Some(Ok(())) => {}
    }
    if let Some(guard) = &call.guard {
        guard.watch(&Work::Processes(call.identity)).await;
    }
    if let Err(error) = ledger.begin(call.identity) {
        tracing::warn!(execution = %call.identity, %error, "cannot record running work; a restarted agent will not find it");
    }
    let finish = match start(&program, call, &ledger.means) {
        Ok(process) => attend(process, program.stdin, call, ledger).await,
        Err(error) => not_started(program, call, error).await,
    };
    ledger.end(call.identity);
    finish
}

/// Not on a thread that carries heartbeats: the path is the user's, and a mount whose server is gone never responds.
async fn enter(dir: &Path) -> io::Result<()> {
    let dir = dir.to_owned();
    let found = USERS_FILES.run(move || fs::metadata(dir)).await??;
    if found.is_dir() { Ok(()) } else { Err(io::ErrorKind::NotADirectory.into()) }
}

/// The same for the program: its start waits until the kernel has read its file.
async fn look_at(program: &Program, call: &Call) -> io::Result<()> {
    let path = environment(program, call).remove(OsStr::new("PATH"));
    let dir = program.working_dir.clone().unwrap_or_default();
    let files = candidates(&program.name, path.as_deref()).into_iter().map(|file| dir.join(file));
    let files: Vec<PathBuf> = files.take_while(|file| !(is_of_system(file) && file.exists())).collect();
    if files.iter().all(|file| is_of_system(file)) {
        return Ok(());
    }
    // The start reports what is wrong with it.
    USERS_FILES.run(move || files.iter().any(|file| file.is_file())).await.map(drop)
}

fn is_of_system(file: &Path) -> bool {
    SYSTEM.iter().any(|dir| file.starts_with(dir))
}

async fn not_started(program: Program, call: &Call, error: downbeat_spawn::Error) -> Finish {
    let path = environment(&program, call).remove(OsStr::new("PATH"));
    let explained = USERS_FILES.run(move || explain::not_started(&program, path.as_deref(), &error));
    match call.cancel.run_until_cancelled(explained).await {
        None => Finish::cancelled(None),
        Some(explained) => explained.unwrap_or_else(|error| Finish::failed(None, error.to_string())),
    }
}

async fn attend(process: Process, stdin: Option<String>, call: &Call, ledger: &Ledger) -> Finish {
    let Process { mut child, stdin: input, stdout, stderr, cgroup } = process;
    let means = &ledger.means;
    // The group identifies the work's processes; without a group, the first process does.
    let leader = if cgroup.is_none() { Leader::of(child.pid, means) } else { None };
    let tree = Arc::new(Tree::new(call.identity, leader, cgroup, means));
    ledger.attend(call.identity, &tree);
    if let (Some(guard), Some(leader)) = (&call.guard, leader) {
        guard.started(leader);
    }

    let pumps = async {
        tokio::join!(pump(stdout, Stream::Stdout, &call.output), pump(stderr, Stream::Stderr, &call.output));
    };
    tokio::pin!(pumps);
    let feed = feed(input, stdin);
    tokio::pin!(feed);
    let (mut pumping, mut feeding) = (true, true);
    let lasting = tokio::time::sleep(LASTING);
    tokio::pin!(lasting);
    let mut is_short = !tree.is_born_inside;
    let mut enclosing = None;
    let cancelled = loop {
        tokio::select! {
            // The child is not reaped while its tree is being ended: until then its pid is not reused.
            () = call.cancel.cancelled() => break true,
            _ = child.wait() => break false,
            () = &mut pumps, if pumping => pumping = false,
            () = &mut feed, if feeding => feeding = false,
            () = &mut lasting, if is_short => {
                is_short = false;
                record_leader(&tree, call, ledger);
                enclosing = Some(enclose(tree.clone()));
            }
        }
    };
    if let Some(enclosing) = enclosing {
        let _ = tokio::time::timeout(ENCLOSE_FOR, enclosing).await;
    }
    if cancelled {
        let left = if pumping {
            let ending = terminate(&tree, call.grace);
            tokio::pin!(ending);
            tokio::select! {
                left = &mut ending => left,
                // Continues to read, so that a process that writes its last output does not block on a full pipe.
                () = &mut pumps => { pumping = false; ending.await }
            }
        } else {
            terminate(&tree, call.grace).await
        };
        if left > 0 {
            tracing::error!(execution = %call.identity, left, "processes do not end");
            if let Some(guard) = &call.guard {
                guard.leave_over();
            }
        }
    }
    means.release(tree.cgroup());
    if pumping {
        let _ = tokio::time::timeout(DRAIN, &mut pumps).await;
    }
    // After a kill without effect, waiting without a limit would block the lane forever.
    let status = tokio::time::timeout(DRAIN, child.wait()).await;
    match status {
        Ok(Ok(status)) if cancelled => Finish::cancelled(exit_code(status)),
        Ok(Ok(status)) => ended(status),
        _ if cancelled => Finish::cancelled(None),
        Ok(Err(error)) => Finish::failed(None, format!("cannot wait for the process: {error}")),
        Err(_) => Finish::failed(None, "the process does not end"),
    }
}

/// Records the process for the next run of the agent, which finds a process without a group by its pid.
fn record_leader(tree: &Tree, call: &Call, ledger: &Ledger) {
    if let Some(leader) = tree.leader
        && let Err(error) = ledger.started(call.identity, leader)
    {
        tracing::debug!(execution = %call.identity, %error, "the process is not recorded");
    }
}

fn enclose(tree: Arc<Tree>) -> JoinHandle<()> {
    tokio::spawn(async move {
        if let Ok(turn) = ENCLOSING.acquire().await {
            let _ = tokio::task::spawn_blocking(move || {
                tree.enclose();
                drop(turn);
            })
            .await;
        }
    })
}

/// The buffer is allocated only for a stream that has output.
async fn pump(pipe: Receiver, stream: Stream, output: &OutputSink) {
    let mut buffer = Vec::new();
    while pipe.readable().await.is_ok() {
        buffer.reserve(READ_BYTES);
        match pipe.try_read_buf(&mut buffer) {
            Ok(0) => break,
            Ok(_) => {
                output.write(stream, &buffer);
                buffer.clear();
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
}

/// A process that does not read its input to the end (`head`) is not an error.
async fn feed(pipe: Option<Sender>, text: Option<String>) {
    if let (Some(mut pipe), Some(text)) = (pipe, text) {
        let _ = pipe.write_all(text.as_bytes()).await;
        let _ = pipe.shutdown().await;
    }
}

fn exit_code(status: ExitStatus) -> Option<i32> {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal))
}

fn ended(status: ExitStatus) -> Finish {
    if status.success() {
        return Finish::succeeded();
    }
    let error = match status.signal() {
        Some(signal) => match Signal::try_from(signal) {
            Ok(signal) => format!("killed by {signal}"),
            Err(_) => format!("killed by signal {signal}"),
        },
        None => format!("exited with code {}", status.code().unwrap_or(-1)),
    };
    Finish::failed(exit_code(status), error)
}
