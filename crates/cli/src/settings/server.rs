//! Owns the server's keys: their names, defaults and what they must satisfy.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use downbeat_core::{Span, limits};
use serde::{Deserialize, Serialize};

use super::kinds::{List, LogFormat, Size, address, duration, number, some_duration, some_number};

/// Section `[server]` of `downbeat.toml`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServerKeys {
    /// `sqlite:PATH`, `postgres://…` or `memory:`.
    pub(crate) store: String,
    /// URLs of a primary's servers, if this is to be its read replica.
    #[serde(default)]
    pub(crate) replica_of: List,
    /// Where REST is served.
    #[serde(deserialize_with = "address")]
    pub(crate) http: SocketAddr,
    /// More names by which browsers, and on a loopback address all clients, may reach REST.
    #[serde(default)]
    pub(crate) allowed_hosts: List,
    /// Where agents dial in.
    #[serde(deserialize_with = "address")]
    pub(crate) grpc: SocketAddr,
    /// Stable over restarts. Hostname and gRPC port, unless said otherwise.
    #[serde(default)]
    pub(crate) name: Option<String>,
    #[serde(deserialize_with = "duration")]
    pub(crate) heartbeat_interval: Span,
    /// Three heartbeat intervals, unless said otherwise.
    #[serde(default, deserialize_with = "some_duration")]
    pub(crate) node_stale_after: Option<Span>,
    /// Ten heartbeat intervals, unless said otherwise.
    #[serde(default, deserialize_with = "some_duration")]
    pub(crate) node_offline_after: Option<Span>,
    #[serde(deserialize_with = "duration")]
    pub(crate) server_stale_after: Span,
    #[serde(deserialize_with = "duration")]
    pub(crate) lease_ttl: Span,
    #[serde(deserialize_with = "number")]
    pub(crate) retention_days: u32,
    /// Any number, unless said otherwise.
    #[serde(default, deserialize_with = "some_number")]
    pub(crate) max_concurrent_runs: Option<u32>,
    #[serde(deserialize_with = "number")]
    pub(crate) max_pending_runs: u32,
    pub(crate) output_max: Size,
    #[serde(deserialize_with = "duration")]
    pub(crate) shutdown_grace: Span,
    pub(crate) log_level: String,
    pub(crate) log_format: LogFormat,
}

/// All keys, as files, environment and flags may name them.
pub(crate) const KEYS: &[&str] = &[
    "store",
    "replica_of",
    "http",
    "allowed_hosts",
    "grpc",
    "name",
    "heartbeat_interval",
    "node_stale_after",
    "node_offline_after",
    "server_stale_after",
    "lease_ttl",
    "retention_days",
    "max_concurrent_runs",
    "max_pending_runs",
    "output_max",
    "shutdown_grace",
    "log_level",
    "log_format",
];

/// What holds when nothing is said, as text. Those not listed follow from another key.
pub(crate) fn defaults() -> Vec<(&'static str, String)> {
    [
        ("store", "sqlite:./downbeat-data/downbeat.db"),
        ("http", "127.0.0.1:4680"),
        ("grpc", "127.0.0.1:4681"),
        ("heartbeat_interval", "10s"),
        ("server_stale_after", "10s"),
        ("lease_ttl", "30s"),
        ("retention_days", "7"),
        ("max_pending_runs", "1000"),
        ("output_max", "1MiB"),
        ("shutdown_grace", "30s"),
        ("log_level", "info"),
        ("log_format", "text"),
    ]
    .into_iter()
    .map(|(key, value)| (key, value.to_owned()))
    .collect()
}

/// This machine's name.
pub(crate) fn hostname() -> String {
    nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok())
        .unwrap_or_else(|| "localhost".to_owned())
}

impl ServerKeys {
    pub(crate) fn node_stale_after(&self) -> Span {
        self.node_stale_after.unwrap_or(Span(self.heartbeat_interval.0 * 3))
    }

    pub(crate) fn node_offline_after(&self) -> Span {
        self.node_offline_after.unwrap_or(Span(self.heartbeat_interval.0 * 10))
    }

    /// What single values cannot show to be wrong. Answers the key and why.
    pub(crate) fn check(&self) -> Result<(), (&'static str, String)> {
        let zero = Span::default();
        for (key, span) in [
            ("heartbeat_interval", self.heartbeat_interval),
            ("server_stale_after", self.server_stale_after),
            ("lease_ttl", self.lease_ttl),
            ("node_stale_after", self.node_stale_after()),
        ] {
            if span == zero {
                return Err((key, "must be longer than nothing".to_owned()));
            }
        }
        for url in &self.replica_of.0 {
            let rest = url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
            if rest.is_none_or(|rest| rest.is_empty() || rest.starts_with(':') || rest.contains(['/', ' '])) {
                return Err(("replica_of", format!("`{url}` is not a server's URL; write http://HOST:PORT")));
            }
        }
        for name in &self.allowed_hosts.0 {
            if name.contains(['/', ' ', '@']) || (name.contains(':') && name.parse::<IpAddr>().is_err()) {
                return Err((
                    "allowed_hosts",
                    format!("`{name}` is not a name; write jobs.example, without a port, or * for any name"),
                ));
            }
        }
        if self.server_stale_after < Span::from_secs(1) {
            return Err((
                "server_stale_after",
                format!(
                    "{} is shorter than 1s: busy servers would be taken for gone",
                    self.server_stale_after
                ),
            ));
        }
        for (key, most) in [
            ("max_concurrent_runs", self.max_concurrent_runs),
            ("max_pending_runs", Some(self.max_pending_runs)),
        ] {
            if most == Some(0) {
                return Err((key, "must be 1 at least: with 0 no run would ever begin".to_owned()));
            }
        }
        if self.name.as_ref().is_some_and(|name| name.trim().is_empty()) {
            return Err(("name", "must not be empty".to_owned()));
        }
        self.check_heartbeats()?;
        if self.node_offline_after() <= self.node_stale_after() {
            return Err((
                "node_offline_after",
                format!(
                    "{} is not longer than node_stale_after ({}); raise it",
                    self.node_offline_after(),
                    self.node_stale_after()
                ),
            ));
        }
        if self.output_max.0 < limits::OUTPUT_LEAST_BYTES {
            let least = Size(limits::OUTPUT_LEAST_BYTES);
            return Err(("output_max", format!("{} is less than {least}; raise it", self.output_max)));
        }
        Ok(())
    }

    /// Whether a node that misses one heartbeat keeps its status and its leases.
    fn check_heartbeats(&self) -> Result<(), (&'static str, String)> {
        let interval = self.heartbeat_interval;
        let shortest = Span(Duration::from_millis(limits::HEARTBEAT_LEAST_MS));
        if interval < shortest {
            return Err(("heartbeat_interval", format!("{interval} is shorter than {shortest}; raise it")));
        }
        let least = Span(interval.0.saturating_mul(limits::SILENCE_LEAST_INTERVALS));
        for (key, span, effect) in [
            ("lease_ttl", self.lease_ttl, "leases would run out"),
            ("node_stale_after", self.node_stale_after(), "nodes would become stale again and again"),
        ] {
            if span < least {
                let why = format!(
                    "{span} is shorter than {} heartbeat intervals ({least}): {effect}; raise it",
                    limits::SILENCE_LEAST_INTERVALS
                );
                return Err((key, why));
            }
        }
        Ok(())
    }
}
