//! Owns the look of tables: columns two blanks apart, no ruled lines, and no row wider than the terminal. The last
//! column is wrapped; columns that may be narrower are cut with `…` to make room for it.

use downbeat_core::shown::is_unprintable;
use owo_colors::OwoColorize;
use serde_json::Value;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The meaning of a cell's colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Good,
    Bad,
    Busy,
    Dim,
}

#[derive(Clone, Debug)]
pub(crate) struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    pub(crate) fn new(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: one_line(&text.into()), tone }
    }

    /// Keeps blanks and colours of the text. In a column with others, colours would count as characters.
    pub(crate) fn painted(text: String) -> Self {
        Self { text, tone: Tone::Plain }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(text, Tone::Plain)
    }
}

#[derive(Debug)]
pub(crate) struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
    /// Columns that may be cut, in this order, each with its least width.
    narrower: Vec<(usize, usize)>,
    /// Shorter column names for a terminal without room for the long ones.
    short: Vec<(usize, &'static str)>,
    /// The last column is cut instead of wrapped: every row is one line.
    one_line_each: bool,
}

pub(super) const GAP: usize = 2;
/// A wrapped column narrower than this is unreadable: it exceeds the terminal instead.
pub(super) const NARROWEST_COLUMN: usize = 20;
/// To give the last column this width, other columns get their short names.
const COMFORTABLE_COLUMN: usize = 40;
/// To give the last column this width, wrapped or cut, other columns are cut.
const WRAPPED_COLUMN: usize = 28;
const CUT_COLUMN: usize = 16;

impl Table {
    pub(crate) fn new(head: impl IntoIterator<Item = &'static str>) -> Self {
        Self {
            head: head.into_iter().collect(),
            rows: Vec::new(),
            narrower: Vec::new(),
            short: Vec::new(),
            one_line_each: false,
        }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Allows to cut a column in a narrow terminal, but not below `least`.
    pub(crate) fn may_cut(mut self, column: &str, least: usize) -> Self {
        let column = self.head.iter().position(|name| *name == column);
        self.narrower.extend(column.map(|column| (column, least)));
        self
    }

    /// Sets the name of a column for a narrow terminal.
    pub(crate) fn or_short(mut self, column: &str, short: &'static str) -> Self {
        let column = self.head.iter().position(|name| *name == column);
        self.short.extend(column.map(|column| (column, short)));
        self
    }

    pub(crate) fn one_line_each(mut self) -> Self {
        self.one_line_each = true;
        self
    }

    pub(crate) fn draw(&self, width: Option<usize>) -> String {
        let mut head = self.head.clone();
        let mut widths = self.widths(&head);
        let last = widths.len().saturating_sub(1);
        let least = if self.one_line_each { CUT_COLUMN } else { WRAPPED_COLUMN };
        // The least width of the last column, unless its cells are shorter.
        let rest = widths.get(last).map_or(0, |natural| least.min(*natural));
        let before = |widths: &[usize]| widths[..last].iter().map(|width| width + GAP).sum::<usize>();
        let over = |widths: &[usize]| (before(widths) + rest).saturating_sub(width.unwrap_or(usize::MAX));
        let comfortable = widths.get(last).map_or(0, |natural| COMFORTABLE_COLUMN.min(*natural));
        if width.is_some_and(|width| before(&widths) + comfortable > width) {
            for (column, short) in &self.short {
                head[*column] = short;
            }
            widths = self.widths(&head);
        }
        for (column, least) in &self.narrower {
            let cut = over(&widths).min(widths[*column].saturating_sub(*least));
            widths[*column] -= cut;
        }
        let before_last = before(&widths);
        let room = width.map(|width| width.saturating_sub(before_last));
        let last_room = match room {
            Some(room) if self.one_line_each => LastColumn::Cut(room.max(1)),
            Some(room) if room >= NARROWEST_COLUMN => LastColumn::Wrapped(room),
            _ => LastColumn::Whole,
        };

        let mut text = String::new();
        let head: Vec<Cell> = head.iter().map(|name| Cell::new(*name, Tone::Dim)).collect();
        for row in std::iter::once(&head).chain(&self.rows) {
            self.draw_row(&mut text, row, &widths, last_room, before_last);
        }
        text
    }

    fn widths(&self, head: &[&str]) -> Vec<usize> {
        (0..head.len())
            .map(|column| {
                let cells = self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.text.width());
                cells.chain([head[column].width()]).max().unwrap_or(0)
            })
            .collect()
    }

