//! Owns the error for an invalid selector.

/// An error in the text of a selector, with its position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("column {column} of the selector: {message}")]
pub struct Error {
    /// Counted in characters, from 1.
    pub column: u32,
    /// Includes the valid forms.
    pub message: String,
}

impl Error {
    pub(super) fn new(column: u32, message: impl Into<String>) -> Self {
        Self { column, message: message.into() }
    }
}
