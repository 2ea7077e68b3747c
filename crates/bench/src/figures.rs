//! Owns the result of a load, as a document and as a table.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::shares::{self, Share, cpu_seconds};
use super::site::Site;
use crate::page::Part;

/// The result of one load.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figures {
    pub load: &'static str,
    /// The unit of `n`.
    #[serde(skip)]
    pub counted: &'static str,
    pub store: String,
    pub n: u64,
    pub nodes: u32,
    pub seconds: f64,
    pub per_second: f64,
    /// As a client sees it: from submit to durable result, or the subject of the load.
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub server_rss_bytes: u64,
    pub server_cpu_seconds: f64,
    #[serde(flatten)]
    pub more: BTreeMap<&'static str, f64>,
    /// The share of each server.
    pub servers: Vec<Share>,
}

impl Figures {
    /// Creates the figures of a load without those of the servers. `load` is its name, and what `n` counts.
    pub(super) fn new(
        (load, counted): (&'static str, &'static str),
        store: &str,
        n: u64,
        nodes: u32,
        seconds: f64,
        latencies: &Latencies,
    ) -> Self {
        Self {
            load,
            counted,
            store: store.to_owned(),
            n,
            nodes,
            seconds,
            per_second: n as f64 / seconds,
            p50_ms: latencies.ms(0.5),
            p99_ms: latencies.ms(0.99),
            server_rss_bytes: 0,
            server_cpu_seconds: 0.0,
            more: BTreeMap::new(),
            servers: Vec::new(),
        }
    }

    /// Adds the figures of the servers.
    pub(super) fn of_servers(self, site: &Site, servers: Vec<Share>) -> Self {
        let (server_rss_bytes, server_cpu_seconds) = (site.rss_bytes(), cpu_seconds(&servers));
        Self { server_rss_bytes, server_cpu_seconds, servers, ..self }
    }

    pub(super) fn page(&self) -> Vec<Part> {
        let mut rows = vec![
            ("load", self.load.to_owned()),
            ("store", self.store.clone()),
            (self.counted, self.n.to_string()),
            ("nodes", self.nodes.to_string()),
            ("seconds", format!("{:.3}", self.seconds)),
            ("per second", format!("{:.*}", usize::from(self.per_second < 10.0) * 2, self.per_second)),
            ("p50", format!("{:.2} ms", self.p50_ms)),
            ("p99", format!("{:.2} ms", self.p99_ms)),
            ("server memory", format!("{:.1} MiB", self.server_rss_bytes as f64 / 1_048_576.0)),
            ("server cpu", format!("{:.2} s", self.server_cpu_seconds)),
        ];
        rows.extend(self.more.iter().map(|(name, value)| (*name, format!("{value:.2}"))));
        let mut parts = vec![Part::Facts(rows)];
        if self.servers.len() > 1 {
            parts.push(shares::table(&self.servers));
        }
        parts
    }
}

/// Latencies, from microseconds to minutes.
#[derive(Debug)]
pub(super) struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, 600_000_000, 3).expect("the bounds are valid"))
    }
}

impl Latencies {
    pub(super) fn add(&mut self, latency: Duration) {
        self.add_many(latency, 1);
    }

    pub(super) fn add_many(&mut self, latency: Duration, count: u64) {
        self.0.saturating_record_n(u64::try_from(latency.as_micros()).unwrap_or(u64::MAX), count);
    }

    pub(super) fn add_all(&mut self, others: &Self) {
        self.0.add(&others.0).expect("all have the same bounds");
    }

    pub(super) fn count(&self) -> u64 {
        self.0.len()
    }

    pub(super) fn least_ms(&self) -> f64 {
        self.0.min() as f64 / 1e3
    }

    pub(super) fn most_ms(&self) -> f64 {
        self.0.max() as f64 / 1e3
    }

    pub(super) fn ms(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64 / 1e3
    }
}
