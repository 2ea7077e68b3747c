//! Owns the lists of both SQL stores: a page, the end of what it may read, and the total. All values are arguments, and a
//! text depends only on the index that serves the list, so that there are few texts to prepare.

use downbeat_core::execution::{Execution, Status};
use downbeat_core::ids::{ExecutionId, RunId};
use downbeat_core::run::RunState;
use downbeat_core::{debug, limits};
use jiff::Timestamp;
use uuid::Uuid;

use crate::filter::{Arg, arg};
use crate::port::{ExecutionFilter, Listed, Page, Position, Result, RunFilter, RunKey, RunKind, RunOrder};
use crate::read::{Database, number, one};
use crate::rows::{Bare, BriefRow, Code, Record, Text, condition, int, small};

/// A list of rows: which ones, and in which order.
pub(crate) trait List: Sync {
    type Key: Record + Clone + Sync;

    /// The conditions of all filters. Each holds if its filter is empty.
    const FILTERS: &'static str;

    /// Returns the texts that depend on the order of the list.
    fn sequence(&self) -> &'static Sequence;

    /// Returns the condition that an index serves, and whether other filters exclude further rows.
    fn index(&self) -> (&'static str, Others);

    /// Returns the value of a filter, or of a part of a key.
    fn value(&self, name: &str, range: &Range<Self::Key>) -> Arg;
}

/// A row of a list.
pub(crate) trait Row<L: List>: Record {
    fn key(&self, list: &L) -> L::Key;
}

/// The texts of an order.
#[derive(Debug)]
pub(crate) struct Sequence {
    /// The SELECT of the keys.
    keys: &'static str,
    order: &'static str,
    /// Selects the keys after `:after` up to and including `:last`.
    between: &'static str,
}

/// Whether filters besides the one that an index serves exclude rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Others {
    Exclude,
    None,
}

/// A part of a list: from one key, exclusive, to another, inclusive.
#[derive(Debug)]
pub(crate) struct Range<K> {
    after: Option<K>,
    last: Option<K>,
}

/// Replaces each `:name` with the number of an argument. Returns the names in the order of their numbers.
fn numbered(template: &str) -> (String, Vec<&str>) {
    let mut names: Vec<&str> = Vec::new();
    let mut pieces = template.split(':');
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let end = piece.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(piece.len());
        let (name, rest) = piece.split_at(end);
        if name.is_empty() {
            // A colon in a text.
            text.push(':');
            text.push_str(rest);
            continue;
        }
        let known = names.iter().position(|known| *known == name);
        let number = known.unwrap_or_else(|| {
            names.push(name);
            names.len() - 1
        });
        text.push_str(&format!("${}{rest}", number + 1));
    }
    (text, names)
}

/// A statement of a list. `own` has the values of the arguments that do not filter.
fn bound<L: List>(
    list: &L,
    template: &str,
    range: &Range<L::Key>,
    own: &[(&str, u64)],
) -> (String, Vec<Arg>) {
    let (text, names) = numbered(template);
    let value = |name: &str| match own.iter().find(|(known, _)| *known == name) {
        Some((_, value)) => arg(int(*value)),
        None => list.value(name, range),
    };
    let args = names.into_iter().map(value).collect();
    (text, args)
}

/// Reads one page of a list.
pub(crate) async fn list<L: List, R: Row<L>>(
    database: &impl Database,
    list: &L,
    page: &Page<L::Key>,
) -> Result<Listed<R, L::Key>> {
    debug_assert!(page.limit > 0, "a page has room for a row");
    let (index, others) = list.index();
    let Sequence { keys, order, between } = list.sequence();
    let Position { after, skip } = &page.start;
    let mut range = Range { after: after.clone(), last: None };
    if others == Others::Exclude {
        let template = format!("{keys} WHERE {index}{between} ORDER BY {order} LIMIT 1 OFFSET :skip");
        let skip = u64::from(limits::ROWS_READ) - 1;
        let (sql, args) = bound(list, &template, &range, &[("skip", skip)]);
        range.last = one(database, &sql, args).await?;
    }
    let wanted = format!(" WHERE {index}{between}{}", L::FILTERS);
    let limit = page.limit as usize;
    let rest = format!("{wanted} ORDER BY {order} LIMIT :limit OFFSET :skip");
    let (rest, args) = bound(list, &rest, &range, &[("limit", u64::from(page.limit) + 1), ("skip", *skip)]);
    let mut rows: Vec<R> = database.fetch(&rest, args).await?;
    let more = rows.len() > limit;
    rows.truncate(limit);
    let count = async |most: u64| {
        // The order makes PostgreSQL read along the index.
        let template = format!("SELECT count(*) FROM ({keys}{wanted} ORDER BY {order} LIMIT :limit) found");
        let (sql, args) = bound(list, &template, &range, &[("limit", most)]);
        number(database, &sql, args).await
    };
    let next = match (rows.last(), range.last.clone()) {
        (Some(row), _) if more => Some(Position::after(row.key(list))),
        (_, Some(last)) => {
            let found = if rows.is_empty() && *skip > 0 { count(*skip).await? } else { *skip };
            Some(Position { after: Some(last), skip: skip - found })
        }
        (_, None) => None,
    };
    let total = if after.is_some() || range.last.is_some() {
        None
    } else {
        let most = u64::from(limits::ROWS_READ);
        Some(count(most + 1).await?).filter(|total| *total <= most)
    };
    Ok(Listed { rows, total, next })
}

