//! Owns the rows of a node: the part that moves, and the whole.

use downbeat_core::ids::{ClusterId, NodeId, SessionId};
use downbeat_core::node::{NodeRecord, NodeStatus};
use uuid::Uuid;

use super::codes::Code;
use super::scalar::{parse, time};
use crate::port::Error;
use crate::tables::NodeLive;

/// The moving part of a node: a row of `presence`, in the order of [`NODE_LIVE_COLUMNS`].
#[derive(Debug)]
pub(crate) struct NodeLiveRow {
    pub(crate) node: Uuid,
    pub(crate) session: Uuid,
    pub(crate) status: i16,
    pub(crate) draining: bool,
    pub(crate) registered_at: i64,
    pub(crate) seen_at: i64,
}

pub(crate) const NODE_LIVE_COLUMNS: &str = "node, session, status, draining, registered_at, seen_at";

macro_rules! node_live_row {
    ($row:expr, $get:ident) => {
        $crate::rows::NodeLiveRow {
            node: $row.$get(0)?,
            session: $row.$get(1)?,
            status: $row.$get(2)?,
            draining: $row.$get(3)?,
            registered_at: $row.$get(4)?,
            seen_at: $row.$get(5)?,
        }
    };
}
pub(crate) use node_live_row;

impl NodeLiveRow {
    pub(crate) fn record(&self) -> Result<(NodeId, NodeLive), Error> {
        let live = NodeLive {
            session: SessionId(self.session),
            status: NodeStatus::decode(self.status)?,
            draining: self.draining,
            registered_at: time(self.registered_at)?,
            seen_at: time(self.seen_at)?,
        };
        Ok((NodeId(self.node), live))
    }
}

/// A node whole, in the order of [`NODE_COLUMNS`], which reads `presence` joined with `nodes`.
#[derive(Debug)]
pub(crate) struct NodeRow {
    pub(crate) live: NodeLiveRow,
    pub(crate) cluster: Uuid,
    pub(crate) description: String,
}

pub(crate) const NODE_COLUMNS: &str =
    "p.node, p.session, p.status, p.draining, p.registered_at, p.seen_at, n.cluster, n.description";

macro_rules! node_row {
    ($row:expr, $get:ident) => {
        $crate::rows::NodeRow {
            live: $crate::rows::node_live_row!($row, $get),
            cluster: $row.$get(6)?,
            description: $row.$get(7)?,
        }
    };
}
pub(crate) use node_row;

impl NodeRow {
    pub(crate) fn record(self) -> Result<NodeRecord, Error> {
        let (id, live) = self.live.record()?;
        Ok(NodeRecord {
            id,
            cluster: ClusterId(self.cluster),
            session: live.session,
            description: parse("description", &self.description)?,
            status: live.status,
            draining: live.draining,
            registered_at: live.registered_at,
            seen_at: live.seen_at,
        })
    }
}
