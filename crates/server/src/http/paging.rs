//! Owns the pages of lists: what a request asks for, and the cursor of the next page.
//!
//! A cursor is the position after the last row of a page, so that rows which come in meanwhile neither repeat nor hide
//! others. A row whose own position changes between two pages may be on both or on neither: a node in a list by heartbeat,
//! a result that gets another attempt. Clients do not look into a cursor.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use downbeat_api::{List, Pagination};
use downbeat_core::ids::ExecutionId;
use downbeat_core::limits;
use downbeat_store::{Listed, Page, Position, RunKey};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use super::problem::{Failure, HttpResult};

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PageQuery {
    /// The number of rows; default 100, at most 1,000.
    pub(super) limit: Option<u32>,
    /// How many rows to skip; at most 10,000.
    pub(super) offset: Option<u64>,
    /// `next` of the previous page.
    pub(super) cursor: Option<String>,
}

impl PageQuery {
    pub(super) fn page<K: Key>(&self) -> HttpResult<Page<K>> {
        page(self.limit, self.offset, self.cursor.as_deref())
    }
}

/// The direction of a sorted list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Direction {
    Asc,
    Desc,
}

/// The valid values of `limit` and `offset`.
pub(super) const LIMITS: &str = "a number from 1 to 1000";
const OFFSETS: &str = "a number from 0 to 10000; `cursor` is the way through a long list";
const _: () = assert!(limits::PAGE_MOST == 1_000 && limits::OFFSET_MOST == 10_000);

/// What the rows of a list are ordered by.
pub(super) trait Key: Serialize + DeserializeOwned {
    /// Is in the cursors of the list: those of another list are refused.
    const LIST: &'static str;
}

impl Key for RunKey {
    const LIST: &'static str = "runs";
}

impl Key for ExecutionId {
    const LIST: &'static str = "executions";
}

fn bad(name: &str, why: &str) -> Failure {
    Failure::bad_query(format!("the query is wrong: {name}: {why}"))
}

pub(super) fn limit(limit: Option<u32>) -> HttpResult<u32> {
    match limit.unwrap_or(limits::PAGE_DEFAULT) {
        limit @ 1..=limits::PAGE_MOST => Ok(limit),
        limit => Err(bad("limit", &format!("`{limit}` is not {LIMITS}"))),
    }
}

/// Returns the page that the parameters of a request describe.
pub(super) fn page<K: Key>(
    rows: Option<u32>,
    offset: Option<u64>,
    cursor: Option<&str>,
) -> HttpResult<Page<K>> {
    let limit = limit(rows)?;
    let start = match (cursor, offset) {
        (Some(_), Some(_)) => return Err(bad("offset", "it cannot be used with `cursor`")),
        (Some(cursor), None) => {
            read(cursor).ok_or_else(|| bad("cursor", "it is not the `next` of a page of this list"))?
        }
        (None, offset) => {
            let skip = offset.unwrap_or(0);
            if skip > limits::OFFSET_MOST {
                return Err(bad("offset", &format!("`{skip}` is not {OFFSETS}")));
            }
            Position { after: None, skip }
        }
    };
    Ok(Page { limit, start })
}

fn read<K: Key>(cursor: &str) -> Option<Position<K>> {
    let json = URL_SAFE_NO_PAD.decode(cursor).ok()?;
    let (list, skip, after): (String, u64, K) = serde_json::from_slice(&json).ok()?;
    (list == K::LIST).then_some(Position { after: Some(after), skip })
}

fn written<K: Key>(position: &Position<K>) -> Option<String> {
    let after = position.after.as_ref()?;
    Some(URL_SAFE_NO_PAD.encode(serde_json::to_vec(&(K::LIST, position.skip, after)).ok()?))
}

