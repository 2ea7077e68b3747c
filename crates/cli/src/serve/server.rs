//! `server`: one server as a process.

use std::path::{Path, PathBuf};

use clap::Args;
use downbeat_agent::stop_with_parent;
use downbeat_core::Span;
use downbeat_server::Settings;

use super::ready::{Ready, announce};
use super::start::server_ended;
use super::stop::Stop;
use super::{logging, started};
use crate::exit::{Failure, Result};
use crate::out::Out;
use crate::settings::{Flags, Given, Loaded, SERVER, ServerKeys, Sources, load};

#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    #[command(flatten)]
    flags: Flags<ServerKeys>,
    #[command(flatten)]
    common: Common,
    /// Print the settings and the source of each; start nothing
    #[arg(long)]
    print_config: bool,
    /// Write the addresses to this file when everything is up
    #[arg(long, value_name = "PATH", hide = true)]
    ready_file: Option<PathBuf>,
}

/// The options of both server and agent.
#[derive(Clone, Debug, Args)]
pub(crate) struct Common {
    /// Settings file [default: ./downbeat.toml or /etc/downbeat/downbeat.toml]
    #[arg(long, value_name = "FILE", env = "DOWNBEAT_CONFIG", hide_env_values = true)]
    config: Option<PathBuf>,
    /// Log level (error, warn, info, debug, trace) or a filter [default: info]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// Log format: text or json [default: text]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
    /// Stop when the process that started this one, and has this id, ends, however it ends
    #[arg(long, value_name = "PID", hide = true)]
    stop_with_parent: Option<i32>,
}

impl Common {
    /// Asks the kernel for SIGTERM at the end of the parent, if that is wanted.
    pub(super) fn follow_parent(&self) -> Result {
        if let Some(parent) = self.stop_with_parent {
            stop_with_parent(parent)
                .map_err(|error| Failure::bug(format!("cannot follow the parent process: {error}")))?;
        }
        Ok(())
    }

    /// Returns all sources of settings, with these flags.
    pub(super) fn sources(&self, mut flags: Vec<(&'static str, Given, &'static str)>) -> Sources {
        let own =
            [("log_level", &self.log_level, "--log-level"), ("log_format", &self.log_format, "--log-format")];
        flags.extend(
            own.into_iter().filter_map(|(key, value, flag)| Some((key, Given::Text(value.clone()?), flag))),
        );
        Sources { config: self.config.clone(), environment: environment(), flags }
    }
}

/// Returns the environment of this process. Variables that are not UTF-8 cannot be settings.
fn environment() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

fn settings(sources: &Sources) -> Result<Loaded<ServerKeys>> {
    load(SERVER, sources, ServerKeys::check, |keys| {
        vec![
            ("name", "".into()),
            ("node_stale_after", keys.node_stale_after().to_string().into()),
            ("node_offline_after", keys.node_offline_after().to_string().into()),
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
            hooks_allow: keys.hooks_allow.0.clone(),
            smtp_url: keys.smtp_url.clone(),
            smtp_from: keys.smtp_from.clone(),
            grpc: keys.grpc,
            name: keys.name.clone().unwrap_or_default(),
            heartbeat_interval: keys.heartbeat_interval,
            node_stale_after: keys.node_stale_after(),
            node_offline_after: keys.node_offline_after(),
            forget_nodes_after: keys.forget_nodes_after,
            max_nodes: keys.max_nodes,
            server_stale_after: keys.server_stale_after,
            lease_ttl: keys.lease_ttl,
            retention_days: keys.retention_days,
            keep_executions: keys.keep_executions,
            keep_runs: keys.keep_runs,
            keep_events: keys.keep_events,
            keep_output_bytes: keys.keep_output.map(|size| size.0),
            clean_every: keys.clean_every,
            max_concurrent_runs: keys.max_concurrent_runs,
            max_pending_runs: keys.max_pending_runs,
            hook_rate: keys.hook_rate,
            output_max_bytes: keys.output_max.0,
            shutdown_grace: keys.shutdown_grace,
        }
    }
}

pub(crate) async fn run(args: ServerArgs, out: Out) -> Result {
    args.common.follow_parent()?;
    let Loaded { keys, shown } = settings(&args.common.sources(args.flags.given))?;
    if args.print_config {
        return out.result(&shown, || shown.toml());
    }
    logging::start(&keys.log_level, keys.log_format)?;
    // Every node is a connection, and a connection is an open file.
    if let Err(error) = downbeat_agent::raise_open_files() {
        tracing::warn!(%error, "cannot raise the limit of open files, which limits how many nodes can connect");
    }
    logging::log_failure(serve(&keys, args.ready_file.as_deref(), out).await, keys.log_format)
}

async fn serve(keys: &ServerKeys, ready_file: Option<&Path>, out: Out) -> Result {
    let mut stop = Stop::listen()?;
    let server = started(Settings::from(keys)).await?;
    let ready = Ready::of(&server, Vec::new());
    announce(&ready, ready_file, out, || ready.server_line(&keys.store, &keys.replica_of.0))?;
    tokio::select! {
        ended = server.failed() => return Err(server_ended(&ended)),
        () = stop.requested() => {}
    }
    tracing::info!(grace = %Span(keys.shutdown_grace.0), "stopping");
    Ok(stop.unless_forced(server.stop()).await?)
}
