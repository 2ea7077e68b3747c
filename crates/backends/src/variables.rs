//! Owns the names of the environment variables that the agent sets for work.

/// Names the attempt that a process belongs to.
pub(crate) const EXECUTION: &str = "DOWNBEAT_EXECUTION";
/// Names the file in which a program sets outputs for later tasks.
pub(crate) const OUTPUT: &str = "DOWNBEAT_OUTPUT";

pub const JOB_VARIABLES: [&str; 2] = [EXECUTION, OUTPUT];
