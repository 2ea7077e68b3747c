//! Owns the rows of a node: the live part, and the whole.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use downbeat_core::backend::BackendSchema;
use downbeat_core::ids::{ClusterId, ExecutionId, NodeId, SessionId};
use downbeat_core::node::{Description, Installation, NodeRecord, NodeStatus, Registration, Tombstone};
use downbeat_core::state::NodeLive;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::codes::Code;
use super::column::{Cells, Columns, columns};
use super::content::{Contents, NewContents, Stored, hashes};
use super::record::{Record, select};
use super::scalar::{json, parse, parse_opt, time};
use super::text::Text;
use crate::batch::Deleted;
use crate::port::Result;

columns! {
    /// The live part of a node: a row of `presence`.
    struct NodeLiveRow {
        node: Uuid,
        session: Uuid,
        status: i16,
        draining: bool,
        registered_at: i64,
        seen_at: i64,
    }
}

impl NodeLiveRow {
    pub(crate) fn of(node: NodeId, live: &NodeLive) -> Self {
        Self {
            node: node.0,
            session: live.session.0,
            status: live.status.code(),
            draining: live.draining,
            registered_at: live.registered_at.as_microsecond(),
            seen_at: live.seen_at.as_microsecond(),
        }
    }

    fn live(&self) -> Result<(NodeId, NodeLive)> {
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

impl Record for (NodeId, NodeLive) {
    select!(NodeLiveRow, "presence");

    fn from_row(row: &impl Cells) -> Result<Self> {
        NodeLiveRow::read(row, 0)?.live()
    }
}

columns! {
    /// The key of a row of `nodes`.
    struct NodeKey<'a> {
        id: Uuid,
        hostname: Text<'a>,
    }
}

columns! {
    /// The rest of a row of `nodes`, which is read together with the node's row of `presence`.
    struct DescriptionRow<'a> {
        cluster: Uuid,
        description: Text<'a>,
        registration: Option<Text<'a>>,
        problems: Option<Text<'a>>,
        /// Refers to a [`CommonPart`]; the description is then an [`OwnPart`].
        common_hash: Option<Text<'a>>,
    }
}

/// A whole row of `nodes`.
pub(crate) type DescribedRow<'a> = (NodeKey<'a>, DescriptionRow<'a>);

/// Returns the row that a registration writes. A new session has not reported any problems.
pub(crate) fn description_row<'a>(
    registration: &'a Registration,
    contents: &mut NewContents,
) -> Result<DescribedRow<'a>> {
    let key =
        NodeKey { id: registration.node.0, hostname: registration.description.hostname.as_str().into() };
    let (own, common) = split(&registration.description);
    let common = json(&common)?;
    let (description, common_hash) = match contents.shares(common.len()) {
        true => (json(&own)?, Some(contents.add(common))),
        false => (json(&registration.description)?, None),
    };
    let description = DescriptionRow {
        cluster: registration.cluster.0,
        description: description.into(),
        registration: registration_column(registration)?.map(Text::from),
        problems: None,
        common_hash,
    };
    Ok((key, description))
}

/// The part of a description that is the node's own. It lacks `slots`, without which older programs do not take it for
/// a whole description.
#[derive(Serialize, Deserialize)]
struct OwnPart<'a> {
    hostname: Cow<'a, str>,
    groups: Cow<'a, [String]>,
    labels: Cow<'a, BTreeMap<String, String>>,
    capabilities: Cow<'a, BTreeMap<String, Value>>,
    /// Set if an older program replaced the description: then it is whole.
    #[serde(skip_serializing)]
    slots: Option<u32>,
}

/// The large part of a description, which most nodes have in common.
#[derive(Debug, Serialize, Deserialize)]
struct CommonPart<'a> {
    backends: Cow<'a, [Arc<BackendSchema>]>,
    slots: u32,
    version: Cow<'a, str>,
}

fn split(description: &Description) -> (OwnPart<'_>, CommonPart<'_>) {
    let Description { hostname, groups, labels, capabilities, backends, slots, version } = description;
    let own = OwnPart {
        hostname: Cow::Borrowed(hostname),
        groups: Cow::Borrowed(groups),
        labels: Cow::Borrowed(labels),
        capabilities: Cow::Borrowed(capabilities),
        slots: None,
    };
    (own, CommonPart { backends: Cow::Borrowed(backends), slots: *slots, version: Cow::Borrowed(version) })
}

columns! {
    /// The problems that an agent reported.
    struct ProblemsRow<'a> {
        id: Uuid,
        problems: Option<Text<'a>>,
    }
}

impl ProblemsRow<'_> {
    pub(crate) fn of(node: NodeId, problems: &[String]) -> Result<Self> {
        let problems = (!problems.is_empty()).then(|| json(&problems)).transpose()?.map(Text::from);
        Ok(Self { id: node.0, problems })
    }
}

/// The stored part of a registration besides its description. An older program leaves that of an earlier session there.
#[derive(Serialize, Deserialize)]
struct StoredRegistration<'a> {
    session: SessionId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    installation: Option<Cow<'a, Installation>>,
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    undelivered: Cow<'a, [ExecutionId]>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kept_since: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    displaced: Option<SessionId>,
}

