//! Owns what is said of a text that is no selector.

/// Why a text is no selector, and where in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("column {column} of the selector: {message}")]
pub struct Error {
    /// In characters, from 1.
    pub column: u32,
    /// Says what would have been valid.
    pub message: String,
}

impl Error {
    pub(super) fn new(column: u32, message: impl Into<String>) -> Self {
        Self { column, message: message.into() }
    }
}
