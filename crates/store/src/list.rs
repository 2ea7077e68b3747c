//! Owns the lists of both SQL stores: a page, the end of what it may read, and the total. All values are arguments, and a
//! text depends only on the index that serves the list, so that there are few texts to prepare.

use downbeat_core::execution::{Execution, Status};
use downbeat_core::ids::ExecutionId;
use downbeat_core::limits;
use downbeat_core::run::{RunBrief, RunState};
use uuid::Uuid;

use crate::filter::{Arg, arg};
use crate::port::{ExecutionFilter, Listed, Page, Position, Result, RunFilter, RunKey};
use crate::read::{Database, number, one};
use crate::rows::{Bare, Code, Record, Text, condition, int, small};

/// A list of rows: which ones, and in which order.
pub(crate) trait List: Sync {
    type Key: Record + Clone + Sync;

    /// The SELECT of the keys.
    const KEYS: &'static str;
    const ORDER: &'static str;
    /// Selects the keys after `:after` up to and including `:last`.
    const BETWEEN: &'static str;
    /// The conditions of all filters. Each holds if its filter is empty.
    const FILTERS: &'static str;

    /// Returns the condition that an index serves, and whether other filters exclude further rows.
    fn index(&self) -> (&'static str, Others);

    /// Returns the value of a filter, or of a part of a key.
    fn value(&self, name: &str, range: &Range<Self::Key>) -> Arg;
}

/// A row of a list.
pub(crate) trait Row: Record {
    type Key;

