//! Owns the exit codes: which number each kind of failure ends the program with. No other file names a number.

use std::fmt;
use std::process::ExitCode;

/// The reason why the program ends with a code other than 0.
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
    /// A condition on this machine that may pass: a full or read-only disk, a data directory that another agent still
    /// uses. `EX_TEMPFAIL` of sysexits.h: a supervisor may start the program again.
    TemporaryFailure = 75,
    /// Ctrl-C while waiting, with the number that shells use: a script that waits for a run must not continue.
    Interrupted = 130,
}

impl Code {
    /// Maps an HTTP status to an exit code. This is the only place that does.
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

pub(crate) type Result<T = (), E = Failure> = std::result::Result<T, E>;

/// A failure as a user reads it: one line, and optional details below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    /// Empty if everything was already printed to standard output.
    pub(crate) message: String,
    pub(crate) details: Vec<String>,
    /// The exit code of a debug command, which replaces our own.
    passed_on: Option<u8>,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: Vec::new(), passed_on: None }
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

    /// Returns the failure of a run that failed or was cancelled; its result is already printed.
    pub(crate) fn run_failed() -> Self {
        Self::new(Code::RunFailed, "")
    }

    /// Returns the failure of a debug command that exited with this code; its output is already printed.
    pub(crate) fn exited(code: i32) -> Self {
        // The system passes on the last eight bits. Zero would mean success.
        let passed_on = u8::try_from(code & 0xff).ok().filter(|code| *code != 0);
        Self { passed_on, ..Self::run_failed() }
    }

    /// Returns the code with which the program ends.
    pub(crate) fn exit_code(&self) -> ExitCode {
        self.passed_on.map_or_else(|| self.code.into(), ExitCode::from)
    }

    /// Returns the failure of a command that Ctrl-C interrupted while it waited; its note is already printed.
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
