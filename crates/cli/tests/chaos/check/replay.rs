//! Checks that a replay of the feed results in the recorded states of runs and executions, by allowed moves only.

use std::collections::BTreeMap;

use super::Findings;
use crate::evidence::{Event, Evidence};

#[derive(Debug, Default)]
struct State<'a> {
    runs: BTreeMap<&'a str, RunState<'a>>,
    executions: BTreeMap<&'a str, &'a str>,
}

#[derive(Debug)]
struct RunState<'a> {
    state: &'a str,
    owner: &'a str,
    epoch: u64,
}

pub(super) fn explains(evidence: &Evidence, findings: &mut Findings) {
    let Some(feed) = evidence.feeds.first() else { return };
    let mut state = State::default();
    for event in feed {
        if let Err(why) = state.apply(event) {
            findings.note(
                "events follow from each other",
                format!("event {} ({}): {why}", event.seq, event.kind),
            );
        }
    }
    for run in evidence.all_runs() {
        match state.runs.get(run.id.as_str()) {
            None => findings.note("the feed explains the records", format!("{} has no event", run.id)),
            Some(fed) if fed.state != run.state || fed.owner != run.owner => {
                let text = format!("{} is {} of {}, and the feed has {fed:?}", run.id, run.state, run.owner);
                findings.note("the feed explains the records", text);
            }
            Some(_) => {}
        }
        for execution in &run.executions {
            let fed = state.executions.get(execution.id.as_str()).copied();
            if fed != Some(execution.status.as_str()) {
                let text = format!(
                    "{} of {} is {}, and the feed says {}",
                    execution.id,
                    run.id,
                    execution.status,
                    fed.unwrap_or("nothing")
                );
                findings.note("the feed explains the records", text);
            }
        }
    }
    let recorded: usize = evidence.all_runs().map(|run| run.executions.len()).sum();
    if state.executions.len() > recorded {
        let text = format!("{} executions are in the feed, {recorded} are recorded", state.executions.len());
        findings.note("the feed explains the records", text);
    }
}

fn is_end(state: &str) -> bool {
    matches!(state, "completed" | "failed" | "cancelled")
}

impl<'a> State<'a> {
    fn apply(&mut self, event: &'a Event) -> Result<(), String> {
        let run = event.run.as_deref().unwrap_or_default();
        let word = |key: &str| event.data[key].as_str().unwrap_or_default();
        match event.kind.as_str() {
            "run_created" => {
                let created = RunState { state: word("state"), owner: word("owner"), epoch: 1 };
                if self.runs.insert(run, created).is_some() {
                    return Err(format!("{run} was created before"));
                }
            }
            "run_taken" => {
                let epoch = event.data["epoch"].as_u64().unwrap_or(0);
                let (last, state) = self.run(run).map(|fed| (fed.epoch, fed.state))?;
                if is_end(state) {
                    return Err(format!("{run} is {state}"));
                }
                if epoch != last + 1 {
                    return Err(format!("{run} had epoch {last} and has {epoch}"));
                }
                let fed = self.run(run)?;
                (fed.epoch, fed.owner) = (epoch, event.data["owner"].as_str().unwrap_or_default());
            }
            "run_moved" => {
                let fed = self.run(run)?;
                if is_end(fed.state) {
                    return Err(format!("{run} was {}", fed.state));
                }
                if let Some(to) = event.data["state"].as_str() {
                    fed.state = to;
                }
            }
            "executions_added" => {
                let ended = self.run(run).map(|fed| is_end(fed.state))?;
                for added in event.data["executions"].as_array().into_iter().flatten() {
                    let status = added["status"].as_str().unwrap_or_default();
                    if ended && status != "skipped" {
                        return Err(format!("{run} had ended"));
                    }
                    let id = added["id"].as_str().unwrap_or_default();
                    if self.executions.insert(id, status).is_some() {
                        return Err(format!("{id} was added before"));
                    }
                }
            }
            kind if kind.starts_with("execution_") => return self.move_execution(event),
            _ => {}
        }
        Ok(())
    }

    fn run(&mut self, run: &str) -> Result<&mut RunState<'a>, String> {
        self.runs.get_mut(run).ok_or_else(|| format!("{run} was not created"))
    }

    fn move_execution(&mut self, event: &'a Event) -> Result<(), String> {
        let id = event.execution.as_deref().unwrap_or_default();
        let from = *self.executions.get(id).ok_or_else(|| format!("{id} was not added"))?;
        let to = match (event.kind.as_str(), from) {
            ("execution_leased", "pending") => "leased",
            ("execution_started", "leased") => "running",
            ("execution_finished", "leased" | "running") => {
                event.data["verdict"].as_str().unwrap_or_default()
            }
            ("execution_lost", "leased" | "running") => "lost",
            ("execution_cancel_requested", "pending") => "cancelled",
            ("execution_cancel_requested", "leased" | "running") => from,
            ("execution_given_up", "pending") => "failed",
            ("execution_skipped", "pending") => "skipped",
            _ => return Err(format!("{id} was {from}")),
        };
        self.executions.insert(id, to);
        Ok(())
    }
}
