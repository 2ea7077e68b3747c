//! Owns the table that is printed: what was injected, what was found.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::check::Violation;
use crate::evidence::{Evidence, Execution};

/// The clients' counts, in addition to the evidence.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clients {
    pub(crate) refusals: u64,
    pub(crate) reconnects: u64,
}

pub(crate) fn table(
    injected: &BTreeMap<&'static str, u64>,
    evidence: &Evidence,
    clients: &Clients,
    violations: &[Violation],
) -> String {
    let mut text = String::from("injected\n");
    for (kind, count) in injected {
        let _ = writeln!(text, "  {kind:<44} {count:>6}");
    }
    let _ = writeln!(text, "  {:<44} {:>6}", "all", injected.values().sum::<u64>());
    let executions = || evidence.runs.values().flat_map(|run| &run.executions);
    let status = |word: &str| executions().filter(|execution| execution.status == word).count();
    let runs = |word: &str| evidence.runs.values().filter(|run| run.status == word).count();
    let events =
        |kind: &str| evidence.feeds.first().into_iter().flatten().filter(|event| event.kind == kind).count();
    let offline = |execution: &&Execution| {
        execution.status == "failed"
            && execution.error.as_deref().is_some_and(|error| error.contains("offline"))
    };
    let by_itself = |execution: &&Execution| execution.status == "failed" && execution.exit_code == Some(3);
    let rows = [
        ("runs", evidence.runs.len()),
        ("  completed", runs("completed")),
        ("  failed", runs("failed")),
        ("  cancelled", runs("cancelled")),
        ("executions", executions().count()),
        ("  really begun", evidence.book.lines.len() - evidence.book.ends().count()),
        ("  succeeded", status("succeeded")),
        ("  failed", status("failed")),
        ("    by themselves, as their script says", executions().filter(by_itself).count()),
        ("    because their node was offline", executions().filter(offline).count()),
        ("  lost", status("lost")),
        ("  retried or sent again", executions().filter(|execution| execution.attempt > 1).count()),
        ("take-overs of runs", events("run_taken")),
        ("events", evidence.feeds.first().map_or(0, Vec::len)),
        ("submissions answered with 503", usize::try_from(clients.refusals).unwrap()),
        ("streams resumed", usize::try_from(clients.reconnects).unwrap()),
    ];
    text.push_str("found\n");
    for (what, count) in rows {
        let _ = writeln!(text, "  {what:<44} {count:>6}");
    }
    let _ =
        writeln!(text, "  {:<44} {:>5.1}s", "longest pause between two ends", evidence.book.longest_pause());
    let _ = writeln!(text, "  {:<44} {:>6}", "violations", violations.len());
    for violation in violations.iter().take(40) {
        let _ = writeln!(text, "    {violation}");
    }
    text
}
