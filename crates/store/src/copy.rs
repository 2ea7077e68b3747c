//! Owns how a store becomes the copy of another: the data that every store sends (`Source`), and the writes of a
//! replica's store (`Replica`). Nothing here decides: events are applied by the rules of `tables`, rows are copied.

use async_trait::async_trait;
use downbeat_core::change::{Change, Event, Refusal};
use downbeat_core::cluster::ClusterRecord;
use downbeat_core::delivery::Delivery;
use downbeat_core::execution::Execution;
use downbeat_core::ids::{ClusterId, NodeId, RunId, SessionId};
use downbeat_core::job::{BackfillRecord, JobKey, JobLive, JobVersion};
use downbeat_core::node::{Former, NodeRecord, Registration, Tombstone};
use downbeat_core::retention::StandingRule;
use downbeat_core::run::RunRecord;
use downbeat_core::{Portion, limits};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::port::{Error, OutputChunk, Result, ServerRecord, Store};

/// One part of a snapshot.
pub(crate) const PART: Portion = Portion::new(1_000, limits::REPLICA_PART_BYTES);

/// A part of a snapshot. Parts come in the order of the variants, `End` once and last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The clusters that are not deleted, without a cluster `default` that was never changed: older replicas know no other.
    Clusters(Vec<ClusterRecord>),
    /// Deleted clusters of which rows are left.
    RemovedClusters(Vec<ClusterId>),
    Nodes(Vec<NodeRecord>),
    /// Deleted nodes.
    Tombstones(Vec<Tombstone>),
    /// Stored jobs, deleted ones too. Each has versions.
    Jobs(Vec<(JobKey, JobLive)>),
    JobVersions(Vec<JobVersion>),
    Backfills(Vec<BackfillRecord>),
    Runs(Vec<RunRecord>),
    /// Nodes that exclusive runs hold.
    Holds(Vec<(NodeId, RunId)>),
    /// Messages about runs.
    Deliveries(Vec<Delivery>),
    Executions(Vec<Execution>),
    /// The chunks of each execution are in order.
    Output(Vec<OutputChunk>),
    Events(Vec<Event>),
    /// All parts were read as of this sequence number.
    End {
        seq: u64,
    },
}

/// What the other store has kept, for a copy to remove the rest. Of most kinds only the oldest rows are removed, so the first
/// one that is left describes all. For executions of standing tasks this is not so: the copy applies the same rule to its
/// own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The first event that is kept, if any.
    pub first_seq: Option<u64>,
    /// The first ended run that is kept, if any, by its end and id. Debug commands are not meant.
    pub first_ended: Option<(Timestamp, RunId)>,
    /// The first ended debug command that is kept, if any: they are removed by their own age.
    #[serde(default)]
    pub first_debug: Option<(Timestamp, RunId)>,
    /// When the first remembered deletion of a node happened, if any.
    #[serde(default)]
    pub first_deleted: Option<Timestamp>,
    /// Output of ended runs up to this one, by its end and id, was removed, if any was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_removed: Option<(Timestamp, RunId)>,
    /// Deleted clusters of which rows are left, by id. A copy removes all rows of clusters that it knows to be deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<ClusterId>,
    /// How long executions of standing tasks are kept. Stores do not know it: the server that sends this adds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standing: Option<StandingRule>,
}

/// When a node's session was last seen.
pub type Seen = (NodeId, SessionId, Timestamp);

/// The result of replicating events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replicated {
    Applied,
    /// The copy is no longer valid: a guard refused a change that the primary applied. Nothing was written.
    Diverged(Diverged),
}

/// Where a copy differs from its primary.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Diverged {
    #[error("event {seq} does not follow event {last}")]
    Gap { last: u64, seq: u64 },
    #[error("event {seq} ({kind}) was applied by the primary but is refused by the copy: {refusal}")]
    Refused { seq: u64, kind: String, refusal: Refusal },
}

/// A store that is the copy of another one. Only the feed of that one writes to it.
#[async_trait]
pub trait Replica: Store {
    /// Returns true if the store contains a complete copy.
    async fn is_copied(&self) -> Result<bool>;
    /// Replaces everything with a snapshot. Readers see the old state until the snapshot is complete; without its end
    /// nothing changes. Returns the snapshot's sequence number.
    async fn replace(&self, parts: mpsc::Receiver<Part>) -> Result<u64>;
    /// Applies events of another store with their numbers, in their order, all or none. Output comes with them, so that
    /// a reader who sees an execution's end also finds its output; it is appended as by
    /// [`DirectWrites::append_output`](crate::DirectWrites::append_output).
    async fn replicate(
        &self,
        events: &[Event],
        output: &[OutputChunk],
        keep_bytes: u64,
    ) -> Result<Replicated>;
    /// Removes everything that the other store has removed.
    async fn forget(&self, kept: &Kept) -> Result<()>;
    /// Records heartbeats of the other store; those of other sessions are ignored.
    async fn see_nodes(&self, seen: &[Seen]) -> Result<()>;
    /// Replaces the list of servers.
    async fn set_servers(&self, servers: &[ServerRecord]) -> Result<()>;
}

/// How many executions of standing tasks a copy removes in one step, and in how many steps for each [`Kept`]: the next events
/// wait for them. The rest goes with the next one.
pub(crate) const STANDING_MOST: u32 = 500;
pub(crate) const STANDING_STEPS: usize = 20;

/// The error if a snapshot has no end.
pub(crate) fn interrupted() -> Error {
    Error::Unavailable("a snapshot was interrupted before its end".to_owned())
}

/// Checks that these events continue after `last`.
pub(crate) fn follows(last: u64, events: &[Event]) -> Result<(), Diverged> {
    let mut last = last;
    for event in events {
        if event.seq != last + 1 {
            return Err(Diverged::Gap { last, seq: event.seq });
        }
        last = event.seq;
    }
    Ok(())
}

/// Returns the changes to apply: without the guards that only the primary can check.
pub(crate) fn replayed(events: &[Event]) -> Vec<Change> {
    events.iter().map(|event| event.change.without_volatile_guards()).collect()
}

pub(crate) fn refused(event: &Event, refusal: Refusal) -> Replicated {
    let (seq, kind) = (event.seq, event.change.kind().to_owned());
    Replicated::Diverged(Diverged::Refused { seq, kind, refusal })
}

/// Returns the time before which deletions of nodes are forgotten when runs are pruned before `before`.
pub(crate) fn deleted_before(before: Timestamp) -> Timestamp {
    let kept = SignedDuration::from_hours(24 * limits::TOMBSTONE_DAYS);
    before.checked_sub(kept).unwrap_or(Timestamp::MIN)
}

/// Returns the stored part of a node's registration.
pub(crate) fn registration(node: NodeRecord) -> Registration {
    let at = node.registered_at;
    let NodeRecord {
        id: node,
        cluster,
        session,
        description,
        installation,
        undelivered,
        kept_since,
        displaced,
        ..
    } = node;
    let silent_since = Some(at);
    let former = displaced.map_or(Former::Any, |session| Former::Session { session, silent_since });
    Registration {
        node,
        cluster,
        session,
        description,
        installation,
        undelivered,
        kept_since,
        // Only those who were there before the node returned need them.
        attempts: Vec::new(),
        former,
        at,
    }
}
