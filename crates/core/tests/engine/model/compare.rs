//! Compares the engine's records with the result of the tables, and reports the differences.

use std::fmt::Write as _;

use downbeat_core::execution::{Execution, State, Status};
use downbeat_core::run::RunState;

use super::parts::{Given, Why};
use super::story::{BEGINNING_MS, Fact, Line, Story, place_of};

impl Story<'_> {
    /// Compares all records with all expected ones.
    pub(super) fn compare(&mut self) -> Result<(), String> {
        if let Some(broken) = &self.world.broken {
            return Err(broken.clone());
        }
        self.seen.note("room is short", !self.tables.run_has_room());
        let mut found: Vec<(usize, &Execution)> = Vec::with_capacity(self.world.executions.len());
        for execution in self.world.executions.values().filter(|execution| !execution.is_carried()) {
            let place = place_of(execution);
            let instance = self.tables.instance_at(place).ok_or_else(|| format!("there is no {place:?}"))?;
            if self.tables.instances[instance].carried {
                return Err(format!("{} was carried over", self.name(instance)));
            }
            found.push((instance, execution));
        }
        found.sort_by_key(|(instance, execution)| (*instance, execution.attempt));
        let mut found = found.into_iter().peekable();
        self.ids.resize(self.tables.instances.len(), None);
        for index in 0..self.tables.instances.len() {
            for number in 0..self.tables.instances[index].attempts.len() {
                let attempt = u32::try_from(number + 1).expect("small");
                let Some((_, execution)) = found.next_if(|(other, _)| *other == index) else {
                    return Err(format!("{} has no attempt {attempt}", self.name(index)));
                };
                self.ids[index] = Some(execution.id);
                let expected = &self.tables.instances[index].attempts[number];
                let got = (execution.attempt, status_of(&execution.state), why_of(&execution.state));
                if got != (attempt, (expected.status, expected.stop), expected.why) {
                    return Err(format!("{} is {got:?}", self.name(index)));
                }
                if execution.is_cached() != expected.cached {
                    return Err(format!("{} is cached: {}", self.name(index), execution.is_cached()));
                }
                if execution.state.status() != Status::Pending && !expected.cached {
                    continue;
                }
                let given = execution.params.as_deref();
                let comes_out = match self.tables.given(index) {
                    Given::NothingUsed => given.is_none(),
                    Given::Values(values) => given.is_some_and(|given| given.iter().eq(&values)),
                    Given::Missing => false,
                };
                if !comes_out {
                    return Err(format!("{} is given {given:?}", self.name(index)));
                }
                let key = execution.cache_key.as_deref();
                let inputs = self.tables.inputs(index);
                if key.is_some() != inputs.is_some() {
                    return Err(format!("{} is kept under {key:?}", self.name(index)));
                }
                if let (Some(key), Some(inputs)) = (key, inputs) {
                    let other = self.keys.iter().find(|(_, other)| *other == key).map(|(other, _)| other);
                    if other.is_some_and(|other| *other != inputs) {
                        return Err(format!("{} is kept under the key of {other:?}", self.name(index)));
                    }
                    let known = self.keys.entry(inputs).or_insert_with(|| key.to_owned());
                    if known != key {
                        return Err(format!("{} has another key than its like", self.name(index)));
                    }
                }
                let expected = &mut self.tables.instances[index].attempts[number];
                if let State::Pending { not_before } = execution.state {
                    let not_before = not_before.map(|at| at.as_millisecond() - BEGINNING_MS);
                    if not_before.is_some() != expected.held_until.is_some()
                        || not_before > expected.held_until
                    {
                        let name = self.name(index);
                        return Err(format!("{name} is held back until {not_before:?}"));
                    }
                    if let (Some(at), None) = (not_before, expected.not_before) {
                        (expected.not_before, expected.unfit_since) = (Some(at), Some(at));
                    }
                }
            }
        }
        if let Some((index, execution)) = found.next() {
            return Err(format!("{} has an attempt {} too many", self.name(index), execution.attempt));
        }
        let record = &self.world.record;
        let end = record.live.end().map(|end| (record.state(), end.partial));
        let expected = self.tables.run_end().filter(|_| !self.is_retried());
        if (record.state() == RunState::Retrying) != self.is_retried() {
            return Err(format!("the run is {}", record.state()));
        }
        if end != expected || record.state().is_terminal() != end.is_some() {
            return Err(format!("the run is {} ({end:?})", record.state()));
        }
        let tick = self.world.progress.next_deadline().map(|at| at.as_millisecond() - BEGINNING_MS);
        if end.is_none() && !self.is_retried() && tick != self.tables.next_tick() {
            return Err(format!("the next tick is at {tick:?}, not at {:?}", self.tables.next_tick()));
        }
        let look = self.world.progress.next_look().map(|at| at.as_millisecond() - BEGINNING_MS);
        if let Some(latest) = self.tables.latest_look()
            && look.is_none_or(|look| look > latest)
        {
            return Err(format!("nodes are looked for at {look:?}, and must be at {latest}"));
        }
        Ok(())
    }

    pub(super) fn name(&self, instance: usize) -> String {
        let instance = &self.tables.instances[instance];
        match (instance.node, instance.item) {
            (Some(node), _) => format!("{}@n{node}", instance.step),
            (None, Some(item)) => format!("{}@[{item}]", instance.step),
            (None, None) => format!("{}@-", instance.step),
        }
    }

    pub(super) fn describe(&self, line: &Line) -> String {
        match line {
            Line::Begins => "begins".to_owned(),
            Line::OfflineAtFirst(node) => format!("n{node} is offline from the start"),
            Line::Happens(fact) => self.describe_fact(fact),
            Line::LaterMs(ms) => format!("{ms} ms later"),
            Line::Look => "it is looked for nodes".to_owned(),
            Line::Restart => "restart".to_owned(),
            Line::DiesAfter(submissions) => format!("dies {submissions} submissions after this:"),
            Line::Together => "together:".to_owned(),
            Line::RestartUnobserved => "the engine restarts before it observes:".to_owned(),
            Line::Round => "the next round begins".to_owned(),
            Line::Race(instance) => format!("and at that moment {} is leased", self.name(*instance)),
        }
    }

    pub(super) fn describe_fact(&self, fact: &Fact) -> String {
        match fact {
            Fact::Leased(instance) => format!("{} is leased", self.name(*instance)),
            Fact::Started(instance) => format!("{} starts", self.name(*instance)),
            Fact::Succeeded(instance, output) => {
                format!("{} succeeds with output {output}", self.name(*instance))
            }
            Fact::Failed(instance) => format!("{} fails", self.name(*instance)),
            Fact::Cancelled(instance) => format!("{} is cancelled", self.name(*instance)),
            Fact::Lost(instance) => format!("{} is lost", self.name(*instance)),
            Fact::Unfit(step) => format!("no node fits step {step}"),
            Fact::Fits(step) => format!("a node fits step {step}"),
            Fact::Offline(node) => format!("n{node} goes offline"),
            Fact::Deleted(node) => format!("n{node} is deleted"),
            Fact::Online(node) => format!("n{node} comes back"),
            Fact::Stopped(stop) => format!("the run is stopped: {stop:?}"),
            Fact::Paused(paused) => format!("paused: {paused}"),
        }
    }

    pub(super) fn report(&self, error: &str) -> String {
        let mut text = format!(
            "{error}\n\ndefinition, on {} nodes, idempotent {:?}:\n",
            self.case.nodes, self.case.idempotent
        );
        text.push_str(&serde_json::to_string(&self.case.definition).expect("it serialises"));
        let story: Vec<String> = self.lines.iter().map(|line| self.describe(line)).collect();
        let results: Vec<&String> = self.tables.results.keys().collect();
        let _ = write!(text, "\n\nresults in the end: {results:?}");
        let _ = write!(text, "\n\nstory:\n  {}\n\nthe tables say:\n", story.join("\n  "));
        for (index, instance) in self.tables.instances.iter().enumerate() {
            let attempts: Vec<_> = instance.attempts.iter().map(|a| (a.status, a.stop, a.why)).collect();
            let _ = writeln!(text, "  {} {:?} {attempts:?}", self.name(index), instance.fate);
        }
        let _ = writeln!(text, "  run: {:?}\n\nthe engine says:", self.tables.run_end());
        let mut executions: Vec<&Execution> = self.world.executions.values().collect();
        executions.sort_by_key(|e| (e.step(), self.world.place(e), e.attempt));
        for execution in executions {
            let (state, place) = (&execution.state, self.world.place(execution));
            let (status, why) = (status_of(state), reason_of(state).unwrap_or_default());
            let _ = writeln!(
                text,
                "  {}@{place} attempt {} {status:?} {why}",
                execution.step(),
                execution.attempt
            );
        }
        let _ = writeln!(text, "  run: {} {:?}", self.world.record.state(), self.world.record.live.end());
        text
    }
}

