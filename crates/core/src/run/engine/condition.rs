//! Decides whether a step runs: the tables of conditions, and nothing else.

use super::passes::{At, EntryEnd, Walk};
use super::progress::Progress;
use crate::plan::{PassIx, Shape};
use crate::spec::Condition;

impl Progress {
    /// Returns `Ok` if a pass begins, now that everything before it has ended; else the reason why it is skipped.
    pub(super) fn pass_runs(&self, pass: PassIx) -> Result<(), String> {
        let condition = self.condition(pass);
        if self.is_all_stopped() || (self.stopping.is_some() && condition != Some(Condition::OnFailure)) {
            return Err(self.stop_reason());
        }
        if let Some((trigger, step)) = self.failures.fail_fast()
            && condition != Some(Condition::OnFailure)
        {
            return Err(match (self.wave(trigger), self.wave(pass)) {
                (Some(stopped), Some(wave)) if stopped != wave => {
                    format!("the roll-out stopped in wave {}: {} failed", stopped + 1, self.step_text(step))
                }
                _ => format!("{} failed", self.step_text(step)),
            });
        }
        self.condition_holds(pass)
    }

    /// Like `pass_runs`, but ignores that the run is stopping or that fail-fast was triggered.
    pub(super) fn condition_holds(&self, pass: PassIx) -> Result<(), String> {
        let condition = self.condition(pass);
        match self.plan.shape {
            Shape::List => self.list_condition(pass, condition),
            Shape::Graph => self.graph_condition(pass, condition),
        }
    }

    fn list_condition(&self, pass: PassIx, condition: Option<Condition>) -> Result<(), String> {
        match (condition, self.failures.first()) {
            (None | Some(Condition::Always), _) | (Some(Condition::OnSuccess), None) => Ok(()),
            (Some(Condition::OnSuccess), Some(step)) => Err(format!("{} failed", self.step_text(step))),
            (Some(Condition::OnFailure), _) => {
                // In a roll-out a later step of the list may have failed already: only failures of earlier steps count.
                let first = self.plan.entry_of(pass).first;
                match self.failures.lowest() {
                    Some(step) if step < first => Ok(()),
                    _ if self.has_timed_out() => Ok(()),
                    Some(_) | None => Err("nothing failed before".to_owned()),
                }
            }
        }
    }

    fn graph_condition(&self, pass: PassIx, condition: Option<Condition>) -> Result<(), String> {
        let after = &self.plan.passes[pass].after;
        let ends = || after.iter().map(|&before| (before, self.passes.end_of(before)));
        match condition {
            Some(Condition::Always) => Ok(()),
            None | Some(Condition::OnSuccess) => match ends().find(|(_, end)| *end != EntryEnd::Succeeded) {
                None => Ok(()),
                Some((before, EntryEnd::Failed)) => Err(format!("`{}` failed", self.entry_name(before))),
                Some((before, _)) => Err(format!("`{}` was skipped", self.entry_name(before))),
            },
            Some(Condition::OnFailure) => {
                if ends().any(|(_, end)| end.is_failure()) {
                    Ok(())
                } else {
                    Err("no dependency failed".to_owned())
                }
            }
        }
    }

    /// Returns how a pass ended that was skipped. The answer depends only on the ends of the passes before it, so it is
    /// the same after a take-over.
    pub(super) fn skipped_end(&self, pass: PassIx) -> EntryEnd {
        let mut steps = self.plan.entry_of(pass).steps();
        if self.plan.shape == Shape::List || steps.all(|step| self.plan.runs_on_failure(step)) {
            return EntryEnd::Skipped;
        }
        let ends = || self.plan.passes[pass].after.iter().map(|&before| self.passes.end_of(before));
        let is_due = match self.condition(pass) {
            Some(Condition::Always) => true,
            Some(Condition::OnFailure) => false,
            None | Some(Condition::OnSuccess) => ends().all(|end| end == EntryEnd::Succeeded),
        };
        if is_due || ends().any(EntryEnd::is_failure) {
            EntryEnd::SkippedAfterFailure
        } else {
            EntryEnd::Skipped
        }
    }

    /// Returns `Ok` if a leaf runs on a node that has reached it. Inside a branch only that node's own walk counts.
    pub(super) fn leaf_runs(&self, at: At) -> Result<(), String> {
        if self.is_stopped(at.step) {
            return Err(self.stop_reason());
        }
        let Walk { failed: walk_failed, begun, .. } = *self.passes.walk(at.pass, at.walk);
        match self.plan.steps[at.step].condition {
            Some(Condition::OnFailure) if walk_failed => Ok(()),
            Some(Condition::OnFailure) => Err("nothing failed before on this node".to_owned()),
            None | Some(Condition::Always | Condition::OnSuccess) => {
                if walk_failed {
                    return Err("an earlier step failed on this node".to_owned());
                }
                match self.failures.fail_fast() {
                    // An offline node triggered fail-fast while this pass began: the other nodes get their one attempt,
                    // unless `max_parallel` can make them wait for room.
                    Some((pass, _)) if !begun && pass == at.pass && !self.is_bounded(pass) => Ok(()),
                    Some((_, step)) if !self.plan.runs_on_failure(at.step) => {
                        Err(format!("{} failed", self.step_text(step)))
                    }
                    Some(_) | None => Ok(()),
                }
            }
        }
    }

    fn entry_name(&self, pass: PassIx) -> String {
        let entry = self.plan.passes[pass].entry;
        self.plan.definition.tasks[entry].name_or(entry.get())
    }
}
