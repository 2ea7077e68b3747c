//! `server`: one server as a process.

use std::path::{Path, PathBuf};

use clap::Args;
use downbeat_core::Span;
use downbeat_server::Settings;

use super::ready::{Ready, announce};
use super::stop::Stop;
use super::{logging, started};
use crate::exit::Failure;
use crate::out::Out;
use crate::settings::{Derived, Loaded, SERVER, Said, ServerKeys, Sources, load};

#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    /// Where state lives: sqlite:PATH, postgres://USER@HOST:PORT/DATABASE, or memory:
    #[arg(long, value_name = "STORE")]
    store: Option<String>,
    /// Be a read replica of the server at this URL; several of one site with commas
    #[arg(long, value_name = "URL")]
    replica_of: Option<String>,
    /// Where REST is served [default: 127.0.0.1:4680]
    #[arg(long, value_name = "ADDR")]
    http: Option<String>,
    /// More names by which browsers, and on a loopback address all clients, may reach --http, with commas; * is any
    #[arg(long, value_name = "NAMES")]
    allowed_hosts: Option<String>,
    /// Where agents dial in [default: 127.0.0.1:4681]
    #[arg(long, value_name = "ADDR")]
    grpc: Option<String>,
    /// What this server is called, stable over restarts [default: hostname and gRPC port]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// How often agents say that they live [default: 10s]
    #[arg(long, value_name = "DURATION")]
    heartbeat_interval: Option<String>,
    /// Silence after which a node gets no new work [default: 3 heartbeat intervals]
    #[arg(long, value_name = "DURATION")]
    node_stale_after: Option<String>,
    /// Silence after which what a node ran is lost [default: 10 heartbeat intervals]
    #[arg(long, value_name = "DURATION")]
    node_offline_after: Option<String>,
    /// Silence after which the runs of a server have gone to others [default: 10s]
    #[arg(long, value_name = "DURATION")]
    server_stale_after: Option<String>,
    /// How long a lease lasts without a heartbeat [default: 30s]
    #[arg(long, value_name = "DURATION")]
    lease_ttl: Option<String>,
    /// How long ended runs are kept; 0 keeps them for ever [default: 7]
    #[arg(long, value_name = "DAYS")]
    retention_days: Option<String>,
    /// So many runs may be under way at once over all servers of the store; the rest wait [default: any number]
    #[arg(long, value_name = "RUNS")]
    max_concurrent_runs: Option<String>,
    /// So many runs may wait for their turn; more are refused [default: 1000]
    #[arg(long, value_name = "RUNS")]
    max_pending_runs: Option<String>,
    /// Output kept of one execution: its tail [default: 1MiB]
    #[arg(long, value_name = "SIZE")]
    output_max: Option<String>,
    /// How long a graceful stop waits for requests under way [default: 30s]
    #[arg(long, value_name = "DURATION")]
    shutdown_grace: Option<String>,
    #[command(flatten)]
    common: Common,
    /// Show the settings and where each came from; start nothing
    #[arg(long)]
    print_config: bool,
    /// Write the addresses to this file when everything is up
    #[arg(long, value_name = "PATH", hide = true)]
    ready_file: Option<PathBuf>,
}

/// What server and agent have in common.
#[derive(Clone, Debug, Args)]
pub(crate) struct Common {
    /// Settings [default: ./downbeat.toml or /etc/downbeat/downbeat.toml]
    #[arg(long, value_name = "FILE", env = "DOWNBEAT_CONFIG", hide_env_values = true)]
    pub(super) config: Option<PathBuf>,
    /// error, warn, info, debug or trace, or a filter [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub(super) log_level: Option<String>,
    /// text or json [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub(super) log_format: Option<String>,
}

