//! Reports as people read them, before they are laid out.

/// A part of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Line(String),
    /// Names and values, one under the other.
    Facts(Vec<(&'static str, String)>),
    Table {
        head: Vec<&'static str>,
        rows: Vec<Vec<String>>,
    },
}
