//! Owns the ids of the domain. Callers create them and pass them in as values; nothing here generates one.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

macro_rules! uuid_ids {
    ($($(#[$doc:meta])* $name:ident,)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Uuid::parse_str(text).map(Self)
            }
        }
    )*};
}

uuid_ids! {
    /// A cluster: the unit of isolation.
    ClusterId,
    /// A node, derived from its cluster and hostname: see [`NodeId::derive`].
    NodeId,
    /// One session of an agent. A reconnect keeps it, a restart creates a new one.
    SessionId,
    /// One attempt of one step on one node. Time-ordered (version 7), so that stores append.
    ExecutionId,
    /// A node's right to an execution. Every report about an execution must contain it.
    LeaseToken,
    /// A stored job, derived from its cluster and name: see [`JobId::derive`].
    JobId,
    /// A message about a run, derived from both: see [`DeliveryId::derive`].
    DeliveryId,
    /// A standing task of a cluster.
    TaskId,
    /// A backfill of a stored job. Time-ordered (version 7).
    BackfillId,
    /// One start of a server: a restart creates a new id.
    ServerId,
}

impl ExecutionId {
    /// Returns the least id of an execution that was created at this time or later. Ids have milliseconds: those of
    /// executions that were created in the same one follow, too.
    pub fn first_of(at: Timestamp) -> Self {
        let millis = u128::try_from(at.as_millisecond()).unwrap_or(0);
        Self(Uuid::from_u128(millis << 80))
    }
}

impl ClusterId {
    /// The cluster that exists from the start.
    pub const DEFAULT: ClusterId = ClusterId(Uuid::from_u128(0x0d0b_ea70_0000_7000_8000_0000_0000_0001));
}

impl NodeId {
    /// Returns the UUIDv5 of `cluster_id:hostname` in the DNS namespace, so that an agent can compute its own id.
    pub fn derive(cluster: ClusterId, hostname: &str) -> Self {
        Self(Uuid::new_v5(&Uuid::NAMESPACE_DNS, format!("{cluster}:{hostname}").as_bytes()))
    }
}

impl JobId {
    /// Returns the UUIDv5 of the name in the namespace of the cluster.
    pub fn derive(cluster: ClusterId, name: &str) -> Self {
        Self(Uuid::new_v5(&cluster.0, name.as_bytes()))
    }
}

impl DeliveryId {
    /// Returns the UUIDv5 of the run and a place within it, in the namespace of the cluster.
    pub fn derive(cluster: ClusterId, run: &RunId, place: &str) -> Self {
        Self(Uuid::new_v5(&cluster.0, format!("delivery {place} of {run}").as_bytes()))
    }
}

/// A run: a UUID for a submitted run, `cluster:job:timestamp` for a scheduled one (with
/// `:backfill-UUID` if a backfill runs the time again), `debug:UUID` for a debug command,
/// `standing:cluster_id` for the run that carries out the standing tasks of a cluster.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(pub Arc<str>);

impl RunId {
    /// The length of the time in the id of a scheduled run: `2026-01-31T03:00:00Z`.
    const TIME_BYTES: usize = 20;

    /// The start of the id of a standing run.
    pub const STANDING: &'static str = "standing:";

    /// Returns the id of the run that a schedule starts at a time. It is the same on every server, so that the run is
    /// created once, and names the cluster, so that jobs of the same name in two clusters are two runs.
    pub fn scheduled(cluster: &str, job: &str, at: Timestamp) -> Self {
        Self(format!("{cluster}:{job}:{}", at.strftime("%Y-%m-%dT%H:%M:%SZ")).into())
    }

    /// What follows the time in the id of a run that a backfill starts again, before the id of the backfill.
    const AGAIN: &'static str = ":backfill-";

    /// Returns the id of the run that a backfill starts for the time of this one, which has run before.
    #[must_use]
    pub fn again(&self, backfill: BackfillId) -> Self {
        Self(format!("{}{}{backfill}", self.0, Self::AGAIN).into())
    }

