//! Owns the look of tables: columns two blanks apart, no lines, the last column wrapped to the terminal.

use downbeat_core::shown::is_unprintable;
use owo_colors::OwoColorize;

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
}

pub(super) const GAP: usize = 2;
/// Narrower than this a wrapped column is unreadable: it runs over instead.
pub(super) const NARROWEST_COLUMN: usize = 20;

impl Table {
    pub(crate) fn new(head: impl IntoIterator<Item = &'static str>) -> Self {
        Self { head: head.into_iter().collect(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub(crate) fn draw(&self, width: Option<usize>) -> String {
        let widths: Vec<usize> = (0..self.head.len())
            .map(|column| {
                let cells =
                    self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.text.chars().count());
                cells.chain([self.head[column].len()]).max().unwrap_or(0)
            })
            .collect();
        let before_last: usize =
            widths.iter().take(widths.len().saturating_sub(1)).map(|width| width + GAP).sum();
        let last =
            width.map(|width| width.saturating_sub(before_last)).filter(|left| *left >= NARROWEST_COLUMN);

        let mut text = String::new();
        let head: Vec<Cell> = self.head.iter().map(|name| Cell::new(*name, Tone::Dim)).collect();
        for row in std::iter::once(&head).chain(&self.rows) {
            self.draw_row(&mut text, row, &widths, last, before_last);
        }
        text
    }

    fn draw_row(
        &self,
        text: &mut String,
        row: &[Cell],
        widths: &[usize],
        last: Option<usize>,
        before_last: usize,
    ) {
        let mut blanks = 0;
        for (column, cell) in row.iter().enumerate() {
            let is_last = column + 1 == self.head.len();
            let mut lines = match last {
                Some(width) if is_last => wrapped(&cell.text, width),
                _ => vec![cell.text.clone()],
            }
            .into_iter();
            let first = lines.next().unwrap_or_default();
            if !first.is_empty() {
                text.extend(std::iter::repeat_n(' ', std::mem::take(&mut blanks)));
                text.push_str(&painted(&first, cell.tone));
            }
            blanks += widths[column].saturating_sub(first.chars().count()) + GAP;
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

/// Names and values, one under the other.
pub(crate) fn facts(rows: &[(&str, Cell)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, cell) in rows {
        text.push_str(&format!(
            "{}  {}\n",
            painted(&format!("{name:width$}"), Tone::Dim),
            painted(&cell.text, cell.tone)
        ));
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

/// Breaks at blanks where it can.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut length = 0;
    for word in text.split(' ') {
        let mut word: Vec<char> = word.chars().collect();
        if length > 0 && length + 1 + word.len() > width {
            lines.push(String::new());
            length = 0;
        }
        while word.len() > width {
            let rest = word.split_off(width);
            let line: String = word.into_iter().collect();
            lines.last_mut().expect("there is always a line").push_str(&line);
            lines.push(String::new());
            word = rest;
        }
        let line = lines.last_mut().expect("there is always a line");
        if length > 0 {
            line.push(' ');
            length += 1;
        }
        length += word.len();
        line.extend(word);
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
}
