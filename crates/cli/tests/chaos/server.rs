//! Owns one server process and the wires to and from it.

use std::fs::{File, OpenOptions};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::postgres::Postgres;
use crate::proxy::Proxy;
use crate::support::{free_address, signal, within};

/// A server that was told to stop takes no longer.
const STOP: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) name: String,
    http: String,
    grpc: String,
    store: String,
    directory: PathBuf,
    /// To its REST port, from clients.
    pub(crate) rest: Proxy,
    /// To its agents' port.
    pub(crate) agents: Proxy,
    /// To PostgreSQL, from it.
    pub(crate) database: Proxy,
    child: Mutex<Option<Child>>,
    /// How long its log was when it was last started.
    log_begins: AtomicUsize,
    /// Held by a fault for as long as it lasts: one at a time.
    pub(crate) hurt: tokio::sync::Mutex<()>,
}

pub(crate) fn log(directory: &Path, name: &str) -> File {
    OpenOptions::new().create(true).append(true).open(directory.join(format!("{name}.log"))).unwrap()
}

impl Server {
    pub(crate) async fn new(number: usize, directory: &Path, postgres: &Postgres) -> Self {
        let (http, grpc) = (free_address(), free_address());
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let database = Proxy::to(SocketAddr::from(([127, 0, 0, 1], postgres.port))).await;
        Self {
            name: format!("server-{number}"),
            store: format!("postgres://postgres@127.0.0.1:{}/postgres", database.port),
            rest: Proxy::to(address(&http)).await,
            agents: Proxy::to(address(&grpc)).await,
            database,
            http,
            grpc,
            directory: directory.to_owned(),
            child: Mutex::new(None),
            log_begins: AtomicUsize::new(0),
            hurt: tokio::sync::Mutex::default(),
        }
    }

    /// Its REST address past the proxy, where nothing is ever dropped.
    pub(crate) fn direct(&self) -> String {
        format!("http://{}", self.http)
    }

    pub(crate) fn start(&self) {
        let mut child = self.child.lock().unwrap();
        if child.is_some() {
            return;
        }
        self.log_begins.store(self.log().len(), Ordering::Relaxed);
        let started = Command::new(env!("CARGO_BIN_EXE_downbeat"))
            .args(["server", "--store", &self.store, "--http", &self.http, "--grpc", &self.grpc])
            .args(["--name", &self.name, "--heartbeat-interval", "500ms", "--lease-ttl", "3s"])
            .args(["--shutdown-grace", "5s", "--log-level", "info"])
            .current_dir(&self.directory)
            .stdout(Stdio::null())
            .stderr(log(&self.directory, &self.name))
            .spawn()
            .unwrap();
        *child = Some(started);
    }

    pub(crate) fn signal(&self, what: Signal) {
        if let Some(child) = &*self.child.lock().unwrap() {
            signal(child.id().cast_signed(), what);
        }
    }

    pub(crate) fn kill(&self) {
        if let Some(mut child) = self.child.lock().unwrap().take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join(format!("{}.log", self.name))).unwrap_or_default()
    }

    /// Whether it came so far as to serve since it was last started. A start without a store fails, and says so.
    pub(crate) fn served(&self) -> bool {
        self.log()[self.log_begins.load(Ordering::Relaxed)..].contains(" listening ")
    }

    /// Forgets a process that ended by itself; answers whether there was one.
    pub(crate) fn reap(&self) -> bool {
        let mut child = self.child.lock().unwrap();
        let ended = child.as_mut().is_some_and(|child| child.try_wait().unwrap().is_some());
        if ended {
            *child = None;
        }
        ended
    }

    /// SIGTERM, and waits for its end. False: it had to be killed.
    pub(crate) async fn stop(&self) -> bool {
        self.signal(Signal::SIGTERM);
        let ended = within(STOP, || async { self.reap().then_some(()) }).await.is_some();
        self.kill();
        ended
    }

    pub(crate) fn runs(&self) -> bool {
        self.child.lock().unwrap().as_mut().is_some_and(|child| child.try_wait().unwrap().is_none())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
