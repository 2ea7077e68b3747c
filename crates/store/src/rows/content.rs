//! Owns contents: large texts that many rows have in common. The store has each once, by its hash.
//!
//! - A run's row is empty where the text of a large definition or of large targets would be. A node's row has the part of
//!   the description that is the node's own.
//! - Programs of schema 7 and older cannot read such a row, and say so: the text is not JSON, or lacks a field that they
//!   require. They refuse to open a store that shares contents: see [`CONTENTS`](crate::migrate::CONTENTS).
//! - A text in a row counts more than its hash: an older program that replaces a node's description leaves the hash.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use downbeat_core::change::Event;
use downbeat_core::cluster::ClusterRecord;
use downbeat_core::delivery::Delivery;
use downbeat_core::execution::Execution;
use downbeat_core::ids::{ClusterId, NodeId, RunId, sha256_hex};
use downbeat_core::job::{BackfillRecord, JobKey, JobLive, JobVersion};
use downbeat_core::limits;
use downbeat_core::node::Tombstone;
use serde::de::DeserializeOwned;

use super::column::{Cells, Columns, columns};
use super::record::{Record, select};
use super::scalar::parse;
use super::text::Text;
use crate::port::{Error, OutputChunk, Result};

columns! {
    /// A row of `contents`.
    struct ContentRow<'a> {
        hash: Text<'a>,
        text: Text<'a>,
    }
}

impl Record for ContentRow<'static> {
    select!(ContentRow<'_>, "contents");

    fn from_row(row: &impl Cells) -> Result<Self> {
        Self::read(row, 0)
    }
}

/// The contents of new rows, each once, by hash: all servers write them in the same order.
#[derive(Debug)]
pub(crate) struct NewContents {
    is_sharing: bool,
    texts: BTreeMap<String, String>,
}

impl NewContents {
    /// If contents are not shared, all texts stay in their rows.
    pub(crate) fn new(is_sharing: bool) -> Self {
        Self { is_sharing, texts: BTreeMap::new() }
    }

    /// Returns whether a text of this size is shared.
    pub(crate) fn shares(&self, bytes: usize) -> bool {
        self.is_sharing && bytes >= limits::SHARED_CONTENT_BYTES
    }

    /// Adds a text. Returns its hash.
    pub(crate) fn add(&mut self, text: String) -> Text<'static> {
        let hash = sha256_hex(text.as_bytes());
        self.texts.insert(hash.clone(), text);
        hash.into()
    }

    /// Returns the text and the hash for a row: one of them is empty.
    pub(crate) fn place(&mut self, text: String) -> (Text<'static>, Option<Text<'static>>) {
        if self.shares(text.len()) { (Text::default(), Some(self.add(text))) } else { (text.into(), None) }
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = ContentRow<'_>> {
        let texts = self.texts.iter();
        texts.map(|(hash, text)| ContentRow { hash: hash.as_str().into(), text: text.as_str().into() })
    }
}

/// Contents for many rows. Each is decoded once, and all records that have it share it.
#[derive(Debug, Default)]
pub(crate) struct Contents(HashMap<String, Content>);

#[derive(Debug)]
struct Content {
    text: String,
    decoded: Option<Arc<dyn Any + Send + Sync>>,
}

impl Contents {
    pub(crate) fn of(rows: Vec<ContentRow<'static>>) -> Self {
        let content =
            |row: ContentRow<'_>| (row.hash.into(), Content { text: row.text.into(), decoded: None });
        Self(rows.into_iter().map(content).collect())
    }

    pub(crate) fn has(&self, hash: &str) -> bool {
        self.0.contains_key(hash)
    }

    pub(crate) fn decode<T: DeserializeOwned + Send + Sync + 'static>(
        &mut self,
        what: &str,
        hash: &str,
    ) -> Result<Arc<T>> {
        let lost = || Error::Corrupt(format!("the content of a stored {what} is missing"));
        let content = self.0.get_mut(hash).ok_or_else(lost)?;
        if let Some(Ok(known)) = content.decoded.clone().map(Arc::downcast) {
            return Ok(known);
        }
        let decoded = Arc::new(parse(what, &content.text)?);
        content.decoded = Some(Arc::<T>::clone(&decoded));
        Ok(decoded)
    }

    /// Decodes the text of a row, or the content that the row refers to instead.
    pub(crate) fn text_or<T: DeserializeOwned + Send + Sync + 'static>(
        &mut self,
        what: &str,
        text: &Text<'_>,
        hash: Option<&Text<'_>>,
    ) -> Result<Arc<T>> {
        match hash {
            Some(hash) if text.0.is_empty() => self.decode(what, &hash.0),
            _ => Ok(Arc::new(parse(what, &text.0)?)),
        }
    }
}

/// A record as its row has it: without the contents that the row refers to.
pub(crate) trait Stored: Record {
    type Whole: Send;

    fn hashes(&self) -> Vec<&str>;

    /// Returns the record with its contents, which are all there.
    fn whole(self, contents: &mut Contents) -> Result<Self::Whole>;
}

/// Returns the hashes that these rows have, each once.
pub(crate) fn hashes_of<T: Stored>(rows: &[T]) -> BTreeSet<&str> {
    rows.iter().flat_map(T::hashes).collect()
}

/// Returns those of a row's hashes that are set.
pub(crate) fn hashes<'a>(columns: impl IntoIterator<Item = &'a Option<Text<'static>>>) -> Vec<&'a str> {
    columns.into_iter().flatten().map(|hash| &*hash.0).collect()
}

/// Declares records whose rows refer to no contents.
macro_rules! whole {
    ($($record:ty),+) => {
        $(impl Stored for $record {
            type Whole = Self;

            fn hashes(&self) -> Vec<&str> {
                Vec::new()
            }

            fn whole(self, _: &mut Contents) -> Result<Self> {
                Ok(self)
            }
        })+
    };
}

whole!(
    ClusterRecord,
    ClusterId,
    Tombstone,
    (JobKey, JobLive),
    JobVersion,
    BackfillRecord,
    (NodeId, RunId),
    Execution,
    OutputChunk,
    Delivery,
    Event
);
