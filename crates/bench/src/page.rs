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