    /// Returns the cluster, the job and the time of a scheduled run; nothing for a submitted one. A job's name may
    /// contain colons, a cluster's name cannot.
    pub fn schedule(&self) -> Option<(&str, &str, Timestamp)> {
        let is_again = |(_, backfill): &(&str, &str)| Uuid::try_parse(backfill).is_ok();
        let id = self.0.rsplit_once(Self::AGAIN).filter(is_again).map_or(&*self.0, |(id, _)| id);
        let (cluster, rest) = id.split_once(':')?;
        let (job, at) = rest.split_at_checked(rest.len().checked_sub(Self::TIME_BYTES)?)?;
        Some((cluster, job.strip_suffix(':')?, at.parse().ok()?))
    }

    /// Returns the id of the run that carries out the standing tasks of a cluster.
    pub fn standing(cluster: ClusterId) -> Self {
        Self(format!("{}{cluster}", Self::STANDING).into())
    }

    /// Returns the cluster whose standing tasks the run carries out.
    pub fn standing_of(&self) -> Option<ClusterId> {
        self.0.strip_prefix(Self::STANDING)?.parse().ok()
    }

    pub fn is_standing(&self) -> bool {
        self.standing_of().is_some()
    }

    /// The first bytes of the id of a debug command. No UUID contains them, and the id of a scheduled run ends with a time.
    pub const DEBUG: &str = "debug:";

    /// Returns the id of a debug command.
    pub fn debug(id: Uuid) -> Self {
        Self(format!("{}{id}", Self::DEBUG).into())
    }

    /// Returns whether the run is a debug command. A cluster may be named `debug`, too.
    pub fn is_debug(&self) -> bool {
        self.0.strip_prefix(Self::DEBUG).is_some_and(|id| Uuid::try_parse(id).is_ok())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<Uuid> for RunId {
    fn from(id: Uuid) -> Self {
        Self(id.to_string().into())
    }
}

impl From<&str> for RunId {
    fn from(id: &str) -> Self {
        Self(id.into())
    }
}

impl From<String> for RunId {
    fn from(id: String) -> Self {
        Self(id.into())
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns the SHA-256 of some bytes, in hexadecimal.
pub fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_scheduled_run_names_cluster_job_and_time() {
        let at: Timestamp = "2026-01-31T03:00:00Z".parse().unwrap();
        let id = RunId::scheduled("default", "backup", at);
        assert_eq!(id.as_str(), "default:backup:2026-01-31T03:00:00Z");
        assert_ne!(id, RunId::scheduled("other", "backup", at));
        for job in ["backup", "a:b", "", "x:2026-01-31T03:00:00Z"] {
            assert_eq!(RunId::scheduled("default", job, at).schedule(), Some(("default", job, at)));
        }
    }

    #[test]
    fn only_the_id_of_a_debug_command_names_one() {
        let debug = RunId::debug(Uuid::from_u128(7));
        assert_eq!(debug.as_str(), "debug:00000000-0000-0000-0000-000000000007");
        assert!(debug.is_debug());
        assert_eq!(debug.schedule(), None);
        let at: Timestamp = "2026-01-31T03:00:00Z".parse().unwrap();
        let scheduled = RunId::scheduled("debug", "backup", at);
        for id in [scheduled, RunId::from(Uuid::from_u128(7)), "debug:".into(), "debug".into()] {
            assert!(!id.is_debug(), "{id}");
        }
    }

    #[test]
    fn the_id_of_a_submitted_run_is_not_that_of_a_scheduled_one() {
        let submitted = Uuid::from_u128(7).to_string();
        for id in [&submitted, "", "a", "a:b", "a:2026-01-31T03:00:00Z", "a:b:yesterday-at-3-o'clo"] {
            assert_eq!(RunId::from(id).schedule(), None, "{id}");
        }
    }
}