/// Returns the set of these codes as a number with a bit for each; none if it is empty.
fn mask<C: Code>(codes: &[C]) -> Option<i32> {
    let bits = codes.iter().map(|code| 1 << code.code()).fold(0, |all: i32, bit: i32| all | bit);
    (bits != 0).then_some(bits)
}

fn optional_text(text: Option<&str>) -> Arg {
    arg(text.map(|text| Text::from(text.to_owned())))
}

/// Returns the pattern of LIKE for any text that contains this one.
fn pattern(text: &str) -> String {
    let mut pattern = String::from("%");
    for letter in text.chars() {
        if matches!(letter, '%' | '_' | '\\') {
            pattern.push('\\');
        }
        pattern.push(letter.to_ascii_lowercase());
    }
    pattern.push('%');
    pattern
}

impl Row<RunFilter> for BriefRow {
    fn key(&self, list: &RunFilter) -> RunKey {
        RunKey::of(&self.run, list.order)
    }
}

impl Row<ExecutionFilter> for Execution {
    fn key(&self, _: &ExecutionFilter) -> ExecutionId {
        self.id
    }
}

impl Row<ExecutionFilter> for Bare {
    fn key(&self, _: &ExecutionFilter) -> ExecutionId {
        self.0.id
    }
}

impl List for RunFilter {
    type Key = RunKey;

