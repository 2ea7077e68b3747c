//! Owns the reads of the port, by noun, and the way to put something in front of a store.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use downbeat_core::change::{Change, Event};
use downbeat_core::execution::Execution;
use downbeat_core::ids::{ClusterId, ExecutionId, NodeId, RunId, ServerId, SessionId};
use downbeat_core::node::{NodeRecord, Tombstone};
use downbeat_core::run::RunRecord;
use downbeat_core::state::LimitUse;
use jiff::Timestamp;
use tokio::sync::{broadcast, mpsc};

use super::store::{Beside, Store};
use super::{
    Committed, Error, EventFilter, ExecutionFilter, Listed, News, NodeTotals, OutputChunk, Page, RunFilter,
    ServerRecord, Tally,
};
use crate::copy::{Kept, Part, Seen};

/// Declares the traits of reads, and with the same signatures how a [`Wrapper`] passes the calls on.
macro_rules! reads {
    ($(
        $(#[$doc:meta])*
        trait $noun:ident {
            $($(#[$note:meta])* async fn $read:ident(&$self:ident $(, $arg:ident: $type:ty)*) -> $answer:ty;)+
        }
    )+) => {
        $(
            $(#[$doc])*
            #[async_trait]
            pub trait $noun: Send + Sync {
                $($(#[$note])* async fn $read(&$self $(, $arg: $type)*) -> Result<$answer, Error>;)+
            }

            #[async_trait]
            impl<W: Wrapper> $noun for Wrapped<W> {
                $(async fn $read(&$self $(, $arg: $type)*) -> Result<$answer, Error> {
                    $self.0.$read($($arg),*).await
                })+
            }
        )+

        /// Something in front of a store, such as a slow connection to it. Every call is passed on, through
        /// [`Wrapper::read`] or [`Wrapper::write`]; a method that does more than that is overridden.
        #[async_trait]
        pub trait Wrapper: Debug + Send + Sync + 'static {
            /// The store behind it.
            fn store(&self) -> &dyn Store;

            /// Wraps a read.
            async fn read<T, R>(&self, read: R) -> Result<T, Error>
            where
                T: Send,
                R: Future<Output = Result<T, Error>> + Send;

            /// Wraps a write.
            async fn write<T, R>(&self, write: R) -> Result<T, Error>
            where
                T: Send,
                R: Future<Output = Result<T, Error>> + Send;

            fn is_shared(&self) -> bool {
                self.store().is_shared()
            }

            fn news(&self) -> broadcast::Receiver<News> {
                self.store().news()
            }

            async fn now(&self) -> Result<Option<Timestamp>, Error> {
                self.read(self.store().now()).await
            }

            async fn commit(&self, server: ServerId, changes: &[Change]) -> Result<Committed, Error> {
                self.write(self.store().commit(server, changes)).await
            }

            async fn touch_nodes(
                &self,
                seen: &[(NodeId, SessionId)],
                at: Timestamp,
            ) -> Result<Vec<bool>, Error> {
                self.write(self.store().touch_nodes(seen, at)).await
            }

            async fn remove_server(&self, id: ServerId) -> Result<(), Error> {
                self.write(self.store().remove_server(id)).await
            }

            $($(async fn $read(&$self $(, $arg: $type)*) -> Result<$answer, Error> {
                $self.read($self.store().$read($($arg),*)).await
            })+)+
        }
    };
}

reads! {
    /// The feed of events.
    trait Events {
        /// Events in order, at most `limit`.
        async fn events(&self, filter: &EventFilter, limit: u32) -> Vec<Event>;
        /// The highest sequence number, 0 when there is none.
        async fn last_seq(&self) -> u64;
    }

    /// Clusters and their nodes.
    trait Nodes {
        /// The id of a cluster given by name or id.
        async fn cluster(&self, name_or_id: &str) -> Option<ClusterId>;
        /// Nodes of a cluster (or of all), by hostname.
        async fn nodes(&self, cluster: Option<ClusterId>) -> Vec<NodeRecord>;
        async fn node(&self, id: NodeId) -> Option<NodeRecord>;
        /// The deletions of a node (or of all nodes), by node and time. Kept for `limits::TOMBSTONE_DAYS` longer than
        /// runs are.
        async fn tombstones(&self, node: Option<NodeId>) -> Vec<Tombstone>;
        /// Nodes that are not offline and were last seen before `before`.
        async fn silent_nodes(&self, before: Timestamp) -> Vec<NodeRecord>;
    }

    /// Runs.
    trait Runs {
        async fn run(&self, id: &RunId) -> Option<RunRecord>;
        /// Newest first (by creation, then id).
        async fn runs(&self, filter: &RunFilter, page: Page) -> Listed<RunRecord>;
        /// All runs that have not ended, oldest first.
        async fn open_runs(&self) -> Vec<RunRecord>;
        /// The same runs, only their ids and owners: cheap enough to ask every other second.
        async fn open_run_owners(&self) -> Vec<(RunId, ServerId)>;
    }

    /// Executions.
    trait Executions {
        async fn execution(&self, id: ExecutionId) -> Option<Execution>;
        /// Those of these executions that exist, in the order of their ids, each once.
        async fn executions_by_id(&self, ids: &[ExecutionId]) -> Vec<Execution>;
        /// In the order of their ids, which is the order of creation.
        async fn executions(&self, filter: &ExecutionFilter, page: Page) -> Listed<Execution>;
        /// All executions of a run, in the order of their ids.
        async fn executions_of(&self, run: &RunId) -> Vec<Execution>;
        /// All executions that are pending, leased or running, in the order of their ids.
        async fn open_executions(&self) -> Vec<Execution>;
        /// Leased or running executions whose lease names this node, in the order of their ids.
        async fn held_by(&self, node: NodeId) -> Vec<Execution>;
        /// For each of these keys the newest succeeded execution in the cluster that has it and was really carried out.
        async fn cached(&self, cluster: ClusterId, keys: &[Arc<str>]) -> BTreeMap<Arc<str>, Execution>;
    }

    /// What runs and executions hold for themselves.
    trait Admission {
        /// The nodes that exclusive runs have for themselves, by node, each with the run that has it.
        async fn holds(&self) -> Vec<(NodeId, RunId)>;
        /// The executions that use a limit: by cluster and key, then as they were granted. Uses of rates whose time is
        /// over may be among them. A copy of a store has none: nothing is leased there.
        async fn uses(&self) -> Vec<LimitUse>;
    }

    /// The output of executions.
    trait Output {
        /// Output from a byte offset on, in order, at most `limit` chunks. The first chunk's offset shows what was cut.
        async fn output(&self, execution: ExecutionId, from: u64, limit: u32) -> Vec<OutputChunk>;
        /// The last `limit` chunks of an execution's output, in order.
        async fn output_tail(&self, execution: ExecutionId, limit: u32) -> Vec<OutputChunk>;
    }

    /// The servers that share the store.
    trait Servers {
        /// By name.
        async fn servers(&self) -> Vec<ServerRecord>;
    }

    /// Counts.
    trait Totals {
        async fn tally(&self) -> Tally;
        /// Counts of the executions that are pinned to a node or were leased by it. Nothing of an unknown node.
        async fn node_totals(&self, node: NodeId) -> NodeTotals;
    }

    /// What a copy is made from and kept up with. Every store is one.
    trait Source {
        /// Sends all that a read can show (but servers) as of one sequence number, in parts. Waits while the receiver
        /// has no room, and breaks off when it is gone.
        async fn snapshot(&self, to: mpsc::Sender<Part>) -> ();
        async fn kept(&self) -> Kept;
        /// When each node was last seen, by its id.
        async fn presence(&self) -> Vec<Seen>;
        /// Output of several executions, each from an offset on: by execution, then in order, at most `limit` chunks.
        async fn output_of(&self, from: &[(ExecutionId, u64)], limit: u32) -> Vec<OutputChunk>;
    }
}

/// A store with a [`Wrapper`] in front of it.
#[derive(Debug)]
pub struct Wrapped<W>(pub W);

#[async_trait]
impl<W: Wrapper> Beside for Wrapped<W> {
    async fn touch_nodes(&self, seen: &[(NodeId, SessionId)], at: Timestamp) -> Result<Vec<bool>, Error> {
        self.0.touch_nodes(seen, at).await
    }

    async fn append_output(&self, chunks: &[OutputChunk], keep_bytes: u64) -> Result<(), Error> {
        self.0.write(self.0.store().append_output(chunks, keep_bytes)).await
    }

    async fn put_server(&self, server: &ServerRecord) -> Result<(), Error> {
        self.0.write(self.0.store().put_server(server)).await
    }

    async fn remove_server(&self, id: ServerId) -> Result<(), Error> {
        self.0.remove_server(id).await
    }

    async fn prune(&self, before: Timestamp, most: u32) -> Result<u64, Error> {
        self.0.write(self.0.store().prune(before, most)).await
    }
}

#[async_trait]
impl<W: Wrapper> Store for Wrapped<W> {
    fn name(&self) -> &'static str {
        self.0.store().name()
    }

    fn is_shared(&self) -> bool {
        self.0.is_shared()
    }

    fn news(&self) -> broadcast::Receiver<News> {
        self.0.news()
    }

    async fn now(&self) -> Result<Option<Timestamp>, Error> {
        self.0.now().await
    }

    async fn health(&self) -> Result<(), Error> {
        self.0.read(self.0.store().health()).await
    }

    async fn commit(&self, server: ServerId, changes: &[Change]) -> Result<Committed, Error> {
        self.0.commit(server, changes).await
    }

    /// The store behind it belongs to others, too.
    async fn close(&self) {}
}