/// Returns the column `registration`; none if it would be empty.
fn registration_column(registration: &Registration) -> Result<Option<String>> {
    let Registration { session, installation, undelivered, kept_since, former, .. } = registration;
    let has_more = kept_since.is_some() || former.displaced().is_some();
    if installation.is_none() && undelivered.is_empty() && !has_more {
        return Ok(None);
    }
    let kept = StoredRegistration {
        session: *session,
        installation: installation.as_ref().map(Cow::Borrowed),
        undelivered: Cow::Borrowed(undelivered),
        kept_since: *kept_since,
        displaced: former.displaced(),
    };
    json(&kept).map(Some)
}

columns! {
    /// A row of `tombstones`.
    struct TombstoneRow<'a> {
        node: Uuid,
        session: Uuid,
        cluster: Uuid,
        hostname: Text<'a>,
        at: i64,
    }
}

impl<'a> TombstoneRow<'a> {
    pub(crate) fn of(tombstone: &'a Tombstone) -> Self {
        Self {
            node: tombstone.node.0,
            session: tombstone.session.0,
            cluster: tombstone.cluster.0,
            hostname: tombstone.hostname.as_str().into(),
            at: tombstone.at.as_microsecond(),
        }
    }
}

impl Record for Tombstone {
    select!(TombstoneRow<'_>, "tombstones");

    fn from_row(row: &impl Cells) -> Result<Self> {
        let row = TombstoneRow::read(row, 0)?;
        Ok(Tombstone {
            node: NodeId(row.node),
            session: SessionId(row.session),
            cluster: ClusterId(row.cluster),
            hostname: row.hostname.into(),
            at: time(row.at)?,
        })
    }
}

columns! {
    /// The tombstone of a node that is being deleted. Cluster and hostname are empty if `nodes` has them.
    struct BuriedRow<'a> {
        node: Uuid,
        session: Uuid,
        cluster: Option<Uuid>,
        hostname: Option<Text<'a>>,
        at: i64,
    }
}

impl<'a> BuriedRow<'a> {
    pub(crate) fn of(deleted: &Deleted<'a>) -> Self {
        let Deleted { node, session, at, registration } = deleted;
        Self {
            node: node.0,
            session: session.0,
            cluster: registration.map(|registration| registration.cluster.0),
            hostname: registration.map(|registration| registration.description.hostname.as_str().into()),
            at: at.as_microsecond(),
        }
    }
}

/// A node, without the content that its description may refer to.
#[derive(Debug)]
pub(crate) struct StoredNode(NodeLiveRow, DescriptionRow<'static>);

impl Record for StoredNode {
    select!({
        let (live, rest) = (NodeLiveRow::names_in("p"), DescriptionRow::names_in("n"));
        format!("SELECT {live}, {rest} FROM presence p JOIN nodes n ON n.id = p.node")
    });

    fn from_row(row: &impl Cells) -> Result<Self> {
        let (live, row) = <(NodeLiveRow, DescriptionRow<'_>)>::read(row, 0)?;
        Ok(Self(live, row))
    }
}

impl StoredNode {
    fn description(&self, contents: &mut Contents) -> Result<Description> {
        let (what, text) = ("description", &self.1.description.0);
        let Some(hash) = &self.1.common_hash else { return parse(what, text) };
        let own: OwnPart<'static> = parse(what, text)?;
        if own.slots.is_some() {
            return parse(what, text);
        }
        let common: Arc<CommonPart<'static>> = contents.decode(what, &hash.0)?;
        Ok(Description {
            hostname: own.hostname.into_owned(),
            groups: own.groups.into_owned(),
            labels: own.labels.into_owned(),
            capabilities: own.capabilities.into_owned(),
            backends: common.backends.to_vec(),
            slots: common.slots,
            version: common.version.clone().into_owned(),
        })
    }
}

impl Stored for StoredNode {
    type Whole = NodeRecord;

    fn hashes(&self) -> Vec<&str> {
        hashes([&self.1.common_hash])
    }

    fn whole(self, contents: &mut Contents) -> Result<NodeRecord> {
        let description = self.description(contents)?;
        let Self(live, row) = self;
        let (id, live) = live.live()?;
        let kept: Option<StoredRegistration<'static>> = parse_opt("registration", row.registration.as_ref())?;
        let kept = kept.filter(|kept| kept.session == live.session);
        let (installation, undelivered, kept_since, displaced) = match kept {
            Some(kept) => (kept.installation, kept.undelivered, kept.kept_since, kept.displaced),
            None => (None, Cow::default(), None, None),
        };
        Ok(NodeRecord {
            id,
            cluster: ClusterId(row.cluster),
            session: live.session,
            description,
            status: live.status,
            draining: live.draining,
            registered_at: live.registered_at,
            seen_at: live.seen_at,
            installation: installation.map(Cow::into_owned),
            undelivered: undelivered.into_owned(),
            kept_since,
            displaced,
            problems: parse_opt("problems", row.problems.as_ref())?.unwrap_or_default(),
        })
    }
}