/// Returns the status, and whether a stop was requested. For a run, leased and running are the same.
pub(super) fn status_of(state: &State) -> (Status, bool) {
    match state {
        State::Leased { stop, .. } | State::Running { stop, .. } => (Status::Leased, *stop),
        other => (other.status(), false),
    }
}

pub(super) fn reason_of(state: &State) -> Option<&str> {
    match state {
        State::Skipped { reason, .. } => Some(reason),
        _ => None,
    }
}

/// Returns the kind of reason of a recorded skip, found by its text.
pub(super) fn why_of(state: &State) -> Option<Why> {
    let reason = reason_of(state)?;
    Some(match reason {
        "the run was cancelled" => Why::Stopped,
        "nothing failed before" => Why::NothingFailed,
        "no dependency failed" => Why::NoDependencyFailed,
        "the node is offline" | "the node was deleted" => Why::NodeOffline,
        "the roll-out did not reach the node" => Why::NodeUntouched,
        "nothing failed on this node, and max_failures was not exceeded" => Why::NodeNotConcerned,
        "an earlier step failed on this node" => Why::FailedOnThisNode,
        "nothing failed before on this node" => Why::NothingFailedOnThisNode,
        _ if reason.starts_with("the run timed out") => Why::Stopped,
        _ if reason.starts_with("the roll-out stopped in wave") => Why::WaveNeverBegan,
        _ if reason.starts_with("the node failed in step") => Why::NodeLeft,
        _ if reason.starts_with('`') && reason.ends_with("was skipped") => Why::DependencySkipped,
        _ if reason.starts_with('`') && reason.ends_with("failed") => Why::DependencyFailed,
        _ if reason.starts_with("step") && reason.ends_with("failed") => Why::Failure,
        _ => panic!("nobody knows the reason `{reason}`"),
    })
}
