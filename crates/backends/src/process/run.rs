//! Owns one child process from start to end: its streams, its exit, its tree when it is to stop.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::ledger::Ledger;
use super::tree::{Leader, Tree, terminate};
use crate::backend::{Call, Finish};
use crate::guard::Work;
use crate::output::{OutputSink, Stream};
use crate::variables::{EXECUTION, OUTPUT};

/// After the child's exit, what is in its pipes is read for this long. Usually the pipes end with it; a daemon that
/// it left behind may hold them open for ever.
const DRAIN: Duration = Duration::from_millis(250);
/// Work that lasts longer than this gets a control group. Entering one takes the kernel some 10 ms (it waits for all
/// processors), which would be most of the time of a short command; and it cannot be done in the child before it
/// begins without unsafe code. A shell that enters the group and then becomes the program could, but every command
/// would pay for both.
///
/// The price: when it is cancelled sooner than this, a process is missed that by then has left the process group,
/// dropped its environment and lost its parent, all three.
const ENCLOSE_AFTER: Duration = Duration::from_millis(50);
/// One tree at a time, and then a pause as long again: it takes a look at every process of the host. Where a crowd of
/// short commands is slow because it is a crowd, most of them have ended before their turn comes.
static ENCLOSING: Semaphore = Semaphore::const_new(1);
const READ_BYTES: usize = 16 * 1024;
const EXIT_NOT_FOUND: i32 = 127;
const EXIT_NOT_RUNNABLE: i32 = 126;

/// What is to be run. No shell reads any of it.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) working_dir: Option<PathBuf>,
    pub(crate) stdin: Option<String>,
}

/// Runs it to its end. On a normal exit daemons that it started are left alone, as a user of a job runner expects;
/// when it is cancelled the whole tree goes.
pub(crate) async fn run(program: Program, call: &Call, ledger: &Ledger) -> Finish {
    if call.cancel.is_cancelled() {
        return Finish::cancelled(None);
    }
    if let Some(dir) = &program.working_dir {
        let found = tokio::select! {
            found = is_dir(dir) => found,
            () = call.cancel.cancelled() => return Finish::cancelled(None),
        };
        if !found {
            let (name, dir) = (&program.name, dir.display());
            return Finish::failed(
                None,
                format!("cannot run `{name}`: working directory `{dir}` does not exist"),
            );
        }
    }
    if let Some(guard) = &call.guard {
        guard.watch(&Work::Processes(call.identity)).await;
    }
    if let Err(error) = ledger.begin(call.identity) {
        tracing::warn!(execution = %call.identity, %error, "running work is not recorded: a restart will not find it");
    }
    let finish = match start(&program, call) {
        Ok(child) => attend(child, program.stdin, call, ledger).await,
        Err(error) => {
            let exit_code =
                if error.kind() == io::ErrorKind::NotFound { EXIT_NOT_FOUND } else { EXIT_NOT_RUNNABLE };
            Finish::failed(Some(exit_code), format!("cannot run `{}`: {}", program.name, plain(&error)))
        }
    };
    ledger.end(call.identity);
    finish
}

/// Not on a thread that carries heartbeats: the path is the user's, and a mount whose server is gone never answers.
async fn is_dir(dir: &Path) -> bool {
    tokio::fs::metadata(dir).await.is_ok_and(|metadata| metadata.is_dir())
}

fn plain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "command not found".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    }
}

fn start(program: &Program, call: &Call) -> io::Result<Child> {
    let mut command = Command::new(&program.name);
    command
        .args(&program.args)
        .env_clear()
        .envs(call.environment.iter())
        .envs(program.env.iter().map(|(name, value)| (name, value)))
        .env(EXECUTION, call.identity.to_string())
        .stdin(if program.stdin.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    if let Some(file) = &call.values {
        command.env(OUTPUT, file);
    }
    if let Some(dir) = &program.working_dir {
        command.current_dir(dir);
    }
    command.spawn()
}

async fn attend(mut child: Child, stdin: Option<String>, call: &Call, ledger: &Ledger) -> Finish {
    let leader = child.id().and_then(|pid| Leader::of(pid.cast_signed()));
    if let Some(leader) = leader
        && let Err(error) = ledger.started(call.identity, leader)
    {
        tracing::debug!(execution = %call.identity, %error, "the process is not recorded");
    }
    if let (Some(guard), Some(leader)) = (&call.guard, leader) {
        guard.started(leader);
    }
    let tree = Arc::new(Tree::new(call.identity, leader));

    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let pumps = async {
        tokio::join!(pump(stdout, Stream::Stdout, &call.output), pump(stderr, Stream::Stderr, &call.output));
    };
    tokio::pin!(pumps);
    let feed = feed(child.stdin.take(), stdin);
    tokio::pin!(feed);
    let (mut pumping, mut feeding) = (true, true);
    let lasting = async {
        tokio::time::sleep(ENCLOSE_AFTER).await;
        ENCLOSING.acquire().await.ok()
    };
    tokio::pin!(lasting);
    let mut enclosing = None;
    let cancelled = loop {
        tokio::select! {
            // The child is not waited for while its tree is being ended: unreaped, its number is nobody else's.
            () = call.cancel.cancelled() => break true,
            _ = child.wait() => break false,
            () = &mut pumps, if pumping => pumping = false,
            () = &mut feed, if feeding => feeding = false,
            turn = &mut lasting, if enclosing.is_none() => enclosing = Some(enclose(tree.clone(), turn)),
        }
    };
    if let Some(enclosing) = enclosing {
        let _ = enclosing.await;
    }
    if cancelled {
        let left = if pumping {
            let ending = terminate(&tree, call.grace);
            tokio::pin!(ending);
            tokio::select! {
                left = &mut ending => left,
                // Reads on, so that who writes its last words is not blocked by a full pipe.
                () = &mut pumps => { pumping = false; ending.await }
            }
        } else {
            terminate(&tree, call.grace).await
        };
        if left > 0 {
            tracing::error!(execution = %call.identity, left, "processes do not end");
        }
    } else {
        tree.remove_cgroup();
    }
    if pumping {
        let _ = tokio::time::timeout(DRAIN, &mut pumps).await;
    }
    // After a kill that did not work, waiting without bound would hold the lane for ever.
    let status = tokio::time::timeout(DRAIN, child.wait()).await;
    match status {
        Ok(Ok(status)) if cancelled => Finish::cancelled(exit_code(status)),
        Ok(Ok(status)) => ended(status),
        _ if cancelled => Finish::cancelled(None),
        Ok(Err(error)) => Finish::failed(None, format!("cannot wait for the process: {error}")),
        Err(_) => Finish::failed(None, "the process does not end"),
    }
}

/// Whoever is next waits for the pause, not this one.
fn enclose(tree: Arc<Tree>, turn: Option<SemaphorePermit<'static>>) -> JoinHandle<()> {
    tokio::task::spawn_blocking(move || {
        let begun = Instant::now();
        tree.enclose();
        let pause = begun.elapsed();
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            drop(turn);
        });
    })
}

async fn pump(pipe: Option<impl AsyncRead + Unpin>, stream: Stream, output: &OutputSink) {
    let Some(mut pipe) = pipe else { return };
    let mut buffer = Vec::with_capacity(READ_BYTES);
    while let Ok(read) = pipe.read_buf(&mut buffer).await {
        if read == 0 {
            break;
        }
        output.write(stream, &buffer);
        buffer.clear();
    }
}

/// Who does not read its input to the end (`head`) does nothing wrong.
async fn feed(pipe: Option<ChildStdin>, text: Option<String>) {
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
