//! Every submitted run exists once and has ended; every recorded attempt really ran, and every attempt that ran is recorded.

use std::collections::{BTreeMap, BTreeSet};

use super::Findings;
use crate::book::{Line, Verb};
use crate::evidence::{Evidence, Execution, Run};
use crate::schedules::JOBS;
use crate::standing::DOOMED_TASK;

pub(super) fn submissions(evidence: &Evidence, findings: &mut Findings) {
    for submission in &evidence.submissions {
        let key = &submission.key;
        let made: Vec<&Run> = evidence.runs.values().filter(|run| run.job == *key).collect();
        if submission.answered.len() > 1 {
            findings.note("one key, one run", format!("{key} was answered as {:?}", submission.answered));
        }
        for id in &submission.answered {
            if !made.iter().any(|run| run.id == *id) {
                findings.note("an acknowledged run exists", format!("{key} was acknowledged as {id}"));
            }
        }
        if made.len() > 1 {
            let ids: Vec<&String> = made.iter().map(|run| &run.id).collect();
            findings.note("one key, one run", format!("{key} made {ids:?}"));
        }
        for run in made {
            if run.status == "cancelled" && !submission.cancel_asked {
                findings.note("only what was cancelled is", format!("{} ({key})", run.id));
            }
        }
    }
    let known: BTreeSet<&String> = evidence.submissions.iter().map(|submission| &submission.key).collect();
    let starts_itself = |run: &Run| JOBS.iter().any(|(name, _)| *name == run.job);
    for run in evidence.runs.values().filter(|run| !known.contains(&run.job) && !starts_itself(run)) {
        findings.note("only what was submitted runs", format!("{} ({})", run.id, run.job));
    }
    for complaint in &evidence.complaints {
        findings.note("clients get correct responses", complaint.clone());
    }
}

pub(super) fn ends(evidence: &Evidence, findings: &mut Findings) {
    for run in evidence.runs.values() {
        if !matches!(run.status.as_str(), "completed" | "failed" | "cancelled") {
            findings.note("every run ends", format!("{} is {}", run.id, run.state));
        }
        for execution in &run.executions {
            if matches!(execution.status.as_str(), "pending" | "leased" | "running") {
                let text = format!("{} of {} is {}", execution.id, run.id, execution.status);
                findings.note("nothing stays open", text);
            }
        }
        outcome(run, findings);
    }
    for (server, counts) in evidence.open.iter().enumerate() {
        for (status, count) in counts.iter().filter(|(_, count)| **count > 0) {
            findings.note("nothing stays open", format!("server {server} counts {count} {status}"));
        }
    }
    for (server, listing) in evidence.listings.iter().enumerate() {
        let recorded: BTreeMap<String, String> =
            evidence.runs.values().map(|run| (run.id.clone(), run.state.clone())).collect();
        if *listing != recorded {
            let only = |a: &BTreeMap<String, String>, b: &BTreeMap<String, String>| {
                a.iter().find(|(id, state)| b.get(*id) != Some(*state)).map(|(id, _)| id.clone())
            };
            let text = format!(
                "server {server} lists {} runs, {} are shown; first difference: {:?}",
                listing.len(),
                recorded.len(),
                only(listing, &recorded).or_else(|| only(&recorded, listing))
            );
            findings.note("all servers show the same", text);
        }
    }
    for process in &evidence.processes {
        findings.note("no process is left", process.clone());
    }
}

