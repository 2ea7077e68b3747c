//! The parts of a report, before they are formatted.

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Line(String),
    /// Names and values, one per line.
    Facts(Vec<(&'static str, String)>),
    Table {
        head: Vec<&'static str>,
        rows: Vec<Vec<String>>,
    },
}
