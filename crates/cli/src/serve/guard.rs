//! `guard`: the process next to an agent that stops `on_disconnect: stop` tasks if the agent dies.

use downbeat_agent::watch_over;

use crate::exit::{Code, Failure, Result};
use crate::out::Out;

/// The running program itself, even after an upgrade replaced its file.
pub(super) const GUARD: &str = "/proc/self/exe";

/// Runs the guard. Agents start it, and it reads its orders from standard input.
pub(crate) fn run(out: Out) -> Result {
    let failed = |error| Failure::new(Code::Bug, format!("the guard cannot stop its tasks: {error}"));
    if let Some((why, work)) = watch_over().map_err(failed)? {
        out.note(&format!("the guard stopped {work}: {why}"));
    }
    Ok(())
}
