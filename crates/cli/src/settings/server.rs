//! Owns the server's settings: their rows, their types, and their checks.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use downbeat_core::outbound::Allow;
use downbeat_core::{Span, limits};
use serde::{Deserialize, Serialize};

use super::kinds::{List, LogFormat, Size, address, duration, number, some_duration, some_number, some_size};
use super::table::Fallback::{Follows, Is, Unset};
use super::table::{HasSection, Section, Setting};

/// Section `[server]` of `downbeat.toml`.
pub(crate) const SERVER: Section = Section { name: "server", settings: SETTINGS };

#[rustfmt::skip]
const SETTINGS: &[Setting] = &[
    Setting::new("store", "--store STORE", Is("sqlite:./downbeat-data/downbeat.db"),
        "Where state is stored: sqlite:PATH, postgres://USER@HOST:PORT/DATABASE, or memory:"),
    Setting::new("replica_of", "--replica-of URL", Unset,
        "Run as a read replica of the server at this URL; several servers of one primary, comma-separated"),
    Setting::new("http", "--http ADDR", Is("127.0.0.1:4680"), "Address of the REST API"),
    Setting::new("allowed_hosts", "--allowed-hosts NAMES", Unset,
        "Additional host names that browsers (on a loopback address: all clients) may use for --http, comma-separated; * allows any"),
    Setting::new("hooks_allow", "--hooks-allow HOSTS", Unset,
        "Names, addresses and networks that webhooks may call although they are loopback, link-local or a cloud's metadata, comma-separated"),
    Setting::new("smtp_url", "--smtp-url URL", Unset,
        "Mail server for e-mails about runs: smtp://HOST:PORT (add ?tls=required for STARTTLS) or smtps://USER:PASSWORD@HOST"),
    Setting::new("smtp_from", "--smtp-from ADDRESS", Unset, "Sender of e-mails about runs"),
    Setting::new("grpc", "--grpc ADDR", Is("127.0.0.1:4681"), "Address for agents"),
    Setting::new("name", "--name NAME", Follows("hostname and gRPC port"), "Name of this server; keep it over restarts"),
    Setting::new("heartbeat_interval", "--heartbeat-interval DURATION", Is("10s"), "How often agents send a heartbeat"),
    Setting::new("node_stale_after", "--node-stale-after DURATION", Follows("3 heartbeat intervals"),
        "Silence after which a node gets no new executions"),
    Setting::new("node_offline_after", "--node-offline-after DURATION", Follows("10 heartbeat intervals"),
        "Silence after which the executions of a node are lost"),
    Setting::new("forget_nodes_after", "--forget-nodes-after DURATION", Is("0s"),
        "How long a node may be offline until it is deleted; 0s keeps it forever"),
    Setting::new("max_nodes", "--max-nodes NODES", Is("10000"), "How many nodes of one cluster may be online or stale at once"),
    Setting::new("server_stale_after", "--server-stale-after DURATION", Is("10s"),
        "Silence after which other servers take over the runs of a server"),
    Setting::new("lease_ttl", "--lease-ttl DURATION", Is("30s"), "How long a lease lasts without a heartbeat"),
    Setting::new("retention_days", "--retention-days DAYS", Is("7"), "How long ended runs are kept; 0 keeps them forever"),
    Setting::new("keep_executions", "--keep-executions COUNT", Is("10"),
        "How many executions of a standing task are kept for each node; those of deleted tasks and nodes are kept for `retention_days`"),
    Setting::new("keep_runs", "--keep-runs RUNS", Follows("any number"),
        "How many ended runs are kept; the oldest are removed, but no run within an hour of its end"),
    Setting::new("keep_events", "--keep-events EVENTS", Follows("any number"),
        "How many events are kept; the oldest are removed, but none of the last hour"),
    Setting::new("keep_output", "--keep-output SIZE", Follows("any amount"),
        "How much output of all executions together is kept; that of the oldest ended runs is removed, the runs stay"),
    Setting::new("clean_every", "--clean-every DURATION", Is("60s"), "How often a server removes what is not kept"),
    Setting::new("max_concurrent_runs", "--max-concurrent-runs RUNS", Follows("any number"),
        "How many runs of a cluster may be active at once, over all servers; the others wait"),
    Setting::new("max_pending_runs", "--max-pending-runs RUNS", Is("10000"),
        "How many runs of a cluster may wait, or be open without `max_concurrent_runs`; more are refused"),
    Setting::new("hook_rate", "--hook-rate REQUESTS", Is("50"),
        "How many requests per second each HTTP trigger accepts on this server; as many at once"),
    Setting::new("output_max", "--output-max SIZE", Is("1MiB"), "How much output of one execution is kept; earlier output is dropped"),
    Setting::new("shutdown_grace", "--shutdown-grace DURATION", Is("30s"),
        "How long a graceful stop waits for requests in progress"),
    Setting::new("log_level", "", Is("info"), "Log level (error, warn, info, debug, trace) or a filter"),
    Setting::new("log_format", "", Is("text"), "Log format: text or json"),
];

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServerKeys {
    pub(crate) store: String,
    #[serde(default)]
    pub(crate) replica_of: List,
    #[serde(deserialize_with = "address")]
    pub(crate) http: SocketAddr,
    #[serde(default)]
    pub(crate) allowed_hosts: List,
    #[serde(default)]
    pub(crate) hooks_allow: List,
    #[serde(default)]
    pub(crate) smtp_url: Option<String>,
    #[serde(default)]
    pub(crate) smtp_from: Option<String>,
    #[serde(deserialize_with = "address")]
    pub(crate) grpc: SocketAddr,
    #[serde(default)]
    pub(crate) name: Option<String>,
    #[serde(deserialize_with = "duration")]
    pub(crate) heartbeat_interval: Span,
    #[serde(default, deserialize_with = "some_duration")]
    pub(crate) node_stale_after: Option<Span>,
    #[serde(default, deserialize_with = "some_duration")]
    pub(crate) node_offline_after: Option<Span>,
    #[serde(deserialize_with = "duration")]
    pub(crate) forget_nodes_after: Span,
    #[serde(deserialize_with = "number")]
    pub(crate) max_nodes: u32,
    #[serde(deserialize_with = "duration")]
    pub(crate) server_stale_after: Span,
    #[serde(deserialize_with = "duration")]
    pub(crate) lease_ttl: Span,
    #[serde(deserialize_with = "number")]
    pub(crate) retention_days: u32,
    #[serde(deserialize_with = "number")]
    pub(crate) keep_executions: u32,
    #[serde(default, deserialize_with = "some_number")]
    pub(crate) keep_runs: Option<u32>,
    #[serde(default, deserialize_with = "some_number")]
    pub(crate) keep_events: Option<u32>,
    #[serde(default, deserialize_with = "some_size")]
    pub(crate) keep_output: Option<Size>,
    #[serde(deserialize_with = "duration")]
    pub(crate) clean_every: Span,
    #[serde(default, deserialize_with = "some_number")]
    pub(crate) max_concurrent_runs: Option<u32>,
    #[serde(deserialize_with = "number")]
    pub(crate) max_pending_runs: u32,
    #[serde(deserialize_with = "number")]
    pub(crate) hook_rate: u32,
    pub(crate) output_max: Size,
    #[serde(deserialize_with = "duration")]
    pub(crate) shutdown_grace: Span,
    pub(crate) log_level: String,
    pub(crate) log_format: LogFormat,
}