    const FILTERS: &'static str = concat!(
        " AND ",
        condition!(visible run),
        " AND r.cluster NOT IN (",
        condition!(deleted clusters),
        ") AND (r.cluster = :cluster OR :cluster IS NULL) AND (r.job = :job OR :job IS NULL) \
         AND (r.state = :state OR :state IS NULL) AND ((1 << r.state) & :states <> 0 OR :states IS NULL) \
         AND (r.submitted_by = :by OR :by IS NULL) AND ((r.paused_at IS NOT NULL AND r.state ",
        condition!(open runs),
        ") = :paused OR :paused IS NULL) AND (lower(r.id) LIKE :text ESCAPE '\\' \
         OR lower(r.job) LIKE :text ESCAPE '\\' OR :text IS NULL) AND (r.id IN (SELECT e.run FROM executions e \
         WHERE coalesce(e.pinned, e.lease_node) = :node ORDER BY e.id DESC LIMIT :rows_read) OR :node IS NULL) \
         AND (r.created_at >= :from OR :from IS NULL) AND (r.created_at < :to OR :to IS NULL) \
         AND (substr(r.id, 1, 6) = :prefix) = :debug"
    );

    fn sequence(&self) -> &'static Sequence {
        match self.order {
            RunOrder::NewestFirst => &Sequence {
                keys: "SELECT r.created_at, r.id, CAST(0 AS smallint) FROM runs r",
                order: "r.created_at DESC, r.id DESC",
                between: "(r.created_at, r.id) < (:after_at, :after_id) AND \
                          (r.created_at, r.id) >= (:last_at, :last_id)",
            },
            RunOrder::OldestFirst => &Sequence {
                keys: "SELECT r.created_at, r.id, CAST(1 AS smallint) FROM runs r",
                order: "r.created_at, r.id",
                between: "(r.created_at, r.id) > (:after_at, :after_id) AND \
                          (r.created_at, r.id) <= (:last_at, :last_id)",
            },
            RunOrder::LastEndedFirst => &Sequence {
                keys: "SELECT r.finished_at, r.id, CAST(2 AS smallint) FROM runs r",
                order: "r.finished_at DESC, r.id DESC",
                between: "(r.finished_at, r.id) < (:after_at, :after_id) AND \
                          (r.finished_at, r.id) >= (:last_at, :last_id)",
            },
            RunOrder::FirstEndedFirst => &Sequence {
                keys: "SELECT r.finished_at, r.id, CAST(3 AS smallint) FROM runs r",
                order: "r.finished_at, r.id",
                between: "(r.finished_at, r.id) > (:after_at, :after_id) AND \
                          (r.finished_at, r.id) <= (:last_at, :last_id)",
            },
        }
    }

    fn index(&self) -> (&'static str, Others) {
        let open = !self.states.is_empty() && !self.states.iter().any(|state| state.is_terminal());
        if self.order.is_by_end() {
            let is_filtered = Self { order: RunOrder::default(), ..self.clone() } != Self::default();
            let others = if is_filtered { Others::Exclude } else { Others::None };
            return ("r.finished_at IS NOT NULL AND ", others);
        }
        let paused = self.paused == Some(true);
        let index = if open || paused {
            concat!("r.state ", condition!(open runs), " AND ")
        } else if self.job().is_some() {
            "r.job = :job AND "
        } else if self.single_end().is_some() {
            concat!("r.state ", condition!(indexed ended runs), " AND r.state = :state AND ")
        } else if self.cluster.is_some() {
            "r.cluster = :cluster AND "
        } else {
            ""
        };
        let set = [
            self.cluster.is_some(),
            !self.states.is_empty(),
            self.job().is_some(),
            self.by.is_some(),
            self.paused.is_some(),
            self.text.is_some(),
            self.node.is_some(),
        ];
        let set = set.into_iter().filter(|is_set| *is_set).count();
        // Debug commands do not count: few are kept, and only for a day.
        // Most open runs are neither paused nor in the wanted states.
        let served = usize::from(!index.is_empty() && !open && !paused);
        (index, if set > served { Others::Exclude } else { Others::None })
    }

    fn value(&self, name: &str, range: &Range<RunKey>) -> Arg {
        // `from` and `to` bound the keys if these are times of creation: no id is less than the empty one.
        let (bounds, filters) = ((self.from, self.to), (None, None));
        let (bounds, filters) = if self.order.is_by_end() { (filters, bounds) } else { (bounds, filters) };
        let micros = |at: Option<Timestamp>| at.map(|at| at.as_microsecond());
        let part = |key: &'_ RunKey| (key.at.as_microsecond(), key.id.as_str().to_owned());
        let bound = |at: Option<Timestamp>| micros(at).map(|at| (at, String::default()));
        let is_text = name.ends_with("_id");
        let either = |key: (i64, String)| if is_text { optional_text(Some(&key.1)) } else { arg(key.0) };
        let (after, last) = (range.after.as_ref().map(part), range.last.as_ref().map(part));
        let (lowest, highest) = ((i64::MIN, String::default()), (i64::MAX, String::default()));
        let lower =
            |key: Option<(i64, String)>| key.into_iter().chain(bound(bounds.0)).max().unwrap_or(lowest);
        let upper =
            |key: Option<(i64, String)>| key.into_iter().chain(bound(bounds.1)).min().unwrap_or(highest);
        match name {
            "after_at" | "after_id" if self.order.is_ascending() => either(lower(after)),
            "after_at" | "after_id" => either(upper(after)),
            "last_at" | "last_id" if self.order.is_ascending() => either(upper(last)),
            "last_at" | "last_id" => either(lower(last)),
            "from" => arg(micros(filters.0)),
            "to" => arg(micros(filters.1)),
            "cluster" => arg(self.cluster.map(|cluster| cluster.0)),
            "job" => optional_text(self.job()),
            // Not a literal: a colon begins the name of an argument.
            "prefix" => optional_text(Some(RunId::DEBUG)),
            "debug" => arg(self.kind == RunKind::Debug),
            "state" => arg(self.single_end().map(Code::code)),
            "states" => arg(mask(&self.states).filter(|_| self.single_end().is_none())),
            "by" => optional_text(self.by.as_deref()),
            "paused" => arg(self.paused),
            "text" => optional_text(self.text.as_deref().map(pattern).as_deref()),
            "node" => arg(self.node.map(|node| node.0)),
            "rows_read" => arg(i64::from(limits::ROWS_READ)),
            _ => unreachable!("a list of runs has no `{name}`"),
        }
    }
}

