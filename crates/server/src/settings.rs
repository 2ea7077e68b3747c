//! Owns the settings of a server. The command line reads them from files, environment and flags.

use std::net::{Ipv4Addr, SocketAddr};

use downbeat_api::request::HTTP_PORT;
use downbeat_core::node::Health;
use downbeat_core::{Span, limits, retention};

/// Plain values; the doc comments are the manual.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `sqlite:PATH`, `postgres://…` or `memory:`.
    pub store: String,
    /// URLs of a primary's servers, `http://HOST:PORT` each. If set, this server is a read replica of that primary.
    pub replica_of: Vec<String>,
    /// The address for REST, live streams and metrics.
    pub http: SocketAddr,
    /// Further host names under which browsers, and on a loopback address all clients, may reach `http`.
    /// `localhost` and addresses are always allowed, the hostname on addresses other than loopback. `*`
    /// allows any name.
    pub allowed_hosts: Vec<String>,
    /// Host names, addresses and networks to which jobs' webhooks may connect although they are reserved: this machine,
    /// link-local addresses, the metadata of clouds. Addresses of private networks need no entry.
    pub hooks_allow: Vec<String>,
    /// The mail server for e-mails about runs: `smtp://HOST:PORT`, `smtp://HOST:PORT?tls=required` or `smtps://USER:PASSWORD@HOST`.
    pub smtp_url: Option<String>,
    /// The sender of these e-mails.
    pub smtp_from: Option<String>,
    /// The address for agents.
    pub grpc: SocketAddr,
    /// The name of this server; stable across restarts. Default: hostname and gRPC port.
    pub name: String,
    /// How often agents send a heartbeat.
    pub heartbeat_interval: Span,
    /// Silence after which a node gets no new work.
    pub node_stale_after: Span,
    /// Silence after which a node's running work is lost.
    pub node_offline_after: Span,
    /// How long a node may be offline until it is deleted; 0 keeps it forever.
    pub forget_nodes_after: Span,
    /// How many nodes of one cluster may be online or stale at once.
    pub max_nodes: u32,
    /// Silence after which other servers take over a server's runs.
    pub server_stale_after: Span,
    /// How long a lease lasts without a heartbeat.
    pub lease_ttl: Span,
    /// How many days ended runs are kept; 0 keeps them forever.
    pub retention_days: u32,
    /// How many executions of a standing task are kept for each node, at least 1.
    pub keep_executions: u32,
    /// How many ended runs are kept. Default: any number.
    pub keep_runs: Option<u32>,
    /// How many events are kept. Default: any number.
    pub keep_events: Option<u32>,
    /// How much output of all executions together is kept. Default: any amount.
    pub keep_output_bytes: Option<u64>,
    /// How often a server removes what is not kept.
    pub clean_every: Span,
    /// How many runs of a cluster may be active at once, over all servers; further runs wait. Default: no limit.
    pub max_concurrent_runs: Option<u32>,
    /// How many runs of a cluster may wait; more are refused. Without `max_concurrent_runs`: how many may be open. Each
    /// open run has its plan in the memory of every server.
    pub max_pending_runs: u32,
    /// How many requests per second each HTTP trigger accepts on this server, and how many at once.
    pub hook_rate: u32,
    /// How much output of one execution is kept; earlier output is dropped.
    pub output_max_bytes: u64,
    /// How long a graceful stop waits for requests in progress.
    pub shutdown_grace: Span,
}

impl Settings {
    pub const HTTP_PORT: u16 = HTTP_PORT;
    pub const GRPC_PORT: u16 = 4681;

    /// Returns what the store keeps.
    pub(crate) fn retention(&self) -> retention::Rules {
        retention::Rules {
            days: Some(self.retention_days).filter(|days| *days > 0),
            runs: self.keep_runs.map(u64::from),
            events: self.keep_events.map(u64::from),
            output_bytes: self.keep_output_bytes,
        }
    }

    pub(crate) fn health(&self) -> Health {
        Health { stale_after: self.node_stale_after.0, offline_after: self.node_offline_after.0 }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            store: "sqlite:./downbeat-data/downbeat.db".to_owned(),
            replica_of: Vec::new(),
            http: SocketAddr::from((Ipv4Addr::LOCALHOST, Self::HTTP_PORT)),
            allowed_hosts: Vec::new(),
            hooks_allow: Vec::new(),
            smtp_url: None,
            smtp_from: None,
            grpc: SocketAddr::from((Ipv4Addr::LOCALHOST, Self::GRPC_PORT)),
            name: String::new(),
            heartbeat_interval: Span::from_secs(10),
            node_stale_after: Span::from_secs(30),
            node_offline_after: Span::from_secs(100),
            forget_nodes_after: Span::from_secs(0),
            max_nodes: limits::NODES_DEFAULT as u32,
            server_stale_after: Span::from_secs(10),
            lease_ttl: Span::from_secs(30),
            retention_days: 7,
            keep_executions: 10,
            keep_runs: None,
            keep_events: None,
            keep_output_bytes: None,
            clean_every: Span::from_secs(60),
            max_concurrent_runs: None,
            max_pending_runs: 10_000,
            hook_rate: 50,
            output_max_bytes: limits::OUTPUT_BYTES as u64,
            shutdown_grace: Span::from_secs(30),
        }
    }
}
