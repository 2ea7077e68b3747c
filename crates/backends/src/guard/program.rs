//! The guard's process: reads lines of the agent, waits by a clock that also counts suspended time, ends the work.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use tokio::time::Instant;

use super::boot_time;
use super::line::{Line, Work};
use super::watch::{Decision, Ended, Watch};
use crate::builtin::end_container;
use crate::process::{Leader, Means, Tree, terminate};

/// The guard's only output: it watches from now on.
pub(super) const READY: &str = "ready";
/// How long a guard retries to end work: a container whose engine cannot be reached, a process that hangs in the
/// kernel.
const END_FOR: Duration = Duration::from_secs(60 * 60);
/// Between attempts to end a container.
const PAUSE: Duration = Duration::from_millis(250);
const READ_BYTES: usize = 4096;

/// The work that a guard ended, if any.
type Outcome = Option<(Ended, String)>;

/// Runs a guard. Reads from standard input and returns when its work has ended. Call it before the process has other
/// threads.
pub fn watch_over() -> io::Result<Outcome> {
    detach()?;
    let mut input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC)?;
    let mut output = io::stdout();
    writeln!(output, "{READY}")?;
    output.flush()?;

    let mut watch = Watch::default();
    let mut unread = Vec::new();
    loop {
        match watch.decide(boot_time()) {
            Decision::Leave => return Ok(None),
            Decision::End { why, kill_at } => {
                let Some(work) = watch.work.take() else { return Ok(None) };
                return end(&work, watch.leader, kill_at).map(|ended| Some((why, ended)));
            }
            Decision::Wait(until) => {
                if wait(&input, &timer, until)? {
                    read(&mut input, &mut unread, &mut watch);
                }
            }
        }
    }
}

/// Signals that end the agent must not end its guard: a closed terminal, Ctrl-C, TERM to the agent's group.
fn detach() -> io::Result<()> {
    // Fails for the leader of a process group, which gets no such signals.
    let _ = nix::unistd::setsid();
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        signals.add(signal);
    }
    Ok(signals.thread_block()?)
}

/// Waits for input or for a time since boot. Returns whether there is input.
fn wait(input: &File, timer: &TimerFd, until: Option<Duration>) -> io::Result<bool> {
    match until {
        Some(until) => {
            let at = Expiration::OneShot(TimeSpec::from_duration(until));
            timer.set(at, TimerSetTimeFlags::TFD_TIMER_ABSTIME)?;
        }
        None => timer.unset()?,
    }
    let mut ready =
        [PollFd::new(input.as_fd(), PollFlags::POLLIN), PollFd::new(timer.as_fd(), PollFlags::POLLIN)];
    match poll(&mut ready, PollTimeout::NONE) {
        Ok(_) => Ok(ready[0].any().unwrap_or(false)),
        Err(nix::errno::Errno::EINTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn read(input: &mut File, unread: &mut Vec<u8>, watch: &mut Watch) {
    let mut bytes = [0; READ_BYTES];
    match input.read(&mut bytes) {
        Ok(0) => watch.closed = true,
        Ok(count) => {
            unread.extend_from_slice(&bytes[..count]);
            while let Some(length) = unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = unread.drain(..=length).collect();
                let text = str::from_utf8(&line[..length]).unwrap_or_default();
                text.parse::<Line>().into_iter().for_each(|line| watch.receive(line));
            }
            // No line of an agent is that long.
            if unread.len() > READ_BYTES {
                unread.clear();
            }
        }
        // The pipe was empty after all.
        Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
        Err(_) => watch.closed = true,
    }
}

/// Asks the work to end, and kills it at the given time since boot. Returns its description.
fn end(work: &Work, leader: Option<Leader>, kill_at: Duration) -> io::Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let grace = kill_at.saturating_sub(boot_time());
    runtime.block_on(async {
        let deadline = Instant::now() + END_FOR;
        match work {
            Work::Processes(identity) => {
                let tree = Arc::new(Tree::former(*identity, leader, &Means::found()));
                let mut left = terminate(&tree, grace).await;
                while left > 0 && Instant::now() < deadline {
                    left = terminate(&tree, Duration::ZERO).await;
                }
                Ok(format!("execution {identity}"))
            }
            Work::Container { engine, name } => loop {
                match end_container(engine, name, grace).await {
                    Ok(()) => return Ok(format!("container {name}")),
                    Err(error) if Instant::now() > deadline => return Err(io::Error::other(error)),
                    Err(_) => tokio::time::sleep(PAUSE).await,
                }
            },
        }
    })
}
