//! Owns each server's share of a load: read at its start and at its end.

use serde::Serialize;

use super::server::{Metrics, Server};
use super::site::Site;
use crate::failure::Result;
use crate::page::Part;

/// One server's part of a load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Share {
    pub name: String,
    pub commits: f64,
    pub changes: f64,
    pub commit_seconds: f64,
    pub cpu_seconds: f64,
    pub rss_bytes: u64,
}

/// The figures of the servers when a load started.
#[derive(Debug)]
pub(super) struct Meter(Vec<Share>);

impl Meter {
    pub(super) async fn begin(site: &Site) -> Result<Self> {
        Ok(Self(Self::so_far(site).await?))
    }

    async fn so_far(site: &Site) -> Result<Vec<Share>> {
        let mut so_far = Vec::with_capacity(site.servers.len());
        for server in &site.servers {
            so_far.push(Share::so_far(server, &server.metrics().await?));
        }
        Ok(so_far)
    }

    /// Returns the shares since then.
    pub(super) async fn end(&self, site: &Site) -> Result<Vec<Share>> {
        let now = Self::so_far(site).await?;
        Ok(now.into_iter().zip(&self.0).map(|(now, before)| now.since(before)).collect())
    }
}

impl Share {
    fn so_far(server: &Server, metrics: &Metrics) -> Self {
        Self {
            name: server.name().to_owned(),
            commits: metrics.get("downbeat_commit_batch_size_count"),
            changes: metrics.get("downbeat_commit_batch_size_sum"),
            commit_seconds: metrics.get("downbeat_commit_seconds_sum"),
            cpu_seconds: server.cpu_seconds(),
            rss_bytes: server.rss_bytes(),
        }
    }

    fn since(self, before: &Self) -> Self {
        Self {
            commits: self.commits - before.commits,
            changes: self.changes - before.changes,
            commit_seconds: self.commit_seconds - before.commit_seconds,
            cpu_seconds: self.cpu_seconds - before.cpu_seconds,
            ..self
        }
    }
}

pub(super) fn cpu_seconds(shares: &[Share]) -> f64 {
    shares.iter().map(|share| share.cpu_seconds).sum()
}

pub(super) fn changes_per_commit(shares: &[Share]) -> f64 {
    let commits: f64 = shares.iter().map(|share| share.commits).sum();
    shares.iter().map(|share| share.changes).sum::<f64>() / commits.max(1.0)
}

pub(super) fn ms_per_commit(shares: &[Share]) -> f64 {
    let commits: f64 = shares.iter().map(|share| share.commits).sum();
    shares.iter().map(|share| share.commit_seconds).sum::<f64>() * 1e3 / commits.max(1.0)
}

pub(super) fn table(shares: &[Share]) -> Part {
    let one = std::slice::from_ref::<Share>;
    Part::table(
        shares,
        &[
            ("server", &|share| share.name.clone()),
            ("commits", &|share| format!("{:.0}", share.commits)),
            ("changes per commit", &|share| format!("{:.1}", changes_per_commit(one(share)))),
            ("ms per commit", &|share| format!("{:.2}", ms_per_commit(one(share)))),
            ("cpu", &|share| format!("{:.2} s", share.cpu_seconds)),
            ("memory", &|share| format!("{:.1} MiB", share.rss_bytes as f64 / 1_048_576.0)),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(name: &str, commits: f64, changes: f64, commit_seconds: f64) -> Share {
        Share { name: name.to_owned(), commits, changes, commit_seconds, cpu_seconds: 1.0, rss_bytes: 5 }
    }

    #[test]
    fn what_was_done_before_a_load_does_not_count() {
        let since = share("a", 30.0, 900.0, 3.0).since(&share("a", 10.0, 100.0, 1.0));
        assert_eq!(since, Share { cpu_seconds: 0.0, ..share("a", 20.0, 800.0, 2.0) });
    }

    #[test]
    fn means_are_over_all_commits_not_over_servers() {
        let shares = [share("a", 10.0, 1_000.0, 1.0), share("b", 30.0, 1_000.0, 1.0)];
        assert_eq!(changes_per_commit(&shares), 50.0);
        assert_eq!(ms_per_commit(&shares), 50.0);
        assert_eq!(changes_per_commit(&[]), 0.0);
    }
}
