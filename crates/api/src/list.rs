//! Owns the envelope of every list.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Event;

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct List<T> {
    pub data: Vec<T>,
    pub pagination: Pagination,
}

/// The position of a page in its list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pagination {
    pub limit: u32,
    /// How many rows were skipped; 0 on a page that was requested with a cursor.
    pub offset: u64,
    /// The number of all rows. Null on a page that was requested with a cursor, and if counting them would take longer
    /// than the page.
    pub total: Option<u64>,
    /// Whether `next` leads to another page. A page may have fewer rows than `limit` and still have more: a search ends
    /// a page when it has read many rows.
    pub has_more: bool,
    /// The `cursor` of the next page.
    #[serde(default)]
    pub next: Option<String>,
}

/// One page of events. Events are numbered, so a page continues after a number instead of an offset.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EventList {
    pub data: Vec<Event>,
    pub pagination: EventPagination,
}

/// The position of a page in the list of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventPagination {
    pub limit: u32,
    /// The page has the events after this number.
    pub offset: u64,
    /// How many events follow `offset`; null if there are more than this page has.
    pub total: Option<u64>,
    pub has_more: bool,
    /// The `since` of the next page.
    pub next: u64,
}
