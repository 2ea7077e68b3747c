//! Holds what the engine recorded against what the tables say, and reports where they differ.

use std::fmt::Write as _;

use downbeat_core::execution::{Execution, State, Status};

use super::case::{MOST_NODES, node_number};
use super::story::{BEGINNING_MS, Fact, Line, Story};
use super::tables::{Given, Why};

impl Story<'_> {
    /// Everything that is recorded, against everything that must be.
    pub(super) fn compare(&mut self) -> Result<(), String> {
        let mut found: Vec<(usize, &Execution)> = Vec::with_capacity(self.world.executions.len());
        for execution in self.world.executions.values() {
            let column = execution.pinned.map_or(0, |node| node_number(node) + 1);
            let instance = self.lookup[execution.step as usize * (MOST_NODES + 1) + column];
            if execution.reused.is_some() != self.tables.instances[instance].taken_over {
                return Err(format!("{} is reused", self.name(instance)));
            }
            if execution.reused.is_none() {
                found.push((instance, execution));
            }
        }
        found.sort_by_key(|(instance, execution)| (*instance, execution.attempt));
        let mut found = found.into_iter().peekable();
        for (index, instance) in self.tables.instances.iter().enumerate() {
            for (attempt, expected) in (1..).zip(&instance.attempts) {
                let Some((_, execution)) = found.next_if(|(other, _)| *other == index) else {
                    return Err(format!("{} has no attempt {attempt}", self.name(index)));
                };
                self.ids[index] = Some(execution.id);
                let got = (execution.attempt, status_of(&execution.state), why_of(&execution.state));
                if got != (attempt, (expected.status, expected.stop), expected.why) {
                    return Err(format!("{} is {got:?}", self.name(index)));
                }
                let given = execution.params.as_ref().map(|params| params["given"].as_u64());
                if let Given::Value(value) = self.tables.given(index)
                    && execution.state.status() == Status::Pending
                    && given != Some(Some(value))
                {
                    return Err(format!("{} is given {given:?}", self.name(index)));
                }
                if let State::Pending { not_before } = execution.state
                    && (not_before.is_some() != expected.held_until.is_some()
                        || not_before.is_some_and(|at| {
                            at.as_millisecond() - BEGINNING_MS > expected.held_until.unwrap()
                        }))
                {
                    return Err(format!("{} is held back until {not_before:?}", self.name(index)));
                }
            }
        }
        if let Some((index, execution)) = found.next() {
            return Err(format!("{} has an attempt {} too many", self.name(index), execution.attempt));
        }
        let record = &self.world.record;
        let end = record.end.as_ref().map(|end| (record.state, end.partial));
        if end != self.tables.run_end() || record.state.is_terminal() != end.is_some() {
            return Err(format!("the run is {} ({end:?})", record.state));
        }
        let tick = self.world.progress.next_deadline().map(|at| at.as_millisecond() - BEGINNING_MS);
        if end.is_none() && tick != self.tables.next_tick() {
            return Err(format!("the next tick is at {tick:?}, not at {:?}", self.tables.next_tick()));
        }
        Ok(())
    }

    pub(super) fn name(&self, instance: usize) -> String {
        let instance = &self.tables.instances[instance];
        let node = instance.node.map_or("-".to_owned(), |node| format!("n{node}"));
        format!("{}@{node}", instance.step)
    }

    pub(super) fn describe(&self, line: Line) -> String {
        match line {
            Line::Begins => "begins".to_owned(),
            Line::OfflineAtFirst(node) => format!("n{node} is offline from the start"),
            Line::Happens(fact) => self.describe_fact(fact),
            Line::LaterMs(ms) => format!("{ms} ms later"),
            Line::Restart => "restart".to_owned(),
            Line::DiesAfter(submissions) => format!("dies {submissions} submissions after this:"),
            Line::NobodyHears => "nobody hears:".to_owned(),
            Line::Race(instance) => format!("and at that moment {} is leased", self.name(instance)),
        }
    }

    pub(super) fn describe_fact(&self, fact: Fact) -> String {
        match fact {
            Fact::Leased(instance) => format!("{} is leased", self.name(instance)),
            Fact::Started(instance) => format!("{} starts", self.name(instance)),
            Fact::Finished(instance, verdict) => format!("{} ends: {verdict:?}", self.name(instance)),
            Fact::Lost(instance) => format!("{} is lost", self.name(instance)),
            Fact::Offline(node) => format!("n{node} goes offline"),
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
        let story: Vec<String> = self.told.iter().map(|line| self.describe(*line)).collect();
        let _ = write!(text, "\n\nstory:\n  {}\n\nthe tables say:\n", story.join("\n  "));
        for (index, instance) in self.tables.instances.iter().enumerate() {
            let attempts: Vec<_> = instance.attempts.iter().map(|a| (a.status, a.stop, a.why)).collect();
            let _ = writeln!(text, "  {} {:?} {attempts:?}", self.name(index), instance.fate);
        }
        let _ = writeln!(text, "  run: {:?}\n\nthe engine says:", self.tables.run_end());
        let mut executions: Vec<&Execution> = self.world.executions.values().collect();
        executions.sort_by_key(|e| (e.step, self.world.place(e), e.attempt));
        for execution in executions {
            let (state, place) = (&execution.state, self.world.place(execution));
            let (status, why) = (status_of(state), reason_of(state).unwrap_or_default());
            let _ =
                writeln!(text, "  {}@{place} attempt {} {status:?} {why}", execution.step, execution.attempt);
        }
        let _ = writeln!(text, "  run: {} {:?}", self.world.record.state, self.world.record.end);
        text
    }
}

/// The status, and whether it was told to stop. Leased and running are the same to a run.
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

/// The kind of reason that a skip is recorded with, read off its words.
pub(super) fn why_of(state: &State) -> Option<Why> {
    let reason = reason_of(state)?;
    Some(match reason {
        "the run was cancelled" => Why::Stopped,
        "nothing failed before" => Why::NothingFailed,
        "no dependency failed" => Why::NoDependencyFailed,
        "the node is offline" => Why::NodeOffline,
        "the node was never touched" => Why::NodeUntouched,
        "nothing failed on this node, and the budget of failures is not spent" => Why::NodeNotConcerned,
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
