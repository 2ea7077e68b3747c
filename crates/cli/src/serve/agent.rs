//! `agent`: this machine's agent as a process.

use std::sync::Arc;

use clap::Args;
use downbeat_agent::{Agent, Grpc, Settings, raise_open_files, reap_orphans, slots_within};

use super::guard::GUARD;
use super::logging;
use super::ready::absolute;
use super::server::Common;
use super::start::agent_ended;
use super::stop::Stop;
use crate::args::Global;
use crate::exit::Result;
use crate::out::Out;
use crate::settings::{AGENT, AgentKeys, Flags, Given, Loaded, Sources, load, load_backends};

#[derive(Debug, Args)]
#[command(
    after_help = "The agent connects to --server HOST[:PORT], else DOWNBEAT_AGENT_SERVER, else `server` in section [agent] \
                  of the settings [default: 127.0.0.1:4681]. DOWNBEAT_SERVER is for client commands and is not read here."
)]
pub(crate) struct AgentArgs {
    #[command(flatten)]
    flags: Flags<AgentKeys>,
    #[command(flatten)]
    common: Common,
    /// Print the settings and the source of each; start nothing
    #[arg(long)]
    print_config: bool,
}

impl AgentArgs {
    fn sources(self, global: &Global) -> Sources {
        let mut flags = self.flags.given;
        if !global.server.is_empty() {
            flags.push(("server", Given::Text(global.server.join(",")), "--server"));
        }
        if let Some(cluster) = &global.cluster {
            flags.push(("cluster", Given::Text(cluster.clone()), "--cluster"));
        }
        self.common.sources(flags)
    }
}

impl From<&AgentKeys> for Settings {
    fn from(keys: &AgentKeys) -> Self {
        let defaults = Settings::new(keys.data.clone());
        Settings {
            // Checked on load.
            servers: keys.servers().unwrap_or_default(),
            cluster: keys.cluster.clone(),
            hostname: keys.hostname.clone(),
            groups: keys.groups.0.clone(),
            labels: keys.labels.texts(),
            capabilities: keys.capabilities.values(),
            slots: keys.slots.unwrap_or(defaults.slots),
            allow: keys.allow.0.clone(),
            only: keys.only.as_ref().map(|only| only.0.clone()),
            pass_env: keys.pass_env.0.clone(),
            guard: Some(GUARD.into()),
            // Checked on load.
            backend: keys.backend_settings().unwrap_or_default(),
            drain_timeout: keys.drain_timeout.0,
            ..defaults
        }
    }
}

pub(crate) async fn run(args: AgentArgs, global: Global, out: Out) -> Result {
    args.common.follow_parent()?;
    let print_config = args.print_config;
    let sources = args.sources(&global);
    let Loaded { keys, mut shown } = load(AGENT, &sources, AgentKeys::check, |keys| {
        let slots = Settings::from(keys).slots;
        vec![("slots", slots.into())]
    })?;
    let (backends, tree) = load_backends(&sources)?;
    shown.tree = tree;
    if print_config {
        return out.result(&shown, || shown.toml());
    }
    logging::start(&keys.log_level, keys.log_format)?;
    let settings = within_open_files(Settings { backends, ..Settings::from(&keys) });
    logging::log_failure(serve(settings).await, keys.log_format)
}

/// Raises the limit of open files, and reduces the slots to what the limit allows.
fn within_open_files(mut settings: Settings) -> Settings {
    match raise_open_files() {
        Ok(open_files) => {
            let most = slots_within(open_files);
            if settings.slots > most {
                tracing::warn!(
                    slots = settings.slots,
                    open_files,
                    "using only {most} slots: more need more open files; raise \
                     LimitNOFILE= of the unit, or `ulimit -Hn`"
                );
                settings.slots = most;
            }
        }
        Err(error) => {
            tracing::warn!(%error, "cannot raise the limit of open files, which limits how many tasks run at once");
        }
    }
    settings
}

async fn serve(settings: Settings) -> Result {
    let mut stop = Stop::listen()?;
    tokio::spawn(reap_orphans());
    // Logged because an agent with another directory is another agent: it neither delivers old results nor stops old
    // processes.
    tracing::info!(hostname = settings.hostname, data = %absolute(&settings.data), "the agent starts");
    let mut agent = Agent::start(settings, Arc::new(Grpc));
    tokio::select! {
        ended = agent.wait() => return ended.map_err(|error| agent_ended(&error)),
        () = stop.requested() => {}
    }
    agent.drain();
    match stop.unless_forced(agent.wait()).await {
        Ok(ended) => ended.map_err(|error| agent_ended(&error)),
        Err(forced) => {
            agent.kill().await;
            Err(forced.into())
        }
    }
}
