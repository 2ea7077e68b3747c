//! Owns the records that are read: each has one SELECT and a conversion of its rows.

use downbeat_core::execution::{Status, Stream};
use downbeat_core::ids::{ClusterId, ExecutionId, NodeId, RunId, ServerId, SessionId};
use downbeat_core::state::LimitUse;
use uuid::Uuid;

use super::codes::{Code, condition};
use super::column::{Cells, Columns, columns};
use super::scalar::{count, int, micros, small, small_count, time, time_opt};
use super::text::{Bytes, Text};
use crate::copy::{Kept, Seen};
use crate::port::{NodeTotals, OutputChunk, Result, RunKey, RunOrder, ServerRecord, Volume};

/// A value that is read from one row of a SELECT.
pub(crate) trait Record: Sized + Send + 'static {
    /// Returns the SELECT without conditions; empty if each use has its own text.
    fn select() -> &'static str {
        ""
    }

    fn from_row(row: &impl Cells) -> Result<Self>;
}

/// Declares the SELECT of a record: its text, or all columns of a row from a table, which may have an alias.
macro_rules! select {
    ($row:ty, $table:literal) => {
        select!(format!("SELECT {} FROM {}", <$row>::names(), $table));
    };
    ($row:ty, $alias:literal, $table:literal) => {
        select!(format!("SELECT {} FROM {} {}", <$row>::names_in($alias), $table, $alias));
    };
    ($text:expr) => {
        fn select() -> &'static str {
            static SELECT: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| $text);
            &SELECT
        }
    };
}
pub(super) use select;

impl Record for Option<i64> {
    fn from_row(row: &impl Cells) -> Result<Self> {
        row.cell(0)
    }
}

impl Record for String {
    fn from_row(row: &impl Cells) -> Result<Self> {
        Ok(row.cell::<Text<'_>>(0)?.into())
    }
}

impl Record for RunKey {
    fn from_row(row: &impl Cells) -> Result<Self> {
        let id: Text<'_> = row.cell(1)?;
        let order = RunOrder::decode(row.cell(2)?)?;
        Ok(RunKey { order, at: time(row.cell(0)?)?, id: String::from(id).into() })
    }
}

impl Record for ExecutionId {
    fn from_row(row: &impl Cells) -> Result<Self> {
        Ok(ExecutionId(row.cell(0)?))
    }
}

impl Record for NodeId {
    fn from_row(row: &impl Cells) -> Result<Self> {
        Ok(NodeId(row.cell(0)?))
    }
}

impl Record for (NodeId, Status) {
    fn from_row(row: &impl Cells) -> Result<Self> {
        Ok((NodeId(row.cell(0)?), Status::decode(row.cell(1)?)?))
    }
}

impl Record for ClusterId {
    fn select() -> &'static str {
        "SELECT id FROM clusters"
    }

    fn from_row(row: &impl Cells) -> Result<Self> {
        Ok(ClusterId(row.cell(0)?))
    }
}

impl Record for (RunId, ServerId) {
    fn select() -> &'static str {
        "SELECT id, owner FROM runs"
    }

    fn from_row(row: &impl Cells) -> Result<Self> {
        Ok((String::from_row(row)?.into(), ServerId(row.cell(1)?)))
    }
}

impl Record for Seen {
    fn select() -> &'static str {
        "SELECT node, session, seen_at FROM presence"
    }

    fn from_row(row: &impl Cells) -> Result<Self> {
        Ok((NodeId(row.cell(0)?), SessionId(row.cell(1)?), time(row.cell(2)?)?))
    }
}

impl Record for Kept {
    fn select() -> &'static str {
        concat!(
            "SELECT (SELECT min(seq) FROM events), r.finished_at, r.id, (SELECT min(at) FROM tombstones), \
             d.finished_at, d.id, o.finished_at, o.run FROM (SELECT 1) one \
             LEFT JOIN output_removed o ON o.one = 1 LEFT JOIN \
             (SELECT r.finished_at, r.id FROM runs r WHERE r.finished_at IS NOT NULL AND NOT ",
            condition!(debug run),
            " AND r.state ",
            condition!(ended runs),
            " ORDER BY r.finished_at, r.id LIMIT 1) r ON true LEFT JOIN \
             (SELECT r.finished_at, r.id FROM runs r WHERE r.job = 'debug' AND ",
            condition!(debug run),
            " AND r.finished_at IS NOT NULL AND r.state ",
            condition!(ended runs),
            " ORDER BY r.finished_at, r.id LIMIT 1) d ON true"
        )
    }

    fn from_row(row: &impl Cells) -> Result<Self> {
        let first_seq: Option<i64> = row.cell(0)?;
        let (at, id): (Option<i64>, Option<Text<'_>>) = (row.cell(1)?, row.cell(2)?);
        let debug: Option<Text<'_>> = row.cell(5)?;
        let output: Option<Text<'_>> = row.cell(7)?;
        Ok(Kept {
            first_seq: first_seq.map(count).transpose()?,
            first_ended: time_opt(at)?.zip(id.map(|id| String::from(id).into())),
            first_debug: time_opt(row.cell(4)?)?.zip(debug.map(|id| String::from(id).into())),
            first_deleted: time_opt(row.cell(3)?)?,
            output_removed: time_opt(row.cell(6)?)?.zip(output.map(|id| String::from(id).into())),
            removed: Vec::new(),
            standing: None,
        })
    }
}

