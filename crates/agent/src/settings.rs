//! Owns the settings of an agent. The CLI reads files, environment and flags.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use downbeat_backends::{BackendSettings, Declared};
use downbeat_core::limits;
use downbeat_core::node::Description;
use serde_json::Value;

#[derive(Clone, Debug)]
pub struct Settings {
    /// Servers to connect to, `host:port` each. The agent uses the first that responds, and the others when
    /// it fails.
    pub servers: Vec<String>,
    /// Name or id of the cluster.
    pub cluster: String,
    /// The node's identity, together with the cluster.
    pub hostname: String,
    pub groups: Vec<String>,
    pub labels: BTreeMap<String, String>,
    /// Added to the capabilities that the agent detects; the same name replaces a detected one.
    pub capabilities: BTreeMap<String, Value>,
    /// How many placed executions run at once.
    pub slots: u32,
    /// Backends that could do anything on the host, and are offered only if named here: `exec`, `docker`,
    /// `file`, `http`.
    pub allow: Vec<String>,
    /// Offers only these.
    pub only: Option<Vec<String>>,
    /// The user's own backends. Their declaration permits them.
    pub backends: Vec<Declared>,
    /// Environment variables of the agent that work gets in addition to the usual few: `NAME` or `PREFIX_*`.
    pub pass_env: Vec<String>,
    /// The program whose command `guard` ends `on_disconnect: stop` work when the agent cannot;
    /// `/proc/self/exe` in a process of that program. Without one, only a running agent can end such work.
    pub guard: Option<PathBuf>,
    /// The settings of single backends, `[agent.backend.NAME]`.
    pub backend: BackendSettings,
    /// Holds unacknowledged results and the ledger of processes. One agent per directory.
    pub data: PathBuf,
    /// How long current work may take to end when the agent is asked to stop.
    pub drain_timeout: Duration,
    /// From TERM to KILL.
    pub grace: Duration,
    pub tuning: Tuning,
}

impl Settings {
    /// Returns the defaults; `data` is the data directory.
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

    /// Returns the node as these settings describe it, without what the agent finds on its host.
    pub fn description(&self) -> Description {
        Description {
            hostname: self.hostname.clone(),
            groups: self.groups.clone(),
            labels: self.labels.clone(),
            capabilities: self.capabilities.clone(),
            backends: Vec::new(),
            slots: self.slots,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    pub fn system_hostname() -> String {
        nix::unistd::gethostname()
            .ok()
            .map(|name| name.to_string_lossy().into_owned())
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| "localhost".to_owned())
    }
}

/// Settings that only tests and simulations have a reason to change.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// How long a poll waits at the server.
    pub poll_wait: Duration,
    /// Work that ends sooner reports its start together with its end.
    pub started_after: Duration,
    /// How long output waits for more output.
    pub output_interval: Duration,
    /// Pauses between attempts to reach a server: the first one, doubled up to the last, each with jitter.
    pub backoff_least: Duration,
    pub backoff_most: Duration,
    /// The same between attempts to register when a server refuses the node.
    pub refused_least: Duration,
    pub refused_most: Duration,
    /// The time for the last results to be acknowledged when the agent stops. The next start delivers the
    /// others.
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
