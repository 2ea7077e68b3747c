//! Owns the reads of the port, by noun, its direct writes, and wrappers around a store.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use downbeat_core::Portion;
use downbeat_core::change::{Change, Event};
use downbeat_core::cluster::ClusterRecord;
use downbeat_core::delivery::Delivery;
use downbeat_core::execution::{Execution, Status};
use downbeat_core::ids::{
    BackfillId, ClusterId, DeliveryId, ExecutionId, JobId, NodeId, RunId, ServerId, SessionId,
};
use downbeat_core::job::{BackfillRecord, JobRecord, JobVersion};
use downbeat_core::node::{NodeRecord, Tombstone};
use downbeat_core::retention::{Excess, StandingKept};
use downbeat_core::run::{RunBrief, RunRecord};
use downbeat_core::spec::Definition;
use downbeat_core::state::{LimitUse, NodeLive};
use jiff::Timestamp;
use tokio::sync::{broadcast, mpsc};

use super::store::Store;
use super::{
    Committed, DeliveryFilter, DeliveryKey, DueKey, EventFilter, ExecutionFilter, Hint, InstanceCount,
    InstanceFacts, InstanceFilter, JobVersionBrief, Listed, NodeTotals, OutputChunk, Page, Removed, Result,
    RunFilter, RunKey, ServerRecord, StandingKey, StandingResult, Tally, Volume,
};
use crate::copy::{Kept, Part, Seen};