impl Record for Volume {
    fn from_row(row: &impl Cells) -> Result<Self> {
        let positive = |value: Option<i64>| u64::try_from(value.unwrap_or(0)).unwrap_or(0);
        let (first, last) = (row.cell::<Option<i64>>(0)?, positive(row.cell(1)?));
        let first_seq = first.map_or(last + 1, |first| positive(Some(first)));
        Ok(Volume {
            events: (last + 1).saturating_sub(first_seq),
            first_seq,
            // Below 0 while a server of an older release is being replaced.
            output_bytes: positive(row.cell(2)?),
            disk_bytes: row.cell::<Option<i64>>(3)?.map(count).transpose()?,
        })
    }
}

/// The number of rows with a code.
impl<C: Code + Send + 'static> Record for (C, u64) {
    fn from_row(row: &impl Cells) -> Result<Self> {
        Ok((C::decode(row.cell(0)?)?, count(row.cell(1)?)?))
    }
}

/// The totals of a node for one status.
impl Record for NodeTotals {
    fn from_row(row: &impl Cells) -> Result<Self> {
        Ok(NodeTotals {
            executions: vec![<(Status, u64)>::from_row(row)?],
            claimed_at: time_opt(row.cell(2)?)?,
            finished_at: time_opt(row.cell(3)?)?,
        })
    }
}

columns! {
    /// A row of `holds`: an exclusive run holds the node.
    struct HoldRow<'a> {
        node: Uuid,
        run: Text<'a>,
    }
}

impl<'a> HoldRow<'a> {
    pub(crate) fn of(node: NodeId, run: &'a RunId) -> Self {
        Self { node: node.0, run: run.as_str().into() }
    }
}

impl Record for (NodeId, RunId) {
    select!(HoldRow<'_>, "h", "holds");

    fn from_row(row: &impl Cells) -> Result<Self> {
        let row = HoldRow::read(row, 0)?;
        Ok((NodeId(row.node), String::from(row.run).into()))
    }
}

columns! {
    /// A row of `limit_uses`.
    struct LimitUseRow<'a> {
        execution: Uuid,
        key: Text<'a>,
        cluster: Uuid,
        granted_at: i64,
        until: Option<i64>,
    }
}

impl<'a> LimitUseRow<'a> {
    pub(crate) fn of(limit: &'a LimitUse) -> Self {
        Self {
            execution: limit.execution.0,
            key: limit.key.as_str().into(),
            cluster: limit.cluster.0,
            granted_at: limit.granted_at.as_microsecond(),
            until: micros(limit.until),
        }
    }
}

impl Record for LimitUse {
    select!(LimitUseRow<'_>, "l", "limit_uses");

    fn from_row(row: &impl Cells) -> Result<Self> {
        let row = LimitUseRow::read(row, 0)?;
        Ok(LimitUse {
            cluster: ClusterId(row.cluster),
            key: row.key.into(),
            execution: ExecutionId(row.execution),
            granted_at: time(row.granted_at)?,
            until: time_opt(row.until)?,
        })
    }
}

columns! {
    /// A result that may be reused. `cached` has the run's cluster instead of the run.
    struct CachedRow<'a> {
        execution: Uuid,
        cache_key: Text<'a>,
        finished_at: i64,
        run: Text<'a>,
    }
}

columns! {
    /// A row of `output`.
    struct OutputRow<'a> {
        execution: Uuid,
        start_byte: i64,
        stream: i16,
        at: i64,
        text: Bytes<'a>,
    }
}

impl<'a> OutputRow<'a> {
    pub(crate) fn of(chunk: &'a OutputChunk) -> Self {
        Self {
            execution: chunk.execution.0,
            start_byte: int(chunk.offset),
            stream: chunk.stream.code(),
            at: chunk.at.as_microsecond(),
            text: Bytes(chunk.text.as_str().into()),
        }
    }
}

impl Record for OutputChunk {
    select!(OutputRow<'_>, "o", "output");

    fn from_row(row: &impl Cells) -> Result<Self> {
        let row = OutputRow::read(row, 0)?;
        Ok(OutputChunk {
            execution: ExecutionId(row.execution),
            offset: count(row.start_byte)?,
            stream: Stream::decode(row.stream)?,
            text: row.text.0.into_owned(),
            at: time(row.at)?,
        })
    }
}

columns! {
    /// A row of `servers`.
    struct ServerRow<'a> {
        name: Text<'a>,
        id: Uuid,
        http: Text<'a>,
        grpc: Text<'a>,
        version: Text<'a>,
        started_at: i64,
        seen_at: i64,
        level: i32,
    }
}

impl<'a> ServerRow<'a> {
    pub(crate) fn of(server: &'a ServerRecord) -> Self {
        Self {
            name: server.name.as_str().into(),
            id: server.id.0,
            http: server.http.as_str().into(),
            grpc: server.grpc.as_str().into(),
            version: server.version.as_str().into(),
            started_at: server.started_at.as_microsecond(),
            seen_at: server.seen_at.as_microsecond(),
            level: small(server.level),
        }
    }
}

impl Record for ServerRecord {
    select!(ServerRow<'_>, "s", "servers");

    fn from_row(row: &impl Cells) -> Result<Self> {
        let row = ServerRow::read(row, 0)?;
        Ok(ServerRecord {
            id: ServerId(row.id),
            name: row.name.into(),
            http: row.http.into(),
            grpc: row.grpc.into(),
            version: row.version.into(),
            started_at: time(row.started_at)?,
            seen_at: time(row.seen_at)?,
            level: small_count(row.level)?,
        })
    }
}
