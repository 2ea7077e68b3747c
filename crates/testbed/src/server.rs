//! A server as a process, at addresses that stay the same over restarts.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

use crate::daemon::Daemon;
use crate::port::Port;
use crate::wait::until;

/// `downbeat server` or `downbeat dev`.
#[derive(Debug)]
pub struct Server {
    daemon: Daemon,
    http: Port,
    grpc: Port,
    pub(crate) directory: PathBuf,
    ready: PathBuf,
}

impl Deref for Server {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.daemon
    }
}

impl DerefMut for Server {
    fn deref_mut(&mut self) -> &mut Daemon {
        &mut self.daemon
    }
}

impl Server {
    /// Returns a server on a store, not yet started.
    pub fn new(directory: &Path, name: &str, store: &str) -> Self {
        Self::of(directory, name, &["server", "--name", name, "--store", store])
    }

    /// Returns a server with these arguments, not yet started.
    pub(crate) fn of(directory: &Path, name: &str, arguments: &[&str]) -> Self {
        let (http, grpc) = (Port::reserve(), Port::reserve());
        let ready = directory.join(format!("{name}.ready"));
        let daemon = Daemon::new(directory, name, arguments)
            .with(&["--http", &http.address, "--grpc", &grpc.address])
            .with(&["--ready-file", ready.to_str().expect("a plain path")]);
        Self { daemon, http, grpc, directory: directory.to_owned(), ready }
    }

    pub fn with(mut self, arguments: &[&str]) -> Self {
        self.daemon = self.daemon.with(arguments);
        self
    }

    /// Adds environment variables.
    pub fn with_env(mut self, variables: &[(&str, &str)]) -> Self {
        self.daemon = self.daemon.with_env(variables);
        self
    }

    /// Starts it through another program, whose arguments come first.
    pub fn started_by(mut self, words: &[&str]) -> Self {
        self.daemon = self.daemon.started_by(words);
        self
    }

    /// Starts it, and waits until it is ready.
    #[track_caller]
    pub fn serve(&self) {
        let _ = fs::remove_file(&self.ready);
        self.start();
        until("the server serves", || {
            assert!(self.is_running(), "the server ended");
            self.ready.exists().then_some(())
        });
    }

    /// Returns the address of its REST API: `HOST:PORT`.
    pub fn http(&self) -> &str {
        &self.http.address
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.http.address)
    }

    /// Returns the address for agents: `HOST:PORT`.
    pub fn grpc(&self) -> &str {
        &self.grpc.address
    }

    /// Returns an agent of this server, not yet started.
    pub fn agent(&self, name: &str) -> Daemon {
        Daemon::agent(&self.directory, name, self.grpc())
    }
}