impl RunFilter {
    /// Returns the job of the runs. All debug commands have one, so that its index serves a list of them.
    fn job(&self) -> Option<&str> {
        match self.kind {
            RunKind::Jobs => self.job.as_deref(),
            RunKind::Debug => Some(debug::JOB),
        }
    }

    /// Returns the state in which the runs ended, if it is only one.
    fn single_end(&self) -> Option<RunState> {
        match self.states[..] {
            [RunState::Orphaned] => None,
            [state] if state.is_terminal() => Some(state),
            _ => None,
        }
    }
}

impl List for ExecutionFilter {
    type Key = ExecutionId;

    const FILTERS: &'static str = " AND (run = :run OR :run IS NULL) \
         AND (coalesce(pinned, lease_node) = :node OR :node IS NULL) AND (step = :step OR :step IS NULL) \
         AND (item = :item OR :item IS NULL) AND ((1 << status) & :statuses <> 0 OR :statuses IS NULL)";

    fn sequence(&self) -> &'static Sequence {
        &Sequence { keys: "SELECT id FROM executions", order: "id", between: "id > :after AND id <= :last" }
    }

    fn index(&self) -> (&'static str, Others) {
        let unsuccessful = !self.statuses.is_empty()
            && self.statuses.iter().all(|status| !status.is_open() && *status != Status::Succeeded);
        // The expression that `executions_of_node` indexes: a pinned execution can only be leased by its node.
        let is_standing = self.run.as_ref().is_some_and(RunId::is_standing);
        let index = match (&self.run, self.node) {
            // A node has few of the executions of a standing run, and a task has not all of them.
            (Some(_), Some(_)) if is_standing => "coalesce(pinned, lease_node) = :node AND ",
            (Some(_), None) if is_standing && self.step.is_some() && !unsuccessful => {
                concat!(condition!(standing runs), " AND run = :run AND step = :step AND ")
            }
            (Some(_), _) if unsuccessful => {
                concat!("run = :run AND ", condition!(unsuccessful executions), " AND ")
            }
            (Some(_), _) => "run = :run AND ",
            (None, Some(_)) => "coalesce(pinned, lease_node) = :node AND ",
            (None, None) => "",
        };
        let set = [
            self.run.is_some(),
            self.node.is_some(),
            self.step.is_some(),
            self.item.is_some(),
            !self.statuses.is_empty(),
        ];
        let set = set.into_iter().filter(|is_set| *is_set).count();
        let served = usize::from(!index.is_empty()) + usize::from(index.contains(":step"));
        (index, if set > served { Others::Exclude } else { Others::None })
    }

    fn value(&self, name: &str, range: &Range<ExecutionId>) -> Arg {
        match name {
            "after" => arg(range.after.map_or(Uuid::nil(), |id| id.0)),
            "last" => arg(range.last.map_or(Uuid::max(), |id| id.0)),
            "run" => optional_text(self.run.as_ref().map(|run| run.as_str())),
            "node" => arg(self.node.map(|node| node.0)),
            "step" => arg(self.step.map(small)),
            "item" => arg(self.item.map(small)),
            "statuses" => arg(mask(&self.statuses)),
            _ => unreachable!("a list of executions has no `{name}`"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_one_number() {
        let (text, names) = numbered("a = :one AND (b = :two OR :one IS NULL) LIMIT :the_limit");
        assert_eq!(text, "a = $1 AND (b = $2 OR $1 IS NULL) LIMIT $3");
        assert_eq!(names, ["one", "two", "the_limit"]);
        let (text, names) = numbered("a < 'b:' AND a = :one");
        assert_eq!((text.as_str(), names), ("a < 'b:' AND a = $1", vec!["one"]));
    }

    #[test]
    fn only_a_filter_that_an_index_serves_alone_has_no_end_of_what_is_read() {
        let all = RunFilter::default;
        let job = Some("job".to_owned());
        assert_eq!(all().index().1, Others::None);
        assert_eq!(RunFilter { job: job.clone(), ..all() }.index().1, Others::None);
        assert_eq!(RunFilter { states: vec![RunState::Failed], ..all() }.index().1, Others::None);
        assert_eq!(RunFilter { states: vec![RunState::Running], ..all() }.index().1, Others::Exclude);
        assert_eq!(RunFilter { paused: Some(true), ..all() }.index().1, Others::Exclude);
        assert_eq!(RunFilter { paused: Some(true), job, ..all() }.index().1, Others::Exclude);
    }

    #[test]
    fn a_pattern_has_no_wildcards_of_the_user() {
        assert_eq!(pattern(r"Web_1%\"), r"%web\_1\%\\%");
    }
}
