//! The backend `file`: files of the host, written completely or not at all. It runs no program.

mod absent;
mod stat;
mod write;

use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use downbeat_core::backend::BackendSchema;
use nix::fcntl::OFlag;
use tokio_util::sync::CancellationToken;

use super::params::text;
use crate::backend::{Backend, Call, Finish};
use crate::blocking::USERS_FILES;
use crate::output::Stream;

#[derive(Clone, Copy, Debug)]
pub struct File;

/// A line to print, or why the action failed.
type Reply = Result<String, String>;

#[async_trait]
impl Backend for File {
    fn schema(&self) -> BackendSchema {
        super::schema("file")
    }

    async fn run(&self, call: Call) -> Finish {
        if call.cancel.is_cancelled() {
            return Finish::cancelled(None);
        }
        let path = PathBuf::from(text(&call.params, "path").unwrap_or_default());
        let cancel = call.cancel.clone();
        let work: Box<dyn FnOnce() -> Reply + Send> = match call.action.as_str() {
            "write" => match write::Wanted::read(&call.params) {
                Ok(wanted) => Box::new(move || wanted.write(&path, &cancel)),
                Err(error) => return Finish::failed(None, error),
            },
            "absent" => Box::new(move || absent::remove(&path)),
            "stat" => Box::new(move || stat::describe(&path, &cancel)),
            other => return Finish::failed(None, format!("backend `file` has no action `{other}`")),
        };
        // Not on a thread that carries heartbeats: a mount whose server is gone never responds.
        let work = USERS_FILES.run(work);
        tokio::pin!(work);
        let reply = tokio::select! {
            reply = &mut work => reply,
            () = call.cancel.cancelled() => match tokio::time::timeout(call.grace, work).await {
                Ok(reply) => reply,
                // A thread that hangs in the kernel cannot be ended; it checks `cancel` before it changes anything.
                Err(_) => return Finish::cancelled(None),
            },
        };
        match reply {
            Ok(Ok(line)) => {
                call.output.write(Stream::Stdout, format!("{line}\n").as_bytes());
                Finish::succeeded()
            }
            Ok(Err(_)) if call.cancel.is_cancelled() => Finish::cancelled(None),
            Ok(Err(error)) => Finish::failed(None, error),
            Err(error) => Finish::failed(None, error.to_string()),
        }
    }
}

fn stopped(cancel: &CancellationToken) -> Result<(), String> {
    if cancel.is_cancelled() { Err("cancelled".to_owned()) } else { Ok(()) }
}

/// Opens a file to read it; neither follows a link nor waits for a pipe.
fn open_unfollowed(path: &Path) -> io::Result<std::fs::File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    std::fs::OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)
}

/// A change of a name is durable once its directory is synced.
fn sync_directory_of(path: &Path) -> io::Result<()> {
    std::fs::File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}
