//! Owns what a server can be told. Reading files, environment and flags is the command line's.

use std::net::{Ipv4Addr, SocketAddr};

use downbeat_api::request::HTTP_PORT;
use downbeat_core::{Span, limits};

/// Plain values; the doc comments are the manual.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `sqlite:PATH`, `postgres://…` or `memory:`.
    pub store: String,
    /// URLs of a primary's servers, `http://HOST:PORT` each: this server is its read replica. Empty: it is none.
    pub replica_of: Vec<String>,
    /// Where REST, live streams and metrics are served.
    pub http: SocketAddr,
    /// More names by which browsers, and on a loopback address all clients, may reach `http`. `localhost` and addresses
    /// always may, the hostname on other than loopback addresses. `*`: any name.
    pub allowed_hosts: Vec<String>,
    /// Where agents dial in.
    pub grpc: SocketAddr,
    /// What this server is called; stable over restarts. Empty: hostname and gRPC port.
    pub name: String,
    /// How often agents say that they live.
    pub heartbeat_interval: Span,
    /// Silence after which a node gets no new work.
    pub node_stale_after: Span,
    /// Silence after which what a node ran is lost.
    pub node_offline_after: Span,
    /// Silence after which another server's runs have been taken over.
    pub server_stale_after: Span,
    /// How long a lease lasts without a heartbeat.
    pub lease_ttl: Span,
    /// Ended runs are kept this long; 0 keeps them for ever.
    pub retention_days: u32,
    /// So many runs may be under way at once, over all servers of the store; the rest wait. Nothing: any number.
    pub max_concurrent_runs: Option<u32>,
    /// So many runs may wait for their turn; more are refused.
    pub max_pending_runs: u32,
    /// Output kept of one execution: its tail.
    pub output_max_bytes: u64,
    /// How long a graceful stop waits for requests under way.
    pub shutdown_grace: Span,
}

impl Settings {
    pub const HTTP_PORT: u16 = HTTP_PORT;
    pub const GRPC_PORT: u16 = 4681;
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            store: "sqlite:./downbeat-data/downbeat.db".to_owned(),
            replica_of: Vec::new(),
            http: SocketAddr::from((Ipv4Addr::LOCALHOST, Self::HTTP_PORT)),
            allowed_hosts: Vec::new(),
            grpc: SocketAddr::from((Ipv4Addr::LOCALHOST, Self::GRPC_PORT)),
            name: String::new(),
            heartbeat_interval: Span::from_secs(10),
            node_stale_after: Span::from_secs(30),
            node_offline_after: Span::from_secs(100),
            server_stale_after: Span::from_secs(10),
            lease_ttl: Span::from_secs(30),
            retention_days: 7,
            max_concurrent_runs: None,
            max_pending_runs: 1_000,
            output_max_bytes: limits::OUTPUT_BYTES as u64,
            shutdown_grace: Span::from_secs(30),
        }
    }
}
