//! Owns the row of an event. Events of kinds that only a newer program knows can be read, too.

use downbeat_core::change::{About, Change, Event};
use downbeat_core::ids::ServerId;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::column::{Cells, Columns, columns};
use super::record::{Record, select};
use super::scalar::{count, int, json, parse, time};
use super::text::Text;
use crate::port::Result;

columns! {
    /// The number of an event, and the server that committed it.
    struct NumberColumns {
        seq: i64,
        server: Uuid,
    }
}

columns! {
    struct ChangeColumns<'a> {
        at: i64,
        kind: Text<'a>,
        run: Option<Text<'a>>,
        data: Text<'a>,
    }
}

/// The content of `data`: the change, and its subject as one more field, which older programs ignore.
#[derive(Serialize)]
pub(crate) struct EventData<'a> {
    #[serde(flatten)]
    pub(crate) change: &'a Change,
    #[serde(skip_serializing_if = "About::is_empty")]
    pub(crate) about: &'a About,
}

/// The part of `data` that is not the change.
#[derive(Deserialize)]
struct Rest {
    #[serde(default)]
    about: About,
}

/// A whole row of `events`.
pub(crate) type EventRow<'a> = (NumberColumns, ChangeColumns<'a>);

impl NumberColumns {
    pub(crate) fn of(seq: u64, server: ServerId) -> Self {
        Self { seq: int(seq), server: server.0 }
    }
}

impl<'a> ChangeColumns<'a> {
    /// `data` is an [`EventData`] as JSON.
    pub(crate) fn of(change: &'a Change, data: impl Into<Text<'a>>) -> Self {
        Self {
            at: change.at().as_microsecond(),
            kind: change.kind().into(),
            run: change.run().map(|run| run.as_str().into()),
            data: data.into(),
        }
    }

    /// Returns the row with the event's subject, where `data` is only the change. The change is the large part: it can
    /// be written before its subject is known.
    pub(crate) fn with_about(&self, about: &About) -> Result<ChangeColumns<'_>> {
        let change = &*self.data.0;
        let data = match change.strip_suffix('}') {
            Some(open) if !about.is_empty() => format!("{open},\"about\":{}}}", json(about)?).into(),
            _ => Text::from(change),
        };
        let run = self.run.as_ref().map(|run| Text::from(&*run.0));
        Ok(ChangeColumns { at: self.at, kind: Text::from(&*self.kind.0), run, data })
    }
}

impl Record for Event {
    select!(EventRow<'_>, "events");

    /// An unknown kind comes from a newer program; a known kind that cannot be decoded is damaged.
    fn from_row(row: &impl Cells) -> Result<Self> {
        let (number, row) = EventRow::read(row, 0)?;
        let Rest { about } = parse("event", &row.data.0)?;
        let change = if Change::KINDS.contains(&&*row.kind.0) {
            parse("event", &row.data.0)?
        } else {
            let run = row.run.map(|run| String::from(run).into());
            Change::Unknown { name: row.kind.into(), run, at: time(row.at)? }
        };
        Ok(Event { seq: count(number.seq)?, server: ServerId(number.server), about, change })
    }
}
