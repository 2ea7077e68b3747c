//! Owns the rows of a node: the part that moves, and the whole.

use std::borrow::Cow;

use downbeat_core::ids::{ClusterId, ExecutionId, NodeId, SessionId};
use downbeat_core::node::{Installation, NodeRecord, NodeStatus, Registration, Tombstone};
use downbeat_core::state::NodeLive;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::codes::Code;
use super::scalar::{json, parse, time};
use crate::port::Error;

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
    pub(crate) registration: Option<String>,
    pub(crate) problems: Option<String>,
}

pub(crate) const NODE_COLUMNS: &str = "p.node, p.session, p.status, p.draining, p.registered_at, p.seen_at, \
     n.cluster, n.description, n.registration, n.problems";

macro_rules! node_row {
    ($row:expr, $get:ident) => {
        $crate::rows::NodeRow {
            live: $crate::rows::node_live_row!($row, $get),
            cluster: $row.$get(6)?,
            description: $row.$get(7)?,
            registration: $row.$get(8)?,
            problems: $row.$get(9)?,
        }
    };
}
pub(crate) use node_row;

/// What is kept of a registration beside its description. A program from before leaves that of an earlier session there.
#[derive(Serialize, Deserialize)]
struct Kept<'a> {
    session: SessionId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    installation: Option<Cow<'a, Installation>>,
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    undelivered: Cow<'a, [ExecutionId]>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    displaced: Option<SessionId>,
}

/// The column `registration`: nothing where there is nothing to keep.
pub(crate) fn registration_column(registration: &Registration) -> Result<Option<String>, Error> {
    let Registration { session, installation, undelivered, former, .. } = registration;
    if installation.is_none() && undelivered.is_empty() && former.displaced().is_none() {
        return Ok(None);
    }
    let kept = Kept {
        session: *session,
        installation: installation.as_ref().map(Cow::Borrowed),
        undelivered: Cow::Borrowed(undelivered),
        displaced: former.displaced(),
    };
    json(&kept).map(Some)
}

/// The column `problems`: nothing where there are none.
pub(crate) fn problems_column(problems: &[String]) -> Option<String> {
    let text = || serde_json::to_string(problems).expect("texts are JSON");
    (!problems.is_empty()).then(text)
}

/// A row of `tombstones`, in the order of [`TOMBSTONE_COLUMNS`].
#[derive(Debug)]
pub(crate) struct TombstoneRow {
    pub(crate) node: Uuid,
    pub(crate) session: Uuid,
    pub(crate) cluster: Uuid,
    pub(crate) hostname: String,
    pub(crate) at: i64,
}

pub(crate) const TOMBSTONE_COLUMNS: &str = "node, session, cluster, hostname, at";

macro_rules! tombstone_row {
    ($row:expr, $get:ident) => {
        $crate::rows::TombstoneRow {
            node: $row.$get(0)?,
            session: $row.$get(1)?,
            cluster: $row.$get(2)?,
            hostname: $row.$get(3)?,
            at: $row.$get(4)?,
        }
    };
}
pub(crate) use tombstone_row;

impl TombstoneRow {
    pub(crate) fn record(self) -> Result<Tombstone, Error> {
        Ok(Tombstone {
            node: NodeId(self.node),
            session: SessionId(self.session),
            cluster: ClusterId(self.cluster),
            hostname: self.hostname,
            at: time(self.at)?,
        })
    }
}

impl NodeRow {
    pub(crate) fn record(self) -> Result<NodeRecord, Error> {
        let (id, live) = self.live.record()?;
        let kept: Option<Kept<'static>> =
            self.registration.map(|kept| parse("registration", &kept)).transpose()?;
        let kept = kept.filter(|kept| kept.session == live.session);
        let (installation, undelivered, displaced) = match kept {
            Some(kept) => (kept.installation, kept.undelivered, kept.displaced),
            None => (None, Cow::default(), None),
        };
        Ok(NodeRecord {
            id,
            cluster: ClusterId(self.cluster),
            session: live.session,
            description: parse("description", &self.description)?,
            status: live.status,
            draining: live.draining,
            registered_at: live.registered_at,
            seen_at: live.seen_at,
            installation: installation.map(Cow::into_owned),
            undelivered: undelivered.into_owned(),
            displaced,
            problems: self
                .problems
                .map(|problems| parse("problems", &problems))
                .transpose()?
                .unwrap_or_default(),
        })
    }
}
