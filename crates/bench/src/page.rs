//! Reports for people, before they are laid out.

/// A part of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Line(String),
    /// Names and values, one pair per line.
    Facts(Vec<(&'static str, String)>),
    Table {
        head: Vec<&'static str>,
        rows: Vec<Vec<String>>,
    },
}

/// The head of a column, and the cell of an item.
pub(crate) type Column<'a, T> = (&'static str, &'a dyn Fn(&T) -> String);

impl Part {
    /// Creates a table with a row for each item, from the heads and cells of its columns.
    pub(crate) fn table<T>(items: &[T], columns: &[Column<'_, T>]) -> Self {
        let row = |item: &T| columns.iter().map(|(_, cell)| cell(item)).collect();
        Part::Table {
            head: columns.iter().map(|(head, _)| *head).collect(),
            rows: items.iter().map(row).collect(),
        }
    }
}