    fn key(&self) -> Self::Key;
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
pub(crate) async fn list<L: List, R: Row<Key = L::Key>>(
    database: &impl Database,
    list: &L,
    page: &Page<L::Key>,
) -> Result<Listed<R, L::Key>> {
    let (index, others) = list.index();
    let Position { after, skip } = &page.start;
    let mut range = Range { after: after.clone(), last: None };
    if others == Others::Exclude {
        let template =
            format!("{} WHERE {index}{} ORDER BY {} LIMIT 1 OFFSET :skip", L::KEYS, L::BETWEEN, L::ORDER);
        let skip = u64::from(limits::ROWS_READ) - 1;
        let (sql, args) = bound(list, &template, &range, &[("skip", skip)]);
        range.last = one(database, &sql, args).await?;
    }
    let wanted = format!(" WHERE {index}{}{}", L::BETWEEN, L::FILTERS);
    let limit = page.limit as usize;
    let rest = format!("{wanted} ORDER BY {} LIMIT :limit OFFSET :skip", L::ORDER);
    let (rest, args) = bound(list, &rest, &range, &[("limit", u64::from(page.limit) + 1), ("skip", *skip)]);
    let mut rows: Vec<R> = database.fetch(&rest, args).await?;
    let more = rows.len() > limit;
    rows.truncate(limit);
    let count = async |most: u64| {
        // The order makes PostgreSQL read along the index.
        let template =
            format!("SELECT count(*) FROM ({}{wanted} ORDER BY {} LIMIT :limit) found", L::KEYS, L::ORDER);
        let (sql, args) = bound(list, &template, &range, &[("limit", most)]);
        number(database, &sql, args).await
    };
    let next = match (rows.last(), range.last.clone()) {
        (Some(row), _) if more => Some(Position::after(row.key())),
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

impl Row for RunBrief {
    type Key = RunKey;

    fn key(&self) -> RunKey {
        RunKey { created_at: self.created_at, id: self.id.clone() }
    }
}

impl Row for Execution {
    type Key = ExecutionId;

    fn key(&self) -> ExecutionId {
        self.id
    }
}

impl Row for Bare {
    type Key = ExecutionId;

    fn key(&self) -> ExecutionId {
        self.0.id
    }
}

impl List for RunFilter {
    type Key = RunKey;

    const KEYS: &'static str = "SELECT r.created_at, r.id FROM runs r";
    const ORDER: &'static str = "r.created_at DESC, r.id DESC";
    const BETWEEN: &'static str = "(r.created_at, r.id) < (:after_at, :after_id) AND \
                                   (r.created_at, r.id) >= (:last_at, :last_id)";
    const FILTERS: &'static str = concat!(
        " AND (r.cluster = :cluster OR :cluster IS NULL) AND (r.job = :job OR :job IS NULL) \
         AND (r.state = :state OR :state IS NULL) AND ((1 << r.state) & :states <> 0 OR :states IS NULL) \
         AND (r.submitted_by = :by OR :by IS NULL) AND ((r.paused_at IS NOT NULL AND r.state ",
        condition!(open runs),
        ") = :paused OR :paused IS NULL) AND (lower(r.id) LIKE :text ESCAPE '\\' \
         OR lower(r.job) LIKE :text ESCAPE '\\' OR :text IS NULL) AND (r.id IN (SELECT e.run FROM executions e \
         WHERE coalesce(e.pinned, e.lease_node) = :node ORDER BY e.id DESC LIMIT :rows_read) OR :node IS NULL)"
    );

    fn index(&self) -> (&'static str, Others) {
        let open = !self.states.is_empty() && !self.states.iter().any(|state| state.is_terminal());
        let index = if open || self.paused == Some(true) {
            concat!("r.state ", condition!(open runs), " AND ")
        } else if self.job.is_some() {
            "r.job = :job AND "
        } else if self.single_end().is_some() {
            concat!("r.state ", condition!(ended runs), " AND r.state = :state AND ")
        } else if self.cluster.is_some() {
            "r.cluster = :cluster AND "
        } else {
            ""
        };
        let set = [
            self.cluster.is_some(),
            !self.states.is_empty(),
            self.job.is_some(),
            self.by.is_some(),
            self.paused.is_some(),
            self.text.is_some(),
            self.node.is_some(),
        ];
        let set = set.into_iter().filter(|is_set| *is_set).count();
        let served = usize::from(!index.is_empty() && !open);
        (index, if set > served { Others::Exclude } else { Others::None })
    }

    fn value(&self, name: &str, range: &Range<RunKey>) -> Arg {
        // `from` and `to` bound the keys: no id is less than the empty one.
        let from = self.from.map(|at| (at.as_microsecond(), ""));
        let to = self.to.map(|at| (at.as_microsecond(), ""));
        let part = |key: &'_ RunKey| (key.created_at.as_microsecond(), key.id.0.clone());
        match name {
            "after_at" | "after_id" => {
                let after = range.after.as_ref().map(part);
                let after = after.as_ref().map(|(at, id)| (*at, &**id)).into_iter().chain(to).min();
                let (at, id) = after.unwrap_or((i64::MAX, ""));
                if name == "after_at" { arg(at) } else { optional_text(Some(id)) }
            }
            "last_at" | "last_id" => {
                let last = range.last.as_ref().map(part);
                let last = last.as_ref().map(|(at, id)| (*at, &**id)).into_iter().chain(from).max();
                let (at, id) = last.unwrap_or((i64::MIN, ""));
                if name == "last_at" { arg(at) } else { optional_text(Some(id)) }
            }
            "cluster" => arg(self.cluster.map(|cluster| cluster.0)),
            "job" => optional_text(self.job.as_deref()),
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
    /// Returns the state in which the runs ended, if it is only one.
    fn single_end(&self) -> Option<RunState> {
        match self.states[..] {
            [state] if state.is_terminal() => Some(state),
            _ => None,
        }
    }
}

impl List for ExecutionFilter {
    type Key = ExecutionId;

    const KEYS: &'static str = "SELECT id FROM executions";
    const ORDER: &'static str = "id";
    const BETWEEN: &'static str = "id > :after AND id <= :last";
    const FILTERS: &'static str = " AND (run = :run OR :run IS NULL) \
         AND (coalesce(pinned, lease_node) = :node OR :node IS NULL) AND (step = :step OR :step IS NULL) \
         AND (item = :item OR :item IS NULL) AND ((1 << status) & :statuses <> 0 OR :statuses IS NULL)";

    fn index(&self) -> (&'static str, Others) {
        let unsuccessful = !self.statuses.is_empty()
            && self.statuses.iter().all(|status| !status.is_open() && *status != Status::Succeeded);
        // The expression that `executions_by_node` indexes: a pinned execution can only be leased by its node.
        let index = match (&self.run, self.node) {
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
        (index, if set > usize::from(!index.is_empty()) { Others::Exclude } else { Others::None })
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
    }

    #[test]
    fn a_pattern_has_no_wildcards_of_the_user() {
        assert_eq!(pattern(r"Web_1%\"), r"%web\_1\%\\%");
    }
}