/// The run's end follows from its instances' ends.
fn outcome(run: &Run, findings: &mut Findings) {
    let instances = run.instances();
    let last: Vec<&&Execution> = instances.values().filter_map(|attempts| attempts.last()).collect();
    let failed = |one: &&Execution| matches!(one.status.as_str(), "failed" | "lost");
    match run.status.as_str() {
        "completed" => {
            // Nobody asked for these to be cancelled, and a withdrawn attempt leaves the failed one before it.
            let ended_badly = |one: &&&Execution| {
                failed(one) || one.status == "cancelled" || (one.status == "skipped" && one.attempt > 1)
            };
            let bad: Vec<&&Execution> = last.iter().copied().filter(ended_badly).collect();
            let counted = bad.iter().filter(|one| !run.steps[one.step as usize].on_failure);
            let nodes: BTreeSet<&Option<String>> = counted.map(|one| &one.node).collect();
            if nodes.len() as u64 > run.budget || run.partial == bad.is_empty() {
                let (id, partial) = (&run.id, run.partial);
                let text = format!("{id} completed with partial {partial}, and these failed: {bad:?}");
                findings.note("a run ends as its steps did", text);
            }
            let missing = (0..run.steps.len())
                .find(|step| !last.iter().any(|execution| execution.step as usize == *step));
            if let Some(step) = missing {
                findings
                    .note("a run ends as its steps did", format!("{} completed without step {step}", run.id));
            }
        }
        "failed" if !last.iter().any(|one| failed(one)) => {
            // A retry that was withdrawn leaves the failed attempt before it as the last that was tried.
            let tried = run.executions.iter().any(|one| failed(&one));
            if !tried {
                findings.note("a run ends as its steps did", format!("{} failed, and no step did", run.id));
            }
        }
        _ => {}
    }
}

pub(super) fn against_book(evidence: &Evidence, findings: &mut Findings) {
    let mut begins: BTreeMap<&str, Vec<&Line>> = BTreeMap::new();
    let mut ends: BTreeMap<&str, Vec<&Line>> = BTreeMap::new();
    for line in &evidence.book.lines {
        let side = if line.verb == Verb::Begin { &mut begins } else { &mut ends };
        side.entry(&line.execution).or_default().push(line);
    }
    for torn in &evidence.book.torn {
        findings.note("the book can be read", torn.clone());
    }
    let mut recorded = BTreeSet::new();
    for run in evidence.all_runs() {
        for execution in &run.executions {
            if !recorded.insert(execution.id.as_str()) {
                findings.note("an execution is recorded once", execution.id.clone());
            }
            let begun = begins.get(execution.id.as_str()).map_or(&[][..], Vec::as_slice);
            let ended = ends.get(execution.id.as_str()).map_or(&[][..], Vec::as_slice);
            compare(run, execution, begun, ended, findings);
        }
    }
    // The book keeps what was done in a cluster that is deleted.
    let is_kept = |id: &str| !begins[id].iter().all(|line| line.step.starts_with(DOOMED_TASK));
    for id in begins.keys().filter(|id| !recorded.contains(*id) && is_kept(id)) {
        findings.note(
            "what was done is recorded",
            format!("{id} was carried out, and nothing is recorded of it"),
        );
    }
}

fn compare(run: &Run, execution: &Execution, begun: &[&Line], ended: &[&Line], findings: &mut Findings) {
    let Execution { id, status, .. } = execution;
    let times = (begun.len(), ended.len());
    if begun.len() > 1 || ended.len() > 1 {
        let text = format!("{id} ({status}) of {}: begun {} times, ended {} times", run.id, times.0, times.1);
        findings.note("no execution is carried out twice", text);
    }
    match status.as_str() {
        "succeeded" if times.0 < 1 || times.1 < 1 || ended.iter().any(|line| line.code != 0) => {
            let text = format!("{id} of {} succeeded, and the book has {begun:?} {ended:?}", run.id);
            findings.note("what succeeded was done to its end", text);
        }
        "failed" if execution.exit_code == Some(3) && !ended.iter().any(|line| line.code == 3) => {
            let text = format!("{id} of {} failed by itself, and the book has {ended:?}", run.id);
            findings.note("what failed by itself was done to its end", text);
        }
        "skipped" | "pending" if !begun.is_empty() => {
            let text = format!("{id} of {} is {status} and was carried out", run.id);
            findings.note("what was done is recorded", text);
        }
        _ => {}
    }
    let step = run.steps.get(execution.step as usize).map_or("", |step| &step.name);
    for line in begun.iter().chain(ended) {
        let done = (line.attempt, line.step.as_str(), Some(line.node.as_str()));
        let kept = (execution.attempt, step, execution.node.as_deref());
        if done != kept {
            let text = format!("{id} of {}: recorded {kept:?}, carried out {done:?}", run.id);
            findings.note("attempt, step and node are as recorded", text);
        }
    }
}
