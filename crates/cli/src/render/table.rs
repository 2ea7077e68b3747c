//! Owns the look of tables: columns two blanks apart, no lines, and no line wider than the terminal. The last column is
//! wrapped; columns that may be narrower are cut with `…` where it would else have no room.

use downbeat_core::shown::is_unprintable;
use owo_colors::OwoColorize;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// What a cell wants to say with its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Good,
    Bad,
    Busy,
    Dim,
}

/// One cell.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    pub(crate) fn new(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: one_line(&text.into()), tone }
    }

    /// Text that is taken as it is, blanks and colours. In a column colours would count as letters.
    pub(crate) fn painted(text: String) -> Self {
        Self { text, tone: Tone::Plain }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(text, Tone::Plain)
    }
}

/// Rows under a head.
#[derive(Debug)]
pub(crate) struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
    /// Columns that may be cut, the first of them first, each to a number of columns of the terminal.
    narrower: Vec<(usize, usize)>,
    /// Shorter names of columns, for a terminal in which the long ones have no room.
    short: Vec<(usize, &'static str)>,
    /// The last column is cut and not wrapped: a row is a line.
    one_line_each: bool,
}

pub(super) const GAP: usize = 2;
/// Narrower than this a wrapped column is unreadable: it runs over instead.
pub(super) const NARROWEST_COLUMN: usize = 20;
/// For a last column of this width other columns get shorter names.
const COMFORTABLE_COLUMN: usize = 40;
/// Other columns are cut until a last column that is wrapped, or cut, has this width.
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

    /// In a narrow terminal the column with this name may be cut, but not below `least`.
    pub(crate) fn may_cut(mut self, column: &str, least: usize) -> Self {
        let column = self.head.iter().position(|name| *name == column);
        self.narrower.extend(column.map(|column| (column, least)));
        self
    }

    /// In a narrow terminal the column has another name.
    pub(crate) fn or_short(mut self, column: &str, short: &'static str) -> Self {
        let column = self.head.iter().position(|name| *name == column);
        self.short.extend(column.map(|column| (column, short)));
        self
    }

    /// A row is a line, however much its last cell has to say.
    pub(crate) fn one_line_each(mut self) -> Self {
        self.one_line_each = true;
        self
    }

    pub(crate) fn draw(&self, width: Option<usize>) -> String {
        let mut head = self.head.clone();
        let mut widths = self.widths(&head);
        let last = widths.len().saturating_sub(1);
        let least = if self.one_line_each { CUT_COLUMN } else { WRAPPED_COLUMN };
        // What the last column needs at least, if it is not shorter anyway.
        let rest = widths.get(last).map_or(0, |natural| least.min(*natural));
        let before = |widths: &[usize]| widths[..last].iter().map(|width| width + GAP).sum::<usize>();
        let over = |widths: &[usize]| (before(widths) + rest).saturating_sub(width.unwrap_or(usize::MAX));
        let wish = widths.get(last).map_or(0, |natural| COMFORTABLE_COLUMN.min(*natural));
        if width.is_some_and(|width| before(&widths) + wish > width) {
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

/// What becomes of a last cell that is too long.
#[derive(Clone, Copy, Debug)]
enum LastColumn {
    Whole,
    Wrapped(usize),
    Cut(usize),
}

/// Names and values, one under the other.
pub(crate) fn facts(rows: &[(&str, Cell)]) -> String {
    facts_within(rows, None)
}

/// The same, with long values wrapped to the terminal.
pub(crate) fn facts_within(rows: &[(&str, Cell)], width: Option<usize>) -> String {
    let names = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let room = width.map(|width| width.saturating_sub(names + GAP)).filter(|room| *room >= NARROWEST_COLUMN);
    let mut text = String::new();
    for (name, cell) in rows {
        let lines = room.map_or_else(|| vec![cell.text.clone()], |room| wrapped(&cell.text, room));
        for (place, line) in lines.iter().enumerate() {
            let name = if place == 0 { name } else { "" };
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

/// At most so many columns of the terminal, with `…` in place of what is cut.
fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let (kept, _) = split_at_width(text, width.saturating_sub(1));
    format!("{}…", kept.trim_end())
}

/// The longest beginning that takes at most so many columns, and the rest. Some characters take two.
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

/// Breaks at blanks where it can.
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

/// What comes from hosts may hold line ends and control characters: neither may break the table or the terminal.
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
