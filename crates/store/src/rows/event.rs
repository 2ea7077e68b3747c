//! Owns the row of an event. Events of kinds that only a newer program knows can be read, too.

use std::fmt;

use downbeat_core::change::{About, Change, Event};
use downbeat_core::execution::Status;
use downbeat_core::ids::{ClusterId, ServerId};
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, Visitor};
use uuid::Uuid;

use super::column::{Cells, Columns, columns};
use super::record::{Record, select};
use super::scalar::{count, int, json, parse, time};
use super::text::Text;
use crate::port::{Error, Result};

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

/// Writes the content of `data`: the change, and its subject as one more field, which older programs ignore.
pub(crate) fn write_event(data: &mut Vec<u8>, change: &Change, about: &About) -> Result<()> {
    let failed = |error| Error::Corrupt(format!("cannot write a change as JSON: {error}"));
    serde_json::to_writer(&mut *data, change).map_err(failed)?;
    if let Some(about) = shortened(change, about) {
        data.pop();
        data.extend_from_slice(b",\"about\":");
        serde_json::to_writer(&mut *data, &about).map_err(failed)?;
        data.push(b'}');
    }
    Ok(())
}

/// Returns the subject without what its change says anyway, and without what is usual: it would be a third of the event.
/// A subject of which nothing remains is still stored: events of older programs have none.
fn shortened(change: &Change, about: &About) -> Option<About> {
    if about.is_empty() {
        return None;
    }
    let usual = usual(change, about);
    fn unusual<T: PartialEq + Copy>(field: Option<T>, usual: Option<T>) -> Option<T> {
        field.filter(|_| field != usual)
    }
    let short = About {
        cluster: unusual(about.cluster, usual.cluster),
        job: about.job.clone(),
        node: unusual(about.node, usual.node),
        step: about.step,
        item: about.item,
        attempt: unusual(about.attempt, usual.attempt),
        was: unusual(about.was, usual.was),
    };
    debug_assert_eq!(restored(change, short.clone()), *about, "{change:?}");
    Some(short)
}

/// Returns the subject that was shortened. A field that is missing has its usual value.
fn restored(change: &Change, about: About) -> About {
    let usual = usual(change, &about);
    About {
        cluster: about.cluster.or(usual.cluster),
        node: about.node.or(usual.node),
        attempt: about.attempt.or(usual.attempt),
        was: about.was.or(usual.was),
        ..about
    }
}

/// Returns the values that need not be stored, given the change and the position of its execution.
fn usual(change: &Change, about: &About) -> About {
    let was = match change {
        Change::ExecutionLeased { .. } => Some(Status::Pending),
        // A short task: its start is reported with its end.
        Change::ExecutionStarted { .. } | Change::ExecutionFinished { .. } => Some(Status::Leased),
        _ => None,
    };
    let attempt = about.step.map(|_| 1);
    About { cluster: Some(ClusterId::DEFAULT), node: change.node(), attempt, was, ..About::default() }
}

/// The content of `data` when it is read, in one pass: the change may be large.
struct Stored {
    change: Change,
    about: About,
}

/// The subject of a change that cannot be read.
#[derive(Deserialize)]
struct OnlyAbout {
    #[serde(default)]
    about: Option<About>,
}

impl Stored {
    fn of(change: Change, about: Option<About>) -> Self {
        let about = about.map(|about| restored(&change, about)).unwrap_or_default();
        Self { change, about }
    }
}

impl<'de> Deserialize<'de> for Stored {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(StoredVisitor)
    }
}

struct StoredVisitor;

impl<'de> Visitor<'de> for StoredVisitor {
    type Value = Stored;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a change and its subject")
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Stored, M::Error> {
        let mut about = None;
        let fields = MapAccessDeserializer::new(ChangeFields { map, about: &mut about });
        let change = Change::deserialize(fields)?;
        Ok(Stored::of(change, about))
    }
}

/// The fields of the change, without the subject, which is put aside.
struct ChangeFields<'a, M> {
    map: M,
    about: &'a mut Option<About>,
}

impl<'de, M: MapAccess<'de>> MapAccess<'de> for ChangeFields<'_, M> {
    type Error = M::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, M::Error> {
        while let Some(key) = self.map.next_key::<String>()? {
            if key != "about" {
                return seed.deserialize(key.into_deserializer()).map(Some);
            }
            *self.about = Some(self.map.next_value()?);
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, M::Error> {
        self.map.next_value_seed(seed)
    }
}

/// A whole row of `events`.
pub(crate) type EventRow<'a> = (NumberColumns, ChangeColumns<'a>);

impl NumberColumns {
    pub(crate) fn of(seq: u64, server: ServerId) -> Self {
        Self { seq: int(seq), server: server.0 }
    }
}

impl<'a> ChangeColumns<'a> {
    /// `data` is what [`write_event`] writes, or only the change.
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
    pub(crate) fn with_about(&self, change: &Change, about: &About) -> Result<ChangeColumns<'_>> {
        let data = match (self.data.0.strip_suffix('}'), shortened(change, about)) {
            (Some(open), Some(about)) => format!("{open},\"about\":{}}}", json(&about)?).into(),
            _ => self.data.borrowed(),
        };
        let run = self.run.as_ref().map(Text::borrowed);
        Ok(ChangeColumns { at: self.at, kind: self.kind.borrowed(), run, data })
    }
}

impl Record for Event {
    select!(EventRow<'_>, "events");

    /// An unknown kind comes from a newer program; a known kind that cannot be decoded is damaged.
    fn from_row(row: &impl Cells) -> Result<Self> {
        let (number, row) = EventRow::read(row, 0)?;
        let Stored { change, about } = if Change::KINDS.contains(&&*row.kind.0) {
            parse("event", &row.data.0)?
        } else {
            let OnlyAbout { about } = parse("event", &row.data.0)?;
            let run = row.run.map(|run| String::from(run).into());
            Stored::of(Change::Unknown { name: row.kind.into(), run, at: time(row.at)? }, about)
        };
        Ok(Event { seq: count(number.seq)?, server: ServerId(number.server), about, change })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_subject_is_read_wherever_it_stands_and_the_change_without_it() {
        let change = r#""kind":"run_cancel_requested","run":"a","by":"ada","at":"2026-01-01T00:00:00Z""#;
        let about = r#""about":{"job":"about"}"#;
        let read = |data: String| parse::<Stored>("event", &data).unwrap();
        let (alone, last, first) = (
            read(format!("{{{change}}}")),
            read(format!("{{{change},{about}}}")),
            read(format!("{{{about},{change}}}")),
        );
        assert_eq!((&last.change, &first.change), (&alone.change, &alone.change));
        assert_eq!((&last.about, &alone.about), (&first.about, &About::default()));
        let expected = json!({"job": "about", "cluster": ClusterId::DEFAULT});
        assert_eq!(serde_json::to_value(&last.about).unwrap(), expected);
    }
}
