//! Owns the agent's keys: their names, defaults and what they must satisfy.

use std::path::PathBuf;

use downbeat_agent::{Engine, Environment};
use downbeat_core::Span;
use downbeat_core::node::Description;
use serde::{Deserialize, Serialize};

use super::dial::dialled;
use super::kinds::{Labels, List, LogFormat, duration, some_number};
use super::server::hostname;

/// Section `[agent]` of `downbeat.toml`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AgentKeys {
    /// Where servers listen for agents; the next one is tried when one is away.
    pub(crate) server: List,
    pub(crate) cluster: String,
    pub(crate) hostname: String,
    pub(crate) groups: List,
    pub(crate) labels: Labels,
    /// Found out by itself; what is said here comes on top.
    pub(crate) capabilities: Labels,
    /// Placed executions at once. The number of processors, unless said otherwise.
    #[serde(default, deserialize_with = "some_number")]
    pub(crate) slots: Option<u32>,
    /// Backends that could do anything on the host are off unless they are named here.
    pub(crate) allow: List,
    /// Nothing but these backends.
    #[serde(default)]
    pub(crate) only: Option<List>,
    /// Environment variables of the agent that jobs get beside the usual few: NAME or PREFIX_*.
    pub(crate) pass_env: List,
    /// The container engine of the backend `docker`: unix:///PATH or tcp://HOST:PORT. Found out by itself: what
    /// DOCKER_HOST says, or the usual sockets of Docker and Podman.
    #[serde(default)]
    pub(crate) docker_socket: Option<String>,
    /// Results that are not yet acknowledged live here.
    pub(crate) data: PathBuf,
    #[serde(deserialize_with = "duration")]
    pub(crate) drain_timeout: Span,
    pub(crate) log_level: String,
    pub(crate) log_format: LogFormat,
}

/// All keys, as files, environment and flags may name them.
pub(crate) const KEYS: &[&str] = &[
    "server",
    "cluster",
    "hostname",
    "groups",
    "labels",
    "capabilities",
    "slots",
    "allow",
    "only",
    "pass_env",
    "docker_socket",
    "data",
    "drain_timeout",
    "log_level",
    "log_format",
];

/// What holds when nothing is said, as text. Those not listed are found out by the agent.
pub(crate) fn defaults() -> Vec<(&'static str, String)> {
    [
        ("server", "127.0.0.1:4681"),
        ("cluster", "default"),
        ("groups", ""),
        ("labels", ""),
        ("capabilities", ""),
        ("allow", ""),
        ("pass_env", ""),
        ("data", "./downbeat-data/agent"),
        ("drain_timeout", "30s"),
        ("log_level", "info"),
        ("log_format", "text"),
    ]
    .into_iter()
    .map(|(key, value)| (key, value.to_owned()))
    .chain([("hostname", hostname())])
    .collect()
}

impl AgentKeys {
    /// What single values cannot show to be wrong. Answers the key and why.
    pub(crate) fn check(&self) -> Result<(), (&'static str, String)> {
        if self.server.0.is_empty() {
            return Err(("server", "names no address; write HOST:PORT".to_owned()));
        }
        self.servers().map_err(|error| ("server", error))?;
        if let Some(refused) = self.pass_env.0.iter().find_map(|entry| Environment::refused(entry)) {
            return Err(("pass_env", refused));
        }
        if self.slots == Some(0) {
            return Err(("slots", "must be at least 1".to_owned()));
        }
        self.description().check().map_err(|bad| match bad.field {
            "hostname" => ("hostname", format!("{}; name this node with --hostname NAME", bad.what)),
            field => (field, bad.what),
        })?;
        self.engine().map(|_| ()).map_err(|error| ("docker_socket", error))
    }

    /// What these keys say of the node.
    fn description(&self) -> Description {
        Description {
            hostname: self.hostname.clone(),
            groups: self.groups.0.clone(),
            labels: self.labels.texts(),
            capabilities: self.capabilities.values(),
            backends: Vec::new(),
            slots: self.slots.unwrap_or(1),
            version: String::new(),
        }
    }

    /// The addresses to dial, each with its port.
    pub(crate) fn servers(&self) -> Result<Vec<String>, String> {
        self.server.0.iter().map(|text| dialled(text)).collect()
    }

    /// The container engine that is named, if one is.
    pub(crate) fn engine(&self) -> Result<Option<Engine>, String> {
        self.docker_socket.as_deref().filter(|text| !text.is_empty()).map(Engine::read).transpose()
    }
}
