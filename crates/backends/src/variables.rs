//! Owns the names of the environment variables that the agent sets for work. Nobody else names them.

/// Names the attempt that a process belongs to.
pub(crate) const EXECUTION: &str = "DOWNBEAT_EXECUTION";
/// Names the file into which a program writes values for later tasks.
pub(crate) const OUTPUT: &str = "DOWNBEAT_OUTPUT";

/// All of them.
pub const JOB_VARIABLES: [&str; 2] = [EXECUTION, OUTPUT];