impl ServerArgs {
    fn sources(&self) -> Sources {
        let flags = [
            ("store", &self.store, "--store"),
            ("replica_of", &self.replica_of, "--replica-of"),
            ("http", &self.http, "--http"),
            ("allowed_hosts", &self.allowed_hosts, "--allowed-hosts"),
            ("grpc", &self.grpc, "--grpc"),
            ("name", &self.name, "--name"),
            ("heartbeat_interval", &self.heartbeat_interval, "--heartbeat-interval"),
            ("node_stale_after", &self.node_stale_after, "--node-stale-after"),
            ("node_offline_after", &self.node_offline_after, "--node-offline-after"),
            ("server_stale_after", &self.server_stale_after, "--server-stale-after"),
            ("lease_ttl", &self.lease_ttl, "--lease-ttl"),
            ("retention_days", &self.retention_days, "--retention-days"),
            ("max_concurrent_runs", &self.max_concurrent_runs, "--max-concurrent-runs"),
            ("max_pending_runs", &self.max_pending_runs, "--max-pending-runs"),
            ("output_max", &self.output_max, "--output-max"),
            ("shutdown_grace", &self.shutdown_grace, "--shutdown-grace"),
            ("log_level", &self.common.log_level, "--log-level"),
            ("log_format", &self.common.log_format, "--log-format"),
        ];
        Sources {
            config: self.common.config.clone(),
            environment: environment(),
            flags: flags
                .into_iter()
                .filter_map(|(key, value, flag)| Some((key, Said::Text(value.clone()?), flag)))
                .collect(),
        }
    }
}

/// Variables that are no text are nobody's settings.
pub(super) fn environment() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// Reads the server's settings.
fn settings(sources: &Sources) -> Result<Loaded<ServerKeys>, Failure> {
    let derived = |key, value, source| Derived { key, value, source };
    let span = |span: Span| span.to_string().into();
    load(SERVER, sources, ServerKeys::check, |keys| {
        vec![
            derived("name", "".into(), "default: hostname and gRPC port"),
            derived("max_concurrent_runs", serde_json::Value::Null, "default: any number"),
            derived("node_stale_after", span(keys.node_stale_after()), "default: 3 heartbeat intervals"),
            derived("node_offline_after", span(keys.node_offline_after()), "default: 10 heartbeat intervals"),
        ]
    })
}

impl From<&ServerKeys> for Settings {
    fn from(keys: &ServerKeys) -> Self {
        Settings {
            store: keys.store.clone(),
            replica_of: keys.replica_of.0.clone(),
            http: keys.http,
            allowed_hosts: keys.allowed_hosts.0.clone(),
            grpc: keys.grpc,
            name: keys.name.clone().unwrap_or_default(),
            heartbeat_interval: keys.heartbeat_interval,
            node_stale_after: keys.node_stale_after(),
            node_offline_after: keys.node_offline_after(),
            server_stale_after: keys.server_stale_after,
            lease_ttl: keys.lease_ttl,
            retention_days: keys.retention_days,
            max_concurrent_runs: keys.max_concurrent_runs,
            max_pending_runs: keys.max_pending_runs,
            output_max_bytes: keys.output_max.0,
            shutdown_grace: keys.shutdown_grace,
        }
    }
}

pub(crate) async fn run(args: ServerArgs, out: Out) -> Result<(), Failure> {
    let Loaded { keys, shown } = settings(&args.sources())?;
    if args.print_config {
        return out.result(&shown, || shown.toml());
    }
    logging::start(&keys.log_level, keys.log_format)?;
    // Every node is a connection, and a connection is a file.
    if let Err(error) = downbeat_agent::raise_open_files() {
        tracing::warn!(%error, "cannot raise the limit of open files: it bounds how many nodes can connect");
    }
    logging::last_word(serve(&keys, args.ready_file.as_deref(), out).await, keys.log_format)
}

async fn serve(keys: &ServerKeys, ready_file: Option<&Path>, out: Out) -> Result<(), Failure> {
    let mut stop = Stop::listen()?;
    let server = started(Settings::from(keys)).await?;
    let ready = Ready::of(&server, Vec::new());
    announce(&ready, ready_file, out, || ready.server_line(&keys.store, &keys.replica_of.0))?;
    stop.asked().await;
    tracing::info!(grace = %Span(keys.shutdown_grace.0), "stopping");
    Ok(stop.or_insist(server.stop()).await?)
}