/// Declares the traits of reads and of direct writes, and how a [`Wrapper`] forwards each call.
macro_rules! calls {
    ($($through:ident { $(
        $(#[$doc:meta])*
        trait $noun:ident {
            $($(#[$note:meta])* async fn $call:ident(&$self:ident $(, $arg:ident: $type:ty)*) -> $answer:ty;)+
        }
    )+ })+) => {
        $($(
            $(#[$doc])*
            #[async_trait]
            pub trait $noun: Send + Sync {
                $($(#[$note])* async fn $call(&$self $(, $arg: $type)*) -> Result<$answer>;)+
            }

            #[async_trait]
            impl<W: Wrapper> $noun for Wrapped<W> {
                $(async fn $call(&$self $(, $arg: $type)*) -> Result<$answer> {
                    $self.0.$call($($arg),*).await
                })+
            }
        )+)+

        /// A layer in front of a store, such as a slow connection or a fault. Every call is forwarded through
        /// [`Wrapper::read`] or [`Wrapper::write`], which pass it on; a method that does more is overridden.
        #[async_trait]
        pub trait Wrapper: Debug + Send + Sync + 'static {
            fn store(&self) -> &dyn Store;

            async fn read<T, R>(&self, read: R) -> Result<T>
            where
                T: Send,
                R: Future<Output = Result<T>> + Send,
            {
                read.await
            }

            async fn write<T, R>(&self, write: R) -> Result<T>
            where
                T: Send,
                R: Future<Output = Result<T>> + Send,
            {
                write.await
            }

            fn is_shared(&self) -> bool {
                self.store().is_shared()
            }

            fn hints(&self) -> broadcast::Receiver<Hint> {
                self.store().hints()
            }

            async fn now(&self) -> Result<Option<Timestamp>> {
                self.read(self.store().now()).await
            }

            async fn commit(&self, server: ServerId, changes: &[Change]) -> Result<Committed> {
                self.write(self.store().commit(server, changes)).await
            }

            $($($(async fn $call(&$self $(, $arg: $type)*) -> Result<$answer> {
                $self.$through($self.store().$call($($arg),*)).await
            })+)+)+
        }
    };
}

calls! {
    read {
        trait Events {
            /// Returns the next events in order: as many as fit into the portion, and at least one if there is any. Their
            /// size is that of their JSON in the store.
            async fn events(&self, filter: &EventFilter, portion: Portion) -> Vec<Event>;
            /// Returns the highest sequence number, or 0.
            async fn last_seq(&self) -> u64;
        }

        /// Clusters and their nodes.
        trait Nodes {
            /// Returns the cluster with this name or id, unless it is deleted.
            async fn cluster(&self, name_or_id: &str) -> Option<ClusterId>;
            /// Returns the clusters that are not deleted, by name.
            async fn clusters(&self) -> Vec<ClusterRecord>;
            /// Returns a cluster, unless it is deleted.
            async fn cluster_record(&self, id: ClusterId) -> Option<ClusterRecord>;
            /// Returns the deleted clusters of which rows are left, by id.
            async fn removed_clusters(&self) -> Vec<ClusterId>;
            /// Returns the nodes of a cluster (or of all), by hostname.
            async fn nodes(&self, cluster: Option<ClusterId>) -> Vec<NodeRecord>;
            async fn node(&self, id: NodeId) -> Option<NodeRecord>;
            /// Returns the deletions of a node (or of all nodes), by node and time. They are kept for
            /// `limits::TOMBSTONE_DAYS` longer than runs.
            async fn tombstones(&self, node: Option<NodeId>) -> Vec<Tombstone>;
            /// Returns the latest deletions of nodes, at most `most`, the latest first.
            async fn latest_tombstones(&self, most: u32) -> Vec<Tombstone>;
            /// Returns when those of these nodes that exist were last seen, by id.
            async fn seen(&self, nodes: &[NodeId]) -> Vec<Seen>;
            /// Returns the nodes that are not offline and were last seen before `before`, by id.
            async fn silent_nodes(&self, before: Timestamp) -> Vec<(NodeId, NodeLive)>;
        }

        trait Runs {
            async fn run(&self, id: &RunId) -> Option<RunRecord>;
            /// Returns the definitions of those of these runs that exist.
            async fn definitions(&self, runs: &[RunId]) -> BTreeMap<RunId, Arc<Definition>>;
            /// Returns those of these runs that exist, by id, each once.
            async fn runs_by_id(&self, ids: &[RunId]) -> Vec<RunRecord>;
            /// Returns the runs that were created with this idempotency key: at most one of each cluster, by id.
            async fn runs_of_key(&self, key: &str) -> Vec<RunRecord>;
            /// Returns runs in the order of the filter.
            async fn runs(&self, filter: &RunFilter, page: &Page<RunKey>) -> Listed<RunBrief, RunKey>;
            /// Returns all runs that have not ended, oldest first.
            async fn open_runs(&self) -> Vec<RunRecord>;
            /// Returns only the ids and owners of these runs: cheap enough to read every other second.
            async fn open_run_owners(&self) -> Vec<(RunId, ServerId)>;
        }

        trait Executions {
            async fn execution(&self, id: ExecutionId) -> Option<Execution>;
            /// Returns those of these executions that exist, by id, each once.
            async fn executions_by_id(&self, ids: &[ExecutionId]) -> Vec<Execution>;
            /// The same, without their params and outputs, which may be large.
            async fn bare_executions_by_id(&self, ids: &[ExecutionId]) -> Vec<Execution>;
            /// Returns executions by id, which is the order of creation.
            async fn executions(
                &self,
                filter: &ExecutionFilter,
                page: &Page<ExecutionId>
            ) -> Listed<Execution, ExecutionId>;
            /// The same, without their params and outputs, which may be large.
            async fn bare_executions(
                &self,
                filter: &ExecutionFilter,
                page: &Page<ExecutionId>
            ) -> Listed<Execution, ExecutionId>;
            /// Returns all executions of a run's last round, by id.
            async fn executions_of(&self, run: &RunId) -> Vec<Execution>;
            /// Returns instances of a run, each as the attempt that is its result: the last one that was not withdrawn,
            /// in the run's last round.
            /// They are ordered by step, then by execution, and have no params. If their outputs exceed the bytes of the
            /// portion, the one that exceeds them is the last.
            async fn instances(
                &self,
                run: &RunId,
                filter: &InstanceFilter,
                portion: Portion
            ) -> Vec<Execution>;
            /// Counts the instances of a run by step and status, in this order.
            async fn instance_counts(&self, run: &RunId) -> Vec<InstanceCount>;
            /// Counts the instances of these runs by status. The cost does not depend on how many instances there are:
            /// a run that would have to be counted is missing.
            async fn run_counts(&self, runs: &[RunId]) -> BTreeMap<RunId, BTreeMap<Status, u64>>;
            /// Returns the facts about all instances of a run, by execution.
            async fn instance_facts(&self, run: &RunId) -> Vec<InstanceFacts>;
            /// Returns the facts about the instances of a run that these nodes have or had: those of each node
            /// by execution.
            async fn instance_facts_on(&self, run: &RunId, nodes: &[NodeId]) -> Vec<InstanceFacts>;
            /// Returns the nodes that have or had instances of a run which are not pinned to a node, by id.
            async fn placed_nodes(&self, run: &RunId) -> Vec<NodeId>;
            /// Returns the nodes on which instances of a run failed, were lost or were cancelled, by id: each with these
            /// statuses.
            async fn unsuccessful_nodes(&self, run: &RunId) -> Vec<(NodeId, Status)>;
            /// Returns the last attempt of each standing task on each node, of one cluster or of all: by run, step and
            /// node, at most `most`, only those after a key.
            async fn standing_results(
                &self,
                cluster: Option<ClusterId>,
                after: Option<&StandingKey>,
                most: u32
            ) -> Vec<StandingResult>;
            /// Returns all pending, leased and running executions, by id.
            async fn open_executions(&self) -> Vec<Execution>;
            /// Returns the leased and running executions whose lease names one of these nodes, by id.
            async fn held_by(&self, nodes: &[NodeId]) -> Vec<Execution>;
            /// Returns for each of these keys the cluster's newest succeeded execution that was really executed.
            async fn cached(&self, cluster: ClusterId, keys: &[Arc<str>]) -> BTreeMap<Arc<str>, Execution>;
        }

        /// Stored jobs.
        trait Jobs {
            /// Returns the jobs that are not deleted, by id: at most `most`, only those after an id.
            async fn jobs(&self, after: Option<JobId>, most: u32) -> Vec<JobRecord>;
            /// Returns a job, also one that is deleted.
            async fn job(&self, id: JobId) -> Option<JobRecord>;
            /// Returns the versions of a job that are kept, the newest first: at most `limits::JOB_VERSIONS`.
            async fn job_versions(&self, id: JobId) -> Vec<JobVersionBrief>;
            async fn job_version(&self, id: JobId, version: u64) -> Option<JobVersion>;
            /// Returns the backfills that have not ended, by id: at most `most`, only those after an id.
            async fn open_backfills(&self, after: Option<BackfillId>, most: u32) -> Vec<BackfillRecord>;
            /// Returns the backfills of a job that are kept, the newest first.
            async fn backfills(&self, job: JobId) -> Vec<BackfillRecord>;
            async fn backfill(&self, id: BackfillId) -> Option<BackfillRecord>;
        }

        /// Messages about runs.
        trait Deliveries {
            /// Returns deliveries, the newest first: at most `most`, only those after a key.
            async fn deliveries(
                &self,
                filter: &DeliveryFilter,
                after: Option<DeliveryKey>,
                most: u32
            ) -> Vec<Delivery>;
            async fn delivery(&self, id: DeliveryId) -> Option<Delivery>;
            /// Returns the pending deliveries that are due first, also in the future: at most `most`, only those after a
            /// key.
            async fn due_deliveries(&self, after: Option<DueKey>, most: u32) -> Vec<Delivery>;
        }

        /// The nodes and limits that runs and executions use.
        trait Admission {
            /// Returns the nodes that exclusive runs hold, by node, each with its run.
            async fn holds(&self) -> Vec<(NodeId, RunId)>;
            /// Returns the executions that use a limit: by cluster and key, then by grant. It may include uses of rates
            /// that have expired. A copy has none: nothing is leased there.
            async fn uses(&self) -> Vec<LimitUse>;
        }

        trait Output {
            /// Returns output from a byte offset on, in order, at most `limit` chunks. The first chunk's offset shows
            /// whether older output was cut.
            async fn output(&self, execution: ExecutionId, from: u64, limit: u32) -> Vec<OutputChunk>;
            /// Returns the last `limit` chunks of an execution's output, in order.
            async fn output_tail(&self, execution: ExecutionId, limit: u32) -> Vec<OutputChunk>;
        }

        /// The servers that share the store.
        trait Servers {
            /// Returns servers by name.
            async fn servers(&self) -> Vec<ServerRecord>;
        }

        trait Totals {
            async fn tally(&self) -> Tally;
            async fn volume(&self) -> Volume;
            /// Counts the last `limits::ROWS_READ` executions that are pinned to a node or were leased by it. Empty for an
            /// unknown node.
            async fn node_totals(&self, node: NodeId) -> NodeTotals;
        }

        /// The data for creating and updating a copy. Every store provides it.
        trait Source {
            /// Sends everything that reads can return (except servers) as of one sequence number, in parts. Waits while
            /// the receiver is full, and stops when it is gone.
            async fn snapshot(&self, to: mpsc::Sender<Part>) -> ();
            async fn kept(&self) -> Kept;
            /// Returns when each node was last seen, by id.
            async fn presence(&self) -> Vec<Seen>;
            /// Returns output of several executions, each from an offset on: by execution, then in order, at most
            /// `limit` chunks.
            async fn output_of(&self, from: &[(ExecutionId, u64)], limit: u32) -> Vec<OutputChunk>;
        }
    }

    write {
        /// The writes besides [`Store::commit`]. They change no state that a guard reads, and create no events.
        trait DirectWrites {
            /// Records heartbeats in one write. Returns, for each, whether that session is the node's current one; only
            /// those are recorded.
            async fn touch_nodes(&self, seen: &[(NodeId, SessionId)], at: Timestamp) -> Vec<bool>;
            /// Appends output and keeps about `keep_bytes` of each execution by dropping its oldest chunks. Chunks of
            /// unknown executions are dropped.
            async fn append_output(&self, chunks: &[OutputChunk], keep_bytes: u64) -> ();
            /// Writes a server's heartbeat, and removes any other server of the same name.
            async fn put_server(&self, server: &ServerRecord) -> ();
            async fn remove_server(&self, id: ServerId) -> ();
            /// Stores equal contents of runs and nodes once, from now on. Programs below `level::CONTENTS` cannot read
            /// such rows and refuse the store: to be called when every live server has that level.
            async fn share_contents(&self) -> ();
            /// Removes runs that ended before `before`, with their executions and output, and older events; at most
            /// `most` runs per call. Returns how many runs were removed.
            async fn prune(&self, before: Timestamp, most: u32) -> u64;
            /// Removes what the store holds too much of; at most `most` runs per call.
            async fn prune_excess(&self, excess: &Excess, most: u32) -> Removed;
            /// Removes rows of a deleted cluster: about `most` rows per call, the row of the cluster last. Of the events
            /// about it only their numbers and times remain, except for its deletion. Returns how many rows were removed
            /// or checked; 0 if nothing is left.
            async fn remove_cluster(&self, cluster: ClusterId, most: u32) -> u64;
            /// Removes executions of standing tasks that have ended, with their output, except for those that are kept.
            /// Removes at most `most` executions per call, and returns how many: fewer if there are no more, or if another
            /// server removes. The next call goes on after them, or starts over if there were no more.
            async fn prune_standing(&self, kept: &StandingKept, most: u32) -> u64;
            /// Removes debug commands that ended before `before`, with their executions and output; at most `most` per
            /// call, the oldest first. Their events stay. Returns how many were removed.
            async fn prune_debug(&self, before: Timestamp, most: u32) -> u64;
            /// Adds up the kept counts, counts runs that ended before `before` and whose counts are not kept, at most
            /// `most` per call, and completes the rows of runs that an older program wrote. Returns how many were counted.
            async fn keep_counts(&self, before: Timestamp, most: u32) -> u64;
        }
    }
}

/// A store with a [`Wrapper`] in front of it.
#[derive(Debug)]
pub struct Wrapped<W>(pub W);

#[async_trait]
impl<W: Wrapper> Store for Wrapped<W> {
    fn name(&self) -> &'static str {
        self.0.store().name()
    }

    fn is_shared(&self) -> bool {
        self.0.is_shared()
    }

    fn hints(&self) -> broadcast::Receiver<Hint> {
        self.0.hints()
    }

    async fn now(&self) -> Result<Option<Timestamp>> {
        self.0.now().await
    }

    async fn health(&self) -> Result<()> {
        self.0.read(self.0.store().health()).await
    }

    async fn commit(&self, server: ServerId, changes: &[Change]) -> Result<Committed> {
        self.0.commit(server, changes).await
    }

    /// Does nothing: others use the wrapped store as well.
    async fn close(&self) {}
}
