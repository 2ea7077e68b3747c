//! Owns how a stored event is read: also one of a kind that only a newer program knows.

use downbeat_core::change::{Change, Event};
use downbeat_core::ids::ServerId;
use uuid::Uuid;

use super::scalar::{count, parse, time};
use crate::port::Error;

/// An event, in the order of [`EVENT_COLUMNS`].
#[derive(Debug)]
pub(crate) struct EventRow {
    pub(crate) seq: i64,
    pub(crate) at: i64,
    pub(crate) server: Uuid,
    pub(crate) kind: String,
    pub(crate) run: Option<String>,
    pub(crate) data: String,
}

pub(crate) const EVENT_COLUMNS: &str = "seq, at, server, kind, run, data";

macro_rules! event_row {
    ($row:expr, $get:ident) => {
        $crate::rows::EventRow {
            seq: $row.$get(0)?,
            at: $row.$get(1)?,
            server: $row.$get(2)?,
            kind: $row.$get(3)?,
            run: $row.$get(4)?,
            data: $row.$get(5)?,
        }
    };
}
pub(crate) use event_row;

impl EventRow {
    /// What cannot be read although its kind is known is damage; an unknown kind is news from the future.
    pub(crate) fn record(self) -> Result<Event, Error> {
        let change = if Change::KINDS.contains(&self.kind.as_str()) {
            parse("event", &self.data)?
        } else {
            Change::Unknown { name: self.kind, run: self.run.map(Into::into), at: time(self.at)? }
        };
        Ok(Event { seq: count(self.seq)?, server: ServerId(self.server), change })
    }
}
