//! Owns the exit codes: what each kind of failure ends the program with. Nobody else names a number.

use std::fmt;
use std::process::ExitCode;

/// Why the program ends with something else than 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// The run failed or was cancelled.
    RunFailed = 1,
    BadInput = 2,
    Unreachable = 3,
    NotFound = 4,
    /// Conflict, or refused before anything was dispatched.
    Refused = 5,
    NotAllowed = 6,
    Bug = 70,
    /// Something on this machine is in the way that may pass: a disk that is full or read-only, a data directory that
    /// another agent still has. `EX_TEMPFAIL` of sysexits.h; whoever starts the program may start it again.
    InTheWay = 75,
    /// Ctrl-C while waiting, as shells number it: a script that waits for a run must not go on.
    Interrupted = 130,
}

impl Code {
    /// The one place where an HTTP status becomes an exit code.
    pub(crate) fn of_status(status: u16) -> Self {
        match status {
            400 | 405 | 406 | 408 | 411 | 413 | 414 | 415 | 422 | 431 => Code::BadInput,
            401 | 403 => Code::NotAllowed,
            404 | 410 => Code::NotFound,
            409 | 412 | 428 | 429 => Code::Refused,
            502..=504 => Code::Unreachable,
            _ => Code::Bug,
        }
    }
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        ExitCode::from(code as u8)
    }
}

/// What went wrong, as a person reads it: one line, and where it helps a list below.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    /// Empty when everything was said on standard output already.
    pub(crate) message: String,
    pub(crate) details: Vec<String>,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: Vec::new() }
    }

    pub(crate) fn bad_input(message: impl Into<String>) -> Self {
        Self::new(Code::BadInput, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(Code::NotFound, message)
    }

    pub(crate) fn bug(message: impl Into<String>) -> Self {
        Self::new(Code::Bug, message)
    }

    /// The run ended other than well; what is to say about it was printed.
    pub(crate) fn run_failed() -> Self {
        Self::new(Code::RunFailed, "")
    }

    /// Ctrl-C while waiting; what is to say about it was printed.
    pub(crate) fn interrupted() -> Self {
        Self::new(Code::Interrupted, "")
    }

    pub(crate) fn with_details(mut self, details: Vec<String>) -> Self {
        self.details = details;
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        for detail in &self.details {
            write!(f, "\n  {detail}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_of_the_api_has_its_exit_code() {
        let table = [
            (400, 2),
            (413, 2),
            (422, 2),
            (401, 6),
            (403, 6),
            (404, 4),
            (409, 5),
            (429, 5),
            (503, 3),
            (500, 70),
        ];
        for (status, code) in table {
            assert_eq!(Code::of_status(status) as u8, code, "{status}");
        }
    }
}