impl HasSection for ServerKeys {
    const SECTION: Section = SERVER;
}

impl ServerKeys {
    pub(crate) fn node_stale_after(&self) -> Span {
        self.node_stale_after.unwrap_or(Span(self.heartbeat_interval.0 * 3))
    }

    pub(crate) fn node_offline_after(&self) -> Span {
        self.node_offline_after.unwrap_or(Span(self.heartbeat_interval.0 * 10))
    }

    /// Checks values that depend on each other. Returns the wrong key, and why it is wrong.
    pub(crate) fn check(&self) -> Result<(), (&'static str, String)> {
        let zero = Span::default();
        for (key, span) in [
            ("heartbeat_interval", self.heartbeat_interval),
            ("server_stale_after", self.server_stale_after),
            ("lease_ttl", self.lease_ttl),
            ("clean_every", self.clean_every),
            ("node_stale_after", self.node_stale_after()),
        ] {
            if span == zero {
                return Err((key, "must be longer than 0".to_owned()));
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
                let why = "is not a name; write jobs.example, without a port, or * for any name";
                return Err(("allowed_hosts", format!("`{name}` {why}")));
            }
        }
        if let Err(error) = Allow::parse(self.hooks_allow.0.iter().map(String::as_str)) {
            return Err(("hooks_allow", error.to_string()));
        }
        if let Some(url) = &self.smtp_url
            && !["smtp://", "smtps://"].iter().any(|scheme| url.starts_with(scheme))
        {
            return Err(("smtp_url", "is not the URL of a mail server; write smtp://HOST:PORT".to_owned()));
        }
        if self.smtp_url.is_some() != self.smtp_from.is_some() {
            return Err(("smtp_from", "smtp_url and smtp_from are set together, or not at all".to_owned()));
        }
        let stale = self.server_stale_after;
        if stale < Span::from_secs(1) {
            let why = format!("{stale} is shorter than 1s: busy servers would be considered dead");
            return Err(("server_stale_after", why));
        }
        for (key, most) in [
            ("max_concurrent_runs", self.max_concurrent_runs),
            ("max_pending_runs", Some(self.max_pending_runs)),
        ] {
            if most == Some(0) {
                return Err((key, "must be at least 1: with 0 no run could ever start".to_owned()));
            }
        }
        if self.hook_rate == 0 {
            return Err((
                "hook_rate",
                "must be at least 1: with 0 no HTTP trigger could start a job".to_owned(),
            ));
        }
        if self.max_nodes == 0 {
            return Err(("max_nodes", "must be at least 1: with 0 no node could register".to_owned()));
        }
        if self.name.as_ref().is_some_and(|name| name.trim().is_empty()) {
            return Err(("name", "must not be empty".to_owned()));
        }
        self.check_retention()?;
        self.check_heartbeats()?;
        let (stale, offline) = (self.node_stale_after(), self.node_offline_after());
        if offline <= stale {
            let why = format!("{offline} is not longer than node_stale_after ({stale}); raise it");
            return Err(("node_offline_after", why));
        }
        if self.output_max.0 < limits::OUTPUT_LEAST_BYTES {
            let least = Size(limits::OUTPUT_LEAST_BYTES);
            return Err(("output_max", format!("{} is less than {least}; raise it", self.output_max)));
        }
        Ok(())
    }

