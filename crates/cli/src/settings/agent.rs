//! Owns the agent's settings: their rows, their types, and their checks.

use std::path::PathBuf;

use downbeat_agent::{BackendSettings, DeclarationRefused, Environment, Settings};
use downbeat_core::Span;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::dial::with_port;
use super::kinds::{Labels, List, LogFormat, duration, some_number};
use super::table::Fallback::{Follows, Is, Unset};
use super::table::Repeats::{Each, Joined};
use super::table::{HasSection, Section, Setting};

/// The key of the settings of single backends: a section of the file, without variable or flag.
pub(crate) const BACKEND: &str = "backend";
/// The key that `docker_socket` is short for.
const DOCKER_SOCKET: &str = "backend.docker.socket";

/// Section `[agent]` of `downbeat.toml`.
pub(crate) const AGENT: Section = Section { name: "agent", settings: SETTINGS };

#[rustfmt::skip]
const SETTINGS: &[Setting] = &[
    Setting::new("server", "", Is("127.0.0.1:4681"), "Addresses of the servers; if one fails, the next is used"),
    Setting::new("cluster", "", Is("default"), "The cluster that the node belongs to"),
    Setting::new("hostname", "--hostname NAME", Follows("the machine's hostname"), "Name of this node"),
    Setting::new("groups", "--groups GROUPS", Is(""), "Groups that this node belongs to, comma-separated")
        .repeats(Joined),
    Setting::new("labels", "--label NAME=VALUE", Is(""), "A label, as name=value; repeatable")
        .repeats(Each),
    Setting::new("capabilities", "--capability NAME=VALUE", Is(""),
        "A capability in addition to the detected ones, as name=value; repeatable").repeats(Each),
    Setting::new("slots", "--slots N", Follows("number of processors"), "How many placed executions run at once"),
    Setting::new("allow", "--allow BACKEND", Is(""),
        "Offer a backend that could do anything on this host: exec, docker, file or http; repeatable").repeats(Joined),
    Setting::new("only", "--only BACKENDS", Unset, "Offer only these backends, comma-separated").repeats(Joined),
    Setting::new("pass_env", "--pass-env NAME", Is(""),
        "Pass an environment variable of the agent to its jobs, as NAME or PREFIX_*; repeatable").repeats(Joined),
    Setting::new("docker_socket", "", Unset,
        "The container engine, unix:///PATH or tcp://HOST:PORT; short for `socket` in [agent.backend.docker]"),
    Setting::new(BACKEND, "", Unset, "Settings of single backends, [agent.backend.NAME]; only in the file"),
    Setting::new("data", "--data DIR", Is("./downbeat-data/agent"),
        "Directory that keeps results until the server acknowledges them"),
    Setting::new("drain_timeout", "--drain-timeout DURATION", Is("30s"),
        "How long running tasks may take to end when the agent stops"),
    Setting::new("log_level", "", Is("info"), "Log level (error, warn, info, debug, trace) or a filter"),
    Setting::new("log_format", "", Is("text"), "Log format: text or json"),
];

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AgentKeys {
    pub(crate) server: List,
    pub(crate) cluster: String,
    #[serde(default = "downbeat_agent::Settings::system_hostname")]
    pub(crate) hostname: String,
    pub(crate) groups: List,
    pub(crate) labels: Labels,
    pub(crate) capabilities: Labels,
    #[serde(default, deserialize_with = "some_number")]
    pub(crate) slots: Option<u32>,
    pub(crate) allow: List,
    #[serde(default)]
    pub(crate) only: Option<List>,
    pub(crate) pass_env: List,
    #[serde(default)]
    pub(crate) docker_socket: Option<String>,
    #[serde(default)]
    pub(crate) backend: Option<serde_json::Map<String, Value>>,
    pub(crate) data: PathBuf,
    #[serde(deserialize_with = "duration")]
    pub(crate) drain_timeout: Span,
    pub(crate) log_level: String,
    pub(crate) log_format: LogFormat,
}

impl HasSection for AgentKeys {
    const SECTION: Section = AGENT;
}

impl AgentKeys {
    /// Checks values that depend on each other. Returns the wrong key, and why it is wrong.
    pub(crate) fn check(&self) -> Result<(), (&'static str, String)> {
        if self.server.0.is_empty() {
            return Err(("server", "is empty; write HOST:PORT".to_owned()));
        }
        self.servers().map_err(|error| ("server", error))?;
        if let Some(refused) = self.pass_env.0.iter().find_map(|entry| Environment::refused(entry)) {
            return Err(("pass_env", refused));
        }
        if self.slots == Some(0) {
            return Err(("slots", "must be at least 1".to_owned()));
        }
        Settings::from(self).description().check().map_err(|bad| match bad.field {
            "hostname" => ("hostname", format!("{}; name this node with --hostname NAME", bad.what)),
            field => (field, bad.what),
        })?;
        match (self.backend_settings(), &self.docker_socket) {
            (Ok(_), _) => Ok(()),
            (Err(refused), Some(_)) if refused.key == DOCKER_SOCKET => Err(("docker_socket", refused.reason)),
            (Err(refused), _) => Err((BACKEND, format!("`{}`: {}", refused.key, refused.reason))),
        }
    }

    /// Returns the addresses to connect to, each with its port.
    pub(crate) fn servers(&self) -> Result<Vec<String>, String> {
        self.server.0.iter().map(|text| with_port(text)).collect()
    }

    /// Returns the settings of single backends, including `docker_socket`.
    pub(crate) fn backend_settings(&self) -> Result<BackendSettings, DeclarationRefused> {
        let mut section = json!(self.backend.clone().unwrap_or_default());
        if let Some(socket) = self.docker_socket.as_deref().filter(|socket| !socket.is_empty()) {
            let docker = section.as_object_mut().map(|section| section.entry("docker").or_insert(json!({})));
            if let Some(docker) = docker.and_then(Value::as_object_mut) {
                docker.insert("socket".to_owned(), socket.into());
            }
        }
        BackendSettings::read(&section)
    }
}
