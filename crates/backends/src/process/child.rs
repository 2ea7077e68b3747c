//! Owns the end of one process, detected by its pidfd, or by tokio if the standard library started it.

use std::io;
use std::process::ExitStatus;

use downbeat_spawn::{Started, Watched};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use tokio::runtime::Handle;

use super::orphans::Own;

/// A process of this agent. It is reaped even if this is dropped before its end.
#[derive(Debug)]
pub(super) struct Child {
    /// Not reused until `wait` has returned.
    pub(super) pid: i32,
    kind: Kind,
    ended: Option<ExitStatus>,
    own: Option<Own>,
}

#[derive(Debug)]
enum Kind {
    Cloned(Option<Watched>),
    Standard(tokio::process::Child),
}

impl Child {
    pub(super) fn cloned(started: Started) -> io::Result<Self> {
        let pid = started.pid;
        let own = Own::new(pid);
        let watched = match Watched::new(started) {
            Ok(watched) => watched,
            // Its end could not be detected.
            Err(error) => {
                let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
                tokio::task::spawn_blocking(move || {
                    let _ = waitpid(Pid::from_raw(pid), None);
                    drop(own);
                });
                return Err(error);
            }
        };
        Ok(Self { pid, kind: Kind::Cloned(Some(watched)), ended: None, own })
    }

    pub(super) fn standard(child: tokio::process::Child) -> io::Result<Self> {
        let pid = child.id().ok_or_else(|| io::Error::other("the process has no pid"))?.cast_signed();
        Ok(Self { pid, kind: Kind::Standard(child), ended: None, own: Own::new(pid) })
    }

    /// Can be dropped and called again.
    pub(super) async fn wait(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.ended {
            return Ok(status);
        }
        let status = match &mut self.kind {
            Kind::Cloned(Some(watched)) => watched.end().await?,
            Kind::Cloned(None) => return Err(io::Error::other("the process is not watched")),
            Kind::Standard(child) => child.wait().await?,
        };
        self.ended = Some(status);
        self.own = None;
        Ok(status)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.ended.is_some() {
            return;
        }
        let own = self.own.take();
        match &mut self.kind {
            Kind::Cloned(watched) => {
                if let (Some(watched), Ok(runtime)) = (watched.take(), Handle::try_current()) {
                    runtime.spawn(async move {
                        let _ = watched.end().await;
                        drop(own);
                    });
                }
            }
            // tokio reaps it at some time, so it stays this agent's own.
            Kind::Standard(_) => std::mem::forget(own),
        }
    }
}
