//! `agent`: this machine's agent as a process.

use std::sync::Arc;

use clap::Args;
use downbeat_agent::{Agent, Declared, Grpc, Settings, reap_orphans};

use super::guard::GUARD;
use super::logging;
use super::server::{Common, environment};
use super::start::agent_ended;
use super::stop::Stop;
use crate::args::Global;
use crate::exit::Failure;
use crate::out::Out;
use crate::settings::{AGENT, AgentKeys, Derived, Loaded, Sources, load, load_backends};

#[derive(Debug, Args)]
#[command(
    after_help = "The server to dial is --server HOST[:PORT], else DOWNBEAT_AGENT_SERVER, else `server` in section [agent] \
                  of the settings [default: 127.0.0.1:4681]. DOWNBEAT_SERVER is the clients' URL, and not read here."
)]
pub(crate) struct AgentArgs {
    /// What this node is called [default: the machine's hostname]
    #[arg(long, value_name = "NAME")]
    hostname: Option<String>,
    /// Groups that this node belongs to, with commas
    #[arg(long, value_name = "GROUPS")]
    groups: Vec<String>,
    /// A label, as name=value; repeatable
    #[arg(long = "label", value_name = "NAME=VALUE")]
    labels: Vec<String>,
    /// A capability over and above those that are found, as name=value; repeatable
    #[arg(long = "capability", value_name = "NAME=VALUE")]
    capabilities: Vec<String>,
    /// Placed executions at once [default: number of processors]
    #[arg(long, value_name = "N")]
    slots: Option<String>,
    /// Offer a backend that could do anything on this host: exec, docker, file or http; repeatable
    #[arg(long, value_name = "BACKEND")]
    allow: Vec<String>,
    /// Offer nothing but these backends, with commas
    #[arg(long, value_name = "BACKENDS")]
    only: Vec<String>,
    /// Pass an environment variable of the agent to its jobs, as NAME or PREFIX_*; repeatable
    #[arg(long, value_name = "NAME")]
    pass_env: Vec<String>,
    /// Where results are kept until they are acknowledged [default: ./downbeat-data/agent]
    #[arg(long, value_name = "DIR")]
    data: Option<String>,
    /// How long current work may take to end when the agent is told to stop [default: 30s]
    #[arg(long, value_name = "DURATION")]
    drain_timeout: Option<String>,
    #[command(flatten)]
    common: Common,
    /// Show the settings and where each came from; start nothing
    #[arg(long)]
    print_config: bool,
}

impl AgentArgs {
    fn sources(&self, global: &Global) -> Sources {
        let listed = |items: &[String]| (!items.is_empty()).then(|| items.join(","));
        let flags = [
            ("server", listed(&global.server), "--server"),
            ("cluster", global.cluster.clone(), "--cluster"),
            ("hostname", self.hostname.clone(), "--hostname"),
            ("groups", listed(&self.groups), "--groups"),
            ("labels", listed(&self.labels), "--label"),
            ("capabilities", listed(&self.capabilities), "--capability"),
            ("slots", self.slots.clone(), "--slots"),
            ("allow", listed(&self.allow), "--allow"),
            ("only", listed(&self.only), "--only"),
            ("pass_env", listed(&self.pass_env), "--pass-env"),
            ("data", self.data.clone(), "--data"),
            ("drain_timeout", self.drain_timeout.clone(), "--drain-timeout"),
            ("log_level", self.common.log_level.clone(), "--log-level"),
            ("log_format", self.common.log_format.clone(), "--log-format"),
        ];
        Sources {
            config: self.common.config.clone(),
            environment: environment(),
            flags: flags.into_iter().filter_map(|(key, value, flag)| Some((key, value?, flag))).collect(),
        }
    }
}

impl From<&AgentKeys> for Settings {
    fn from(keys: &AgentKeys) -> Self {
        let defaults = Settings::new(keys.data.clone());
        Settings {
            // Checked when they were read.
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
            // Checked when it was read.
            docker: keys.engine().unwrap_or_default(),
            drain_timeout: keys.drain_timeout.0,
            ..defaults
        }
    }
}

pub(crate) async fn run(args: AgentArgs, global: Global, out: Out) -> Result<(), Failure> {
    let sources = args.sources(&global);
    let Loaded { keys, mut shown } = load(AGENT, &sources, AgentKeys::check, |keys| {
        let slots = Settings::from(keys).slots;
        vec![Derived { key: "slots", value: slots.into(), source: "default: number of processors" }]
    })?;
    let (backends, tree) = load_backends(&sources)?;
    shown.tree = tree;
    if args.print_config {
        return out.result(&shown, || shown.toml());
    }
    logging::start(&keys.log_level, keys.log_format)?;
    logging::last_word(serve(&keys, backends).await, keys.log_format)
}

async fn serve(keys: &AgentKeys, backends: Vec<Declared>) -> Result<(), Failure> {
    let mut stop = Stop::listen()?;
    tokio::spawn(reap_orphans());
    let mut agent = Agent::start(Settings { backends, ..Settings::from(keys) }, Arc::new(Grpc));
    tokio::select! {
        ended = agent.wait() => return ended.map_err(|error| agent_ended(&error)),
        () = stop.asked() => {}
    }
    agent.drain();
    match stop.or_insist(agent.wait()).await {
        Ok(ended) => ended.map_err(|error| agent_ended(&error)),
        Err(insisted) => {
            agent.kill().await;
            Err(insisted.into())
        }
    }
}