    fn check_retention(&self) -> Result<(), (&'static str, String)> {
        let nothing = "must be at least 1; leave it out to keep everything".to_owned();
        if self.keep_runs == Some(0) {
            return Err(("keep_runs", nothing));
        }
        if self.keep_output == Some(Size(0)) {
            return Err(("keep_output", nothing));
        }
        match self.keep_events {
            Some(events) if u64::from(events) < limits::EVENTS_KEPT_LEAST => {
                let why = format!(
                    "{events} is less than {}: replicas and live pages would start over; raise it",
                    limits::EVENTS_KEPT_LEAST
                );
                Err(("keep_events", why))
            }
            _ => Ok(()),
        }
    }

    /// Checks that a node keeps its status and its leases if it misses one heartbeat.
    fn check_heartbeats(&self) -> Result<(), (&'static str, String)> {
        let interval = self.heartbeat_interval;
        let shortest = Span(Duration::from_millis(limits::HEARTBEAT_LEAST_MS));
        if interval < shortest {
            return Err(("heartbeat_interval", format!("{interval} is shorter than {shortest}; raise it")));
        }
        let least = Span(interval.0.saturating_mul(limits::SILENCE_LEAST_INTERVALS));
        for (key, span, effect) in [
            ("lease_ttl", self.lease_ttl, "leases would expire"),
            ("node_stale_after", self.node_stale_after(), "nodes would become stale repeatedly"),
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
