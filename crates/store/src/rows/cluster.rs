//! Owns the row of a cluster.

use std::sync::Arc;

use downbeat_core::cluster::{ClusterRecord, OnRegister};
use downbeat_core::ids::ClusterId;
use downbeat_core::state::ClusterLive;
use jiff::Timestamp;
use uuid::Uuid;

use super::codes::Code;
use super::column::{Cells, Columns, columns};
use super::record::{Record, select};
use super::scalar::{count, int, json, parse, time};
use super::text::Text;
use crate::port::Result;

columns! {
    /// A row of `clusters` that is not deleted.
    struct ClusterRow<'a> {
        id: Uuid,
        name: Text<'a>,
        created_at: i64,
        description: Text<'a>,
        on_register: i16,
        version: i64,
        updated_at: i64,
        list: Text<'a>,
    }
}

columns! {
    /// The name of a cluster, after the id.
    struct ClusterNameRow<'a> {
        id: Uuid,
        name: Text<'a>,
    }
}

columns! {
    /// The columns of `clusters` that its deletion changes, after the id.
    struct DeletedClusterRow<'a> {
        id: Uuid,
        name: Text<'a>,
        description: Text<'a>,
        list: Text<'a>,
        deleted_at: Option<i64>,
    }
}

impl<'a> ClusterRow<'a> {
    pub(crate) fn of(cluster: &'a ClusterRecord) -> Result<Self> {
        Ok(Self {
            id: cluster.id.0,
            name: cluster.name.as_str().into(),
            created_at: cluster.created_at.as_microsecond(),
            description: cluster.description.as_str().into(),
            on_register: cluster.on_register.code(),
            version: int(cluster.version),
            updated_at: cluster.updated_at.as_microsecond(),
            list: json(&cluster.list)?.into(),
        })
    }
}

impl ClusterRow<'_> {
    /// Gives the row of a cluster that is deleted at once a name that no other cluster has.
    pub(crate) fn unname(&mut self) {
        self.name = no_name(ClusterId(self.id));
    }
}

/// Returns the name of a cluster that has none: no other cluster can have it.
fn no_name(id: ClusterId) -> Text<'static> {
    format!(":{id}").into()
}

impl ClusterNameRow<'_> {
    /// The row of a cluster whose name is free for another one.
    pub(crate) fn unnamed(id: ClusterId) -> Self {
        Self { id: id.0, name: no_name(id) }
    }
}

impl DeletedClusterRow<'_> {
    pub(crate) fn of(id: ClusterId, at: Timestamp) -> Self {
        Self {
            id: id.0,
            name: no_name(id),
            description: "".into(),
            list: "{}".into(),
            deleted_at: Some(at.as_microsecond()),
        }
    }
}

impl Record for ClusterRecord {
    select!(ClusterRow<'_>, "clusters");

    fn from_row(row: &impl Cells) -> Result<Self> {
        let row = ClusterRow::read(row, 0)?;
        Ok(Self {
            id: ClusterId(row.id),
            name: row.name.into(),
            description: row.description.into(),
            on_register: OnRegister::decode(row.on_register)?,
            version: count(row.version)?,
            list: Arc::new(parse("list of standing tasks", &row.list.0)?),
            created_at: time(row.created_at)?,
            updated_at: time(row.updated_at)?,
        })
    }
}

impl Record for (ClusterId, ClusterLive) {
    fn select() -> &'static str {
        "SELECT id, name, version FROM clusters"
    }

    fn from_row(row: &impl Cells) -> Result<Self> {
        let name: Text<'_> = row.cell(1)?;
        let live = ClusterLive { name: name.into(), version: count(row.cell(2)?)? };
        Ok((ClusterId(row.cell(0)?), live))
    }
}