    fn draw_row(
        &self,
        text: &mut String,
        row: &[Cell],
        widths: &[usize],
        last_column: LastColumn,
        before_last: usize,
    ) {
        let mut blanks = 0;
        for (column, cell) in row.iter().enumerate() {
            let is_last = column + 1 == self.head.len();
            let mut lines = match last_column {
                _ if !is_last => vec![cut(&cell.text, widths[column])],
                LastColumn::Wrapped(width) => wrapped(&cell.text, width),
                LastColumn::Cut(width) => vec![cut(&cell.text, width)],
                LastColumn::Whole => vec![cell.text.clone()],
            }
            .into_iter();
            let first = lines.next().unwrap_or_default();
            if !first.is_empty() {
                text.extend(std::iter::repeat_n(' ', std::mem::take(&mut blanks)));
                text.push_str(&painted(&first, cell.tone));
            }
            blanks += widths[column].saturating_sub(first.width()) + GAP;
            if first.is_empty() {
                continue;
            }
            for line in lines {
                text.push('\n');
                text.extend(std::iter::repeat_n(' ', before_last));
                text.push_str(&painted(&line, cell.tone));
            }
        }
        text.push('\n');
    }
}

/// How a last cell is drawn that is too long.
#[derive(Clone, Copy, Debug)]
enum LastColumn {
    Whole,
    Wrapped(usize),
    Cut(usize),
}

/// Renders names and values, one pair per line.
pub(crate) fn facts(rows: &[(&str, Cell)]) -> String {
    facts_within(rows, None)
}

/// Renders names and values, with long values wrapped to the terminal.
pub(crate) fn facts_within(rows: &[(&str, Cell)], width: Option<usize>) -> String {
    let names = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let room = width.map(|width| width.saturating_sub(names + GAP)).filter(|room| *room >= NARROWEST_COLUMN);
    let mut text = String::new();
    for (name, cell) in rows {
        let lines = room.map_or_else(|| vec![cell.text.clone()], |room| wrapped(&cell.text, room));
        for (index, line) in lines.iter().enumerate() {
            let name = if index == 0 { name } else { "" };
            let name = painted(&format!("{name:names$}"), Tone::Dim);
            text.push_str(&format!("{name}  {}\n", painted(line, cell.tone)));
        }
    }
    text
}

pub(crate) fn painted(text: &str, tone: Tone) -> String {
    match tone {
        Tone::Plain => text.to_owned(),
        Tone::Good => text.green().to_string(),
        Tone::Bad => text.red().to_string(),
        Tone::Busy => text.yellow().to_string(),
        Tone::Dim => text.dimmed().to_string(),
    }
}

/// Cuts the text to this many columns, with `…` in place of the rest.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let (kept, _) = split_at_width(text, width.saturating_sub(1));
    format!("{}…", kept.trim_end())
}

/// Splits off the longest prefix with at most this many columns. Some characters take two.
fn split_at_width(text: &str, width: usize) -> (&str, &str) {
    let mut taken = 0;
    for (at, c) in text.char_indices() {
        taken += c.width().unwrap_or(0);
        if taken > width {
            return text.split_at(at);
        }
    }
    (text, "")
}

/// Wraps the text, at blanks where it can.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut length = 0;
    for word in text.split(' ') {
        let mut word = word;
        if length > 0 && length + 1 + word.width() > width {
            lines.push(String::new());
            length = 0;
        }
        while word.width() > width {
            let (begin, rest) = split_at_width(word, width.max(2));
            lines.last_mut().expect("there is always a line").push_str(begin);
            lines.push(String::new());
            word = rest;
        }
        let line = lines.last_mut().expect("there is always a line");
        if length > 0 {
            line.push(' ');
            length += 1;
        }
        length += word.width();
        line.push_str(word);
    }
    lines
}

