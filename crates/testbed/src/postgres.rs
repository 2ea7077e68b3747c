//! A test's own PostgreSQL. It can be stopped, crashed, killed, frozen and run out of disk, and restarts on the same
//! port.

use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use tokio_postgres::{Client, NoTls};

use crate::disk::SmallDisk;
use crate::processes::{children, is_alive, signal};
use crate::program::repository;
use crate::wait::eventually;

/// Enough for what a few minutes of a test write.
const DISK_MEBIBYTES: usize = 400;

/// A running PostgreSQL. It is removed when this is dropped.
#[derive(Debug)]
pub struct Postgres {
    directory: PathBuf,
    pub url: String,
    pub port: u16,
    /// Only as root.
    pub disk: Option<SmallDisk>,
}

fn script(verb: &str, directory: &Path) -> Result<String, String> {
    let script = repository().join("scripts/postgres");
    let output = Command::new(script).arg(verb).arg(directory).output().unwrap();
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

impl Postgres {
    /// Starts one in a directory of its own, with the certificate that is there.
    pub fn start_in(directory: PathBuf) -> Self {
        let url = script("start", &directory).unwrap();
        let port = url.rsplit_once(':').unwrap().1.split_once('/').unwrap().0.parse().unwrap();
        Self { directory, url, port, disk: None }
    }

    /// Starts one in a directory; as root on a small disk.
    pub async fn start(base: &Path) -> Self {
        let at = base.join("disk");
        std::fs::create_dir_all(&at).unwrap();
        let disk = geteuid().is_root().then(|| SmallDisk::mount(&at, DISK_MEBIBYTES));
        let mut postgres = Self::start_in(at.join("postgres"));
        postgres.disk = disk;
        let client = postgres.client().await.unwrap();
        // A small disk has room for few segments of the log.
        for setting in ["max_wal_size = '96MB'", "min_wal_size = '32MB'"] {
            client.batch_execute(&format!("ALTER SYSTEM SET {setting}")).await.unwrap();
        }
        client.batch_execute("SELECT pg_reload_conf()").await.unwrap();
        postgres
    }

    /// Connects to it directly. Returns nothing if it is not running.
    pub async fn client(&self) -> Option<Client> {
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await.ok()?;
        tokio::spawn(connection);
        Some(client)
    }

    async fn run(&self, verb: &'static str) -> Result<String, String> {
        let directory = self.directory.clone();
        tokio::task::spawn_blocking(move || script(verb, &directory)).await.unwrap()
    }

    /// Starts it unless it is running.
    pub async fn resume(&self) -> Result<(), String> {
        self.run("start").await.map(drop)
    }

    /// Stops it as an administrator would: it disconnects its clients and ends cleanly.
    pub async fn halt(&self) {
        let _ = self.run("halt").await;
    }

    /// Ends it at once. Its next start recovers.
    pub async fn crash(&self) {
        let _ = self.run("crash").await;
    }

    /// Ends all its processes with `kill -9`.
    pub async fn kill(&self) {
        let killed = self.signal_all(Signal::SIGKILL);
        let gone = || async { killed.iter().all(|pid| !is_alive(*pid)).then_some(()) };
        eventually("PostgreSQL is gone", gone).await;
        // If nobody reaps orphans it remains a zombie, and a start would take it for running.
        let _ = std::fs::remove_file(self.directory.join("data/postmaster.pid"));
    }

    /// Stops all its processes with SIGSTOP.
    pub fn freeze(&self) {
        self.signal_all(Signal::SIGSTOP);
    }

    /// Continues them with SIGCONT.
    pub fn thaw(&self) {
        self.signal_all(Signal::SIGCONT);
    }

    fn signal_all(&self, what: Signal) -> Vec<i32> {
        let Some(postmaster) = self.postmaster() else { return Vec::new() };
        // The children are listed before the postmaster ends. It is signalled first, or it would restart them.
        let mut processes = vec![postmaster];
        processes.extend(children(postmaster));
        processes.iter().for_each(|pid| signal(*pid, what));
        processes
    }

    fn postmaster(&self) -> Option<i32> {
        let text = std::fs::read_to_string(self.directory.join("data/postmaster.pid")).ok()?;
        text.lines().next()?.trim().parse().ok()
    }

    /// Returns the processes that serve connections of the tested servers.
    pub async fn backends(&self) -> Vec<i32> {
        let sql = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'downbeat%' ORDER BY pid";
        let Some(client) = self.client().await else { return Vec::new() };
        let rows = client.query(sql, &[]).await.unwrap_or_default();
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Ends connections with `pg_terminate_backend`.
    pub async fn terminate(&self, pids: &[i32]) {
        if let Some(client) = self.client().await {
            let _ = client
                .execute("SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) AS pid", &[&pids])
                .await;
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Some(disk) = &self.disk {
            disk.empty();
        }
        self.thaw();
        let _ = script("stop", &self.directory);
    }
}
