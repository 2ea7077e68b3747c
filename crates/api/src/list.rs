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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pagination {
    pub limit: u32,
    pub offset: u64,
    pub total: u64,
    pub has_more: bool,
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

impl<T> List<T> {
    /// Returns a page with these rows of `total`.
    pub fn window(data: Vec<T>, limit: u32, offset: u64, total: u64) -> Self {
        let has_more = offset.saturating_add(data.len() as u64) < total;
        Self { data, pagination: Pagination { limit, offset, total, has_more } }
    }

    /// Cuts a page out of the complete list.
    pub fn cut(all: Vec<T>, limit: u32, offset: u64) -> Self {
        let total = all.len() as u64;
        let first = usize::try_from(offset).unwrap_or(usize::MAX);
        let data = all.into_iter().skip(first).take(limit as usize).collect();
        Self::window(data, limit, offset, total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_says_whether_there_is_more() {
        let more = |limit, offset| List::cut(vec![1, 2, 3], limit, offset).pagination.has_more;
        assert_eq!(
            [more(2, 0), more(2, 1), more(3, 0), more(1, 9), more(1, u64::MAX)],
            [true, false, false, false, false]
        );
        assert_eq!(List::cut(vec![1, 2, 3], 2, 1).data, [2, 3]);
    }
}