/// Returns the text, or a dash if there is none.
pub(super) fn or_dash(text: String) -> Cell {
    if text.is_empty() { Cell::new("-", Tone::Dim) } else { text.into() }
}

/// Returns a value as it is written: strings without quotes.
pub(crate) fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Replaces line ends and control characters: texts from hosts must not break the table or the terminal.
pub(crate) fn one_line(text: &str) -> String {
    let cleaned: String = text.chars().map(|c| if is_unprintable(c) { ' ' } else { c }).collect();
    if cleaned.contains("  ") {
        cleaned.split_whitespace().collect::<Vec<_>>().join(" ")
    } else {
        cleaned.trim().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn the_last_column_is_wrapped_and_hangs() {
        let mut table = Table::new(["NODE", "STATUS", "DETAIL"]);
        table.row([
            "web-01".into(),
            Cell::new("failed", Tone::Bad),
            "could not open /etc/shadow\nas nobody: permission denied".into(),
        ]);
        table.row(["w".into(), Cell::new("succeeded", Tone::Good), "".into()]);
        insta::assert_snapshot!(plain(&table.draw(Some(45))));
        assert_eq!(table.draw(None).lines().count(), 3);
    }

    #[test]
    fn control_characters_never_reach_the_terminal() {
        assert_eq!(one_line("a\x1b[31mb\r\n\tc"), "a [31mb c");
        assert_eq!(one_line("web\u{202e}10"), "web 10");
    }

    #[test]
    fn wide_characters_count_as_the_columns_that_they_take() {
        let mut table = Table::new(["TASK", "NODE"]);
        table.row(["配置を送る".into(), "a".into()]);
        table.row(["deploy".into(), "b".into()]);
        assert_eq!(plain(&table.draw(None)), "TASK        NODE\n配置を送る  a\ndeploy      b\n");
        assert_eq!(cut("配置を送る", 6), "配置…");
        assert_eq!(wrapped("配置を送る", 4), ["配置", "を送", "る"]);
    }

    #[test]
    fn columns_are_cut_in_their_order_and_not_below_their_least_width() {
        let table = || {
            let mut table =
                Table::new(["GROUPS", "LABELS", "SEEN"]).may_cut("LABELS", 6).may_cut("GROUPS", 8);
            table.row(["web,eu,frontend".into(), "disk=ssd,rack=12".into(), "3s".into()]);
            table
        };
        let line = |width| plain(&table().draw(width)).lines().nth(1).unwrap().to_owned();
        assert_eq!(line(None), "web,eu,frontend  disk=ssd,rack=12  3s");
        assert_eq!(line(Some(35)), "web,eu,frontend  disk=ssd,ra…  3s");
        assert_eq!(line(Some(25)), "web,eu,fro…  disk=…  3s");
        assert_eq!(line(Some(5)), "web,eu,…  disk=…  3s", "a table that fits nowhere runs over");
    }

    #[test]
    fn a_row_that_is_a_line_is_cut_at_the_end_of_the_terminal() {
        let mut table = Table::new(["RUN", "ERROR"]).one_line_each();
        table.row(["01a".into(), "step 0 (fetch) failed on web-02".into()]);
        assert_eq!(plain(&table.draw(Some(20))), "RUN  ERROR\n01a  step 0 (fetch)…\n");
    }

    #[test]
    fn a_narrow_terminal_gets_the_short_names() {
        let mut table = Table::new(["ATTEMPTS", "DETAIL"]).or_short("ATTEMPTS", "TRY");
        table.row(["1".into(), "a detail that is rather long".into()]);
        assert!(table.draw(Some(40)).contains("ATTEMPTS"));
        assert_eq!(plain(&table.draw(Some(25))).lines().next(), Some("TRY  DETAIL"));
    }
}
