//! Owns how a node and its backends are shown.

use std::collections::BTreeMap;
use std::sync::Arc;

use downbeat_core::backend::{ActionSchema, BackendSchema, ParamKind};
use downbeat_core::ids::{ClusterId, NodeId, SessionId};
use downbeat_core::node::{NodeRecord, NodeStatus, Tombstone};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::schema;

/// Declares a view of a node. Views differ in how they show its backends, and in whether they show its session.
macro_rules! node_view {
    (
        $(#[$doc:meta])*
        $view:ident of $record:ident $(with $session:ident)?;
        $(#[$backends_doc:meta])*
        backends: $backends:ty = $backends_value:expr
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
        pub struct $view {
            #[schema(value_type = Uuid)]
            pub id: NodeId,
            pub hostname: String,
            #[schema(value_type = Uuid)]
            pub cluster: ClusterId,
            $(
                /// The session of its agent: one run of the agent process.
                #[schema(value_type = Uuid)]
                pub $session: SessionId,
                /// Since when its results of standing tasks count: it started over then. Absent if it was read from an
                /// older server.
                #[serde(default)]
                pub reset_at: Option<Timestamp>,
            )?
            #[schema(schema_with = schema::node_status)]
            pub status: NodeStatus,
            /// Drained by a person: running executions finish, no new ones start.
            pub draining: bool,
            pub groups: Vec<String>,
            pub labels: BTreeMap<String, String>,
            /// cpu, memory, gpu, …: each a string or a number.
            #[schema(value_type = Object)]
            pub capabilities: BTreeMap<String, Value>,
            $(#[$backends_doc])*
            pub backends: $backends,
            /// How many placed executions it runs at once.
            pub slots: u32,
            /// How many placed executions it has.
            #[serde(default)]
            pub slots_in_use: u32,
            /// The agent's version.
            pub version: String,
            pub registered_at: Timestamp,
            /// The last heartbeat.
            pub seen_at: Timestamp,
            /// Problems of the host that its agent reports.
            #[serde(default)]
            pub problems: Vec<String>,
        }

        impl From<NodeRecord> for $view {
            fn from($record: NodeRecord) -> Self {
                Self {
                    $($session: $record.$session, reset_at: Some($record.kept_since.unwrap_or($record.registered_at)),)?
                    backends: $backends_value,
                    id: $record.id,
                    cluster: $record.cluster,
                    status: $record.status,
                    draining: $record.draining,
                    registered_at: $record.registered_at,
                    seen_at: $record.seen_at,
                    problems: $record.problems,
                    hostname: $record.description.hostname,
                    groups: $record.description.groups,
                    labels: $record.description.labels,
                    capabilities: $record.description.capabilities,
                    slots: $record.description.slots,
                    slots_in_use: 0,
                    version: $record.description.version,
                }
            }
        }
    };
}

node_view! {
    /// A node in a list.
    NodeSummary of node;
    /// Names of the backends that it offers.
    backends: Vec<String> = node.description.backends.iter().map(|backend| backend.name.clone()).collect()
}

node_view! {
    /// A node with everything that it has reported.
    Node of node with session;
    backends: Vec<Backend> =
        node.description.backends.into_iter().map(|backend| Arc::unwrap_or_clone(backend).into()).collect()
}

/// A deleted node. Its executions are still shown with its hostname.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeletedNode {
    #[schema(value_type = Uuid)]
    pub id: NodeId,
    pub hostname: String,
    #[schema(value_type = Uuid)]
    pub cluster: ClusterId,
    /// The session of its agent that was deleted with it. That agent exits; an agent that is started again registers
    /// again.
    #[schema(value_type = Uuid)]
    pub session: SessionId,
    pub deleted_at: Timestamp,
}

/// A backend that a node offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Backend {
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub help: String,
    pub actions: Vec<Action>,
}

/// A backend that nodes of a cluster offer. Backends of the same name with different actions or params are listed apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OfferedBackend {
    #[serde(flatten)]
    pub backend: Backend,
    /// How many nodes offer it.
    pub nodes: u64,
    /// How many of them are online.
    pub online: u64,
}

/// One action of a backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Action {
    pub name: String,
    /// Whether running it twice has the same effect as running it once.
    pub idempotent: bool,
    pub params: Vec<Param>,
}

/// One declared param of an action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Param {
    pub name: String,
    /// text, integer, boolean, duration, texts, argv, map or any.
    #[schema(value_type = String)]
    pub kind: ParamKind,
    pub required: bool,
    pub help: String,
    /// A regular expression that matches the whole text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// The only valid texts, if there are any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<String>,
    /// Bounds of a whole number, both inclusive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<i64>,
}

/// How many nodes have the same group, label or status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeCount {
    /// The group, the value of the label, or the status.
    pub value: String,
    /// Nodes by status.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub nodes: BTreeMap<NodeStatus, u64>,
}

impl From<Tombstone> for DeletedNode {
    fn from(tombstone: Tombstone) -> Self {
        let Tombstone { node: id, session, cluster, hostname, at: deleted_at } = tombstone;
        Self { id, hostname, cluster, session, deleted_at }
    }
}

impl From<BackendSchema> for Backend {
    fn from(backend: BackendSchema) -> Self {
        let BackendSchema { name, help, actions } = backend;
        Self { name, help, actions: actions.into_iter().map(Action::from).collect() }
    }
}

impl From<ActionSchema> for Action {
    fn from(action: ActionSchema) -> Self {
        let params = action.params.into_iter().map(|param| Param {
            name: param.name,
            kind: param.kind,
            required: param.required,
            help: param.help,
            pattern: param.pattern,
            choices: param.choices,
            min: param.min,
            max: param.max,
        });
        Self { name: action.name, idempotent: action.idempotent, params: params.collect() }
    }
}
