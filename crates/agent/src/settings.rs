//! Owns what can be set about an agent. Reading files, environment and flags is the CLI's.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use downbeat_backends::{BackendSettings, Declared};
use downbeat_core::limits;
use serde_json::Value;

/// One agent's settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Servers to dial, `host:port` each. The first that answers is used; the others when it fails.
    pub servers: Vec<String>,
    /// Name or id of the cluster.
    pub cluster: String,
    /// With the cluster it is the node's identity.
    pub hostname: String,
    pub groups: Vec<String>,
    pub labels: BTreeMap<String, String>,
    /// Over and above what the agent finds out by itself; the same name replaces what it found.
    pub capabilities: BTreeMap<String, Value>,
    /// How many placed executions run at once.
    pub slots: u32,
    /// Backends that could do anything on the host, and are offered only when named here: `exec`, `docker`, `file`,
    /// `http`.
    pub allow: Vec<String>,
    /// Offer nothing but these.
    pub only: Option<Vec<String>>,
    /// Backends of the user's own. That they are declared is their permission.
    pub backends: Vec<Declared>,
    /// Environment variables of the agent that work gets beside the usual few: `NAME` or `PREFIX_*`.
    pub pass_env: Vec<String>,
    /// The program whose command `guard` ends `on_disconnect: stop` work when the agent cannot; `/proc/self/exe` in a
    /// process of that program. Without one such work ends only while the agent lives.
    pub guard: Option<PathBuf>,
    /// The settings of single backends, `[agent.backend.NAME]`.
    pub backend: BackendSettings,
    /// Results that are not yet acknowledged and the record of what runs. One agent per directory.
    pub data: PathBuf,
    /// How long current work may take to end when the agent is told to stop.
    pub drain_timeout: Duration,
    /// From TERM to KILL.
    pub grace: Duration,
    pub tuning: Tuning,
}

impl Settings {
    /// The defaults, with everything that is kept in `data`.
    pub fn new(data: PathBuf) -> Self {
        Self {
            servers: vec!["127.0.0.1:4681".to_owned()],
            cluster: "default".to_owned(),
            hostname: Self::system_hostname(),
            groups: Vec::new(),
            labels: BTreeMap::new(),
            capabilities: BTreeMap::new(),
            slots: std::thread::available_parallelism()
                .map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX))
                .min(limits::SLOTS_PER_NODE),
            allow: Vec::new(),
            only: None,
            backends: Vec::new(),
            pass_env: Vec::new(),
            guard: None,
            backend: BackendSettings::default(),
            data,
            drain_timeout: Duration::from_secs(30),
            grace: Duration::from_secs(5),
            tuning: Tuning::default(),
        }
    }

    /// What the host calls itself.
    pub fn system_hostname() -> String {
        nix::unistd::gethostname()
            .ok()
            .map(|name| name.to_string_lossy().into_owned())
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| "localhost".to_owned())
    }
}

/// Numbers that no user has a reason to change, and tests and simulations have.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// How long a poll parks at the server.
    pub poll_wait: Duration,
    /// Work that is done sooner says its start and its end at once.
    pub started_after: Duration,
    /// How long output waits for more of it.
    pub output_interval: Duration,
    /// Between attempts to reach a server: the first pause, doubled up to the last, each jittered.
    pub backoff_least: Duration,
    pub backoff_most: Duration,
    /// The same between attempts to be taken as a node, when a server refuses that.
    pub refused_least: Duration,
    pub refused_most: Duration,
    /// For the last results to be acknowledged when the agent stops. What is not is delivered by the next start.
    pub farewell: Duration,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            poll_wait: Duration::from_secs(30),
            started_after: Duration::from_millis(100),
            output_interval: Duration::from_millis(100),
            backoff_least: Duration::from_millis(100),
            backoff_most: Duration::from_secs(5),
            refused_least: Duration::from_secs(1),
            refused_most: Duration::from_secs(60),
            farewell: Duration::from_secs(5),
        }
    }
}
