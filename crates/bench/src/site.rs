//! Owns the measured system: servers as processes on one store, and agents in this process. Everything is removed at
//! the end, also after a failure or an interrupt.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use downbeat_agent::{Agent, Grpc, Handle, Settings};
use tempfile::TempDir;

use super::database::Database;
use super::server::{Launch, Server, cannot};
use crate::failure::{Code, Failure};

/// The requested system.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// `sqlite` for a new file, or a location as in `server --store`; in PostgreSQL a temporary database is created.
    pub store: String,
    pub servers: u32,
    /// Additional arguments of every server.
    pub flags: Vec<String>,
}

impl Wanted {
    pub(super) fn new(store: &str, servers: u32) -> Self {
        Self { store: store.to_owned(), servers, flags: Vec::new() }
    }

    fn is_postgres(&self) -> bool {
        self.store.starts_with("postgres://") || self.store.starts_with("postgresql://")
    }

    /// Fails unless the store is PostgreSQL; for loads that query the database.
    pub(super) fn needs_postgres(&self) -> Result<(), Failure> {
        if self.is_postgres() {
            return Ok(());
        }
        Err(Failure::bad_input(
            "this load measures servers that share a PostgreSQL; use --store postgres://…",
        ))
    }

    fn check(&self) -> Result<(), Failure> {
        if self.servers == 0 {
            return Err(Failure::bad_input("--servers must be at least 1"));
        }
        if self.servers > 1 && !self.is_postgres() {
            return Err(Failure::bad_input(
                "SQLite cannot be shared by several servers; use --store postgres://… or --servers 1",
            ));
        }
        Ok(())
    }
}

/// The running system; see the module.
#[derive(Debug)]
pub(super) struct Site {
    pub servers: Vec<Server>,
    pub store: String,
    database: Option<Database>,
    directory: TempDir,
}

/// Starts sites, runs the load, and removes everything in any case.
pub(super) async fn within<T>(
    wanted: &[Wanted],
    work: impl AsyncFnOnce(&mut [Site]) -> Result<T, Failure>,
) -> Result<T, Failure> {
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
    async fn make(wanted: &Wanted) -> Result<Self, Failure> {
        let directory = tempfile::tempdir().map_err(|error| cannot("create a directory", &error))?;
        let database = match wanted.is_postgres() {
            true => Some(Database::create(&wanted.store).await?),
            false => None,
        };
        let kind = wanted.store.split(':').next().unwrap_or_default().to_owned();
        Ok(Self { servers: Vec::new(), store: kind, database, directory })
    }

    async fn start(&mut self, wanted: &Wanted) -> Result<(), Failure> {
        let location = match (&self.database, wanted.store.as_str()) {
            (Some(database), _) => database.location().to_owned(),
            (None, "sqlite") => format!("sqlite:{}", self.directory.path().join("bench.db").display()),
            (None, other) => other.to_owned(),
        };
        for number in 1..=wanted.servers {
            let launch = Launch {
                name: format!("server-{number}"),
                store: location.clone(),
                directory: self.directory.path().to_owned(),
                flags: wanted.flags.clone(),
            };
            self.servers.push(Server::start(launch).await?);
        }
        Ok(())
    }

    async fn end(mut self) -> Result<(), Failure> {
        self.servers.clear();
        match &self.database {
            Some(database) => database.remove().await,
            None => Ok(()),
        }
    }

    /// Returns a server for requests that any server can answer. It sees other servers' commits through the feed.
    pub(super) fn first(&self) -> &Server {
        &self.servers[0]
    }

    /// Returns the servers in turn.
    pub(super) fn server(&self, turn: u64) -> &Server {
        let count = self.servers.len() as u64;
        &self.servers[usize::try_from(turn % count).unwrap_or(0)]
    }

    pub(super) fn database(&self) -> Result<&Database, Failure> {
        self.database.as_ref().ok_or_else(|| Failure::bug("there is no database in this store"))
    }

    /// Starts real agents, spread over the servers: each knows all servers, in a different order. Waits until all
    /// servers see all agents.
    pub(super) async fn join(&self, nodes: u32, slots: u32) -> Result<Vec<Handle>, Failure> {
        let agents = (0..nodes).map(|index| self.agent(index, slots)).collect();
        let online = r#"downbeat_nodes{status="online"}"#;
        for server in &self.servers {
            server.reached(online, f64::from(nodes), Duration::from_millis(20)).await?;
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

    /// Returns the site's temporary directory.
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
