//! `guard`: the process beside an agent that ends `on_disconnect: stop` work when the agent cannot.

use downbeat_agent::watch_over;

use crate::exit::{Code, Failure};
use crate::out::Out;

/// This very program, also after its file was replaced by an upgrade.
pub(super) const GUARD: &str = "/proc/self/exe";

/// Started by agents, not by people: it reads its orders from standard input.
pub(crate) fn run(out: Out) -> Result<(), Failure> {
    let failed = |error| Failure::new(Code::Bug, format!("the guard cannot end its work: {error}"));
    if let Some((why, work)) = watch_over().map_err(failed)? {
        out.note(&format!("the guard ended {work}: {why}"));
    }
    Ok(())
}
