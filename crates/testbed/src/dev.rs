//! `downbeat dev`: a server and nodes in one process, in a directory of their own.

use std::ops::{Deref, DerefMut};
use std::path::PathBuf;

use tempfile::TempDir;

use crate::server::Server;

/// A running `downbeat dev`.
#[derive(Debug)]
pub struct Dev {
    // Dropped before its directory.
    server: Server,
    pub dir: TempDir,
}

impl Deref for Dev {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl DerefMut for Dev {
    fn deref_mut(&mut self) -> &mut Server {
        &mut self.server
    }
}

impl Dev {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    #[track_caller]
    pub fn start_with(flags: &[&str]) -> Self {
        Self::made(|server| server.with(flags), &["dev", "--data", "data"])
    }

    /// Starts it as the first process of a container. Needs root.
    pub fn start_as_first_process() -> Self {
        let unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
        Self::made(|server| server.with(&["--nodes", "1"]).started_by(&unshare), &["dev", "--data", "data"])
    }

    /// Starts a server without nodes, in its own directory.
    pub fn server(change: impl FnOnce(Server) -> Server) -> Self {
        Self::made(change, &["server", "--store", "sqlite:store.db"])
    }

    #[track_caller]
    fn made(change: impl FnOnce(Server) -> Server, arguments: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let server = change(Server::of(dir.path(), arguments[0], arguments));
        server.serve();
        Self { server, dir }
    }

    /// Writes a file into the directory in which commands run.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}