/// Returns the view of a page whose rows are shown by `show`.
pub(super) fn listed<T, K: Key, V>(page: &Page<K>, found: Listed<T, K>, show: impl FnMut(T) -> V) -> List<V> {
    let next = found.next.as_ref().and_then(written);
    let pagination = Pagination {
        limit: page.limit,
        offset: if page.start.after.is_none() { page.start.skip } else { 0 },
        total: found.total,
        has_more: next.is_some(),
        next,
    };
    List { data: found.rows.into_iter().map(show).collect(), pagination }
}

/// Cuts a page out of a complete list, which is sorted by its key.
pub(super) fn cut<T, K: Key + Ord>(mut all: Vec<T>, page: &Page<K>, key: impl Fn(&T) -> K) -> List<T> {
    let total = page.start.after.is_none().then_some(all.len() as u64);
    if let Some(after) = &page.start.after {
        all.retain(|row| key(row) > *after);
    }
    let skip = usize::try_from(page.start.skip).unwrap_or(usize::MAX);
    let limit = page.limit as usize;
    let has_more = all.len() > skip.saturating_add(limit);
    let rows: Vec<T> = all.into_iter().skip(skip).take(limit).collect();
    let next = rows.last().map(|row| Position::after(key(row))).filter(|_| has_more);
    listed(page, Listed { rows, total, next }, |row| row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    struct Number(u32);

    impl Key for Number {
        const LIST: &'static str = "numbers";
    }

    fn pages(limit: u32, offset: Option<u64>) -> Vec<List<u32>> {
        let (mut pages, mut cursor, mut offset) = (Vec::new(), None::<String>, offset);
        loop {
            let page = page(Some(limit), offset.take(), cursor.as_deref()).unwrap();
            pages.push(cut(vec![1, 2, 3, 4, 5], &page, |number| Number(*number)));
            cursor = pages.last().unwrap().pagination.next.clone();
            if cursor.is_none() {
                return pages;
            }
        }
    }

    #[test]
    fn cursors_lead_through_a_list() {
        let rows = |pages: Vec<List<u32>>| pages.into_iter().map(|page| page.data).collect::<Vec<_>>();
        assert_eq!(rows(pages(2, None)), [vec![1, 2], vec![3, 4], vec![5]]);
        assert_eq!(rows(pages(2, Some(1))), [vec![2, 3], vec![4, 5]]);
        assert_eq!(rows(pages(5, None)), [vec![1, 2, 3, 4, 5]]);
        assert_eq!(rows(pages(5, Some(9))), [vec![]; 1] as [Vec<u32>; 1]);
        let first = pages(2, Some(1)).remove(0).pagination;
        assert_eq!((first.offset, first.total, first.has_more), (1, Some(5), true));
        let last = pages(2, Some(1)).remove(1).pagination;
        assert_eq!((last.offset, last.total, last.has_more, last.next), (0, None, false, None));
    }

    #[test]
    fn only_a_cursor_of_the_same_list_is_accepted() {
        let cursor = written(&Position::after(Number(7))).unwrap();
        let page = |cursor: &str, offset| page::<Number>(None, offset, Some(cursor));
        assert_eq!(page(&cursor, None).unwrap().start, Position::after(Number(7)));
        assert!(page(&cursor, Some(1)).is_err());
        for bad in ["", "7", "%", &cursor[1..], &format!("{cursor}AA"), &URL_SAFE_NO_PAD.encode("[1,2]")] {
            assert!(page(bad, None).is_err(), "{bad}");
        }
        let of_runs = URL_SAFE_NO_PAD.encode(r#"["runs",0,7]"#);
        assert!(page(&of_runs, None).is_err());
        let kept = URL_SAFE_NO_PAD.encode(r#"["numbers",3,7]"#);
        assert_eq!(page(&kept, None).unwrap().start, Position { after: Some(Number(7)), skip: 3 });
    }

    #[test]
    fn an_offset_is_bounded() {
        assert!(page::<Number>(None, Some(limits::OFFSET_MOST), None).is_ok());
        assert!(page::<Number>(None, Some(limits::OFFSET_MOST + 1), None).is_err());
    }
}
