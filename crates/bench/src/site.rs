//! Owns the system under test: servers as processes on one store, and agents in this process. Everything is removed
//! after the load, even if it fails or is interrupted.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use downbeat_agent::{Agent, Grpc, Handle, Settings};
use tempfile::TempDir;

use super::database::Database;
use super::server::{Launch, ONLINE, Server, cannot};
use crate::failure::{Code, Failure, Result};

/// The system to start.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// `sqlite` for a fresh file, or a location as for `server --store`; on a PostgreSQL a fresh database is created.
    pub store: String,
    pub servers: u32,
    /// Additional arguments of every server.
    pub flags: Vec<String>,
    /// The program of the servers; this one if absent.
    pub program: Option<PathBuf>,
}

impl Wanted {
    pub(super) fn new(store: &str, servers: u32) -> Self {
        Self { store: store.to_owned(), servers, flags: Vec::new(), program: None }
    }

    fn is_postgres(&self) -> bool {
        self.store.starts_with("postgres://") || self.store.starts_with("postgresql://")
    }

    /// Checks that the store is a PostgreSQL, for loads that read the database itself.
    pub(super) fn needs_postgres(&self) -> Result<()> {
        if self.is_postgres() {
            return Ok(());
        }
        Err(Failure::bad_input(
            "this load needs --store postgres://…: it is about servers that share a PostgreSQL",
        ))
    }

    fn check(&self) -> Result<()> {
        if self.servers == 0 {
            return Err(Failure::bad_input("--servers must be at least 1"));
        }
        if self.servers > 1 && !self.is_postgres() {
            return Err(Failure::bad_input(
                "only a PostgreSQL is shared: several --servers need --store postgres://…",
            ));
        }
        Ok(())
    }
}

/// The running system under test.
#[derive(Debug)]
pub(super) struct Site {
    pub servers: Vec<Server>,
    /// The kind of store.
    pub store: String,
    database: Option<Database>,
    directory: TempDir,
}

/// Starts sites, runs the work, and removes everything, whatever the result.
pub(super) async fn within<T>(
    wanted: &[Wanted],
    work: impl AsyncFnOnce(&mut [Site]) -> Result<T>,
) -> Result<T> {
    for wanted in wanted {
        wanted.check()?;
    }
    let mut sites = Vec::new();
    let whole = async {
        for wanted in wanted {
            sites.push(Site::make(wanted).await?);
        }
        for (site, wanted) in sites.iter_mut().zip(wanted) {
            site.start(wanted).await?;
        }
        work(&mut sites).await
    };
    let mut result = tokio::select! {
        result = whole => result,
        _ = tokio::signal::ctrl_c() => Err(Failure::new(Code::RunFailed, "interrupted")),
    };
    for site in sites {
        let ended = site.end().await;
        if result.is_ok() {
            ended?;
        } else if let (Err(failure), Err(also)) = (&mut result, ended) {
            failure.details.push(also.message);
        }
    }
    result
}

impl Site {
    async fn make(wanted: &Wanted) -> Result<Self> {
        let directory = tempfile::tempdir().map_err(|error| cannot("make a directory", &error))?;
        let database = match wanted.is_postgres() {
            true => Some(Database::create(&wanted.store).await?),
            false => None,
        };
        let kind = wanted.store.split(':').next().unwrap_or_default().to_owned();
        Ok(Self { servers: Vec::new(), store: kind, database, directory })
    }

    /// Returns the location of the store.
    pub(super) fn location(&self, wanted: &Wanted) -> String {
        match (&self.database, wanted.store.as_str()) {
            (Some(database), _) => database.location().to_owned(),
            (None, "sqlite") => format!("sqlite:{}", self.directory.path().join("bench.db").display()),
            (None, other) => other.to_owned(),
        }
    }

    /// Kills all servers. The store stays.
    pub(super) fn kill_servers(&mut self) {
        self.servers.clear();
    }

    pub(super) async fn start(&mut self, wanted: &Wanted) -> Result<()> {
        let location = self.location(wanted);
        for number in 1..=wanted.servers {
            let launch = Launch {
                name: format!("server-{number}"),
                store: location.clone(),
                directory: self.directory.path().to_owned(),
                flags: wanted.flags.clone(),
                program: wanted.program.clone(),
            };
            self.servers.push(Server::start(launch).await?);
        }
        Ok(())
    }

    async fn end(mut self) -> Result<()> {
        self.servers.clear();
        match &self.database {
            Some(database) => database.remove().await,
            None => Ok(()),
        }
    }

    /// Returns the server for requests that any server can handle. Commits of other servers reach it through the feed.
    pub(super) fn first(&self) -> &Server {
        &self.servers[0]
    }

    /// Returns the next server, in turn.
    pub(super) fn server(&self, turn: u64) -> &Server {
        let count = self.servers.len() as u64;
        &self.servers[usize::try_from(turn % count).unwrap_or(0)]
    }

    pub(super) fn database(&self) -> Result<&Database> {
        self.database.as_ref().ok_or_else(|| Failure::bug("there is no database in this store"))
    }

    /// Starts real agents, spread over the servers: each knows all of them, another one first. Returns when all servers
    /// see all agents.
    pub(super) async fn join(&self, nodes: u32, slots: u32) -> Result<Vec<Handle>> {
        let agents = (0..nodes).map(|index| self.agent(index, slots)).collect();
        for server in &self.servers {
            server.reached(ONLINE, f64::from(nodes), Duration::from_millis(20)).await?;
        }
        Ok(agents)
    }

    fn agent(&self, index: u32, slots: u32) -> Handle {
        let hostname = format!("bench-{index}");
        let mut settings = Settings::new(self.directory.path().join(&hostname));
        settings.servers = self.servers.iter().map(|server| server.grpc.clone()).collect();
        settings.servers.rotate_left(index as usize % self.servers.len());
        settings.hostname = hostname;
        settings.slots = slots;
        Agent::start(settings, Arc::new(Grpc))
    }

    /// Removed with the site.
    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(super) fn cpu_seconds(&self) -> f64 {
        self.servers.iter().map(Server::cpu_seconds).sum()
    }

    pub(super) fn rss_bytes(&self) -> u64 {
        self.servers.iter().map(Server::rss_bytes).sum()
    }
}
