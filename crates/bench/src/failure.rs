//! Why a load failed.

use downbeat_client::Error;

use crate::page::Part;

/// The kind of a failure. The program has an exit code for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    RunFailed,
    BadInput,
    Unreachable,
    Refused,
    Bug,
}

/// A failure as a user reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub code: Code,
    pub message: String,
    pub details: Vec<String>,
    /// The measurements until the failure.
    pub measured: Vec<Part>,
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: Vec::new(), measured: Vec::new() }
    }

    pub(crate) fn bad_input(message: impl Into<String>) -> Self {
        Self::new(Code::BadInput, message)
    }

    pub(crate) fn bug(message: impl Into<String>) -> Self {
        Self::new(Code::Bug, message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match error {
            _ if error.is_unreachable() => Code::Unreachable,
            Error::Problem(_) => Code::Refused,
            _ => Code::Bug,
        };
        Self::new(code, error.to_string())
    }
}
