//! Decides whether a step runs: the tables of conditions, and nothing else.

use super::progress::{EntryEnd, Progress, Stage, Walk};
use crate::plan::Shape;
use crate::spec::Condition;

impl Progress {
    /// Whether a pass begins at all, now that everything before it ended.
    pub(super) fn pass_runs(&self, pass: u32) -> Result<(), String> {
        if self.stopping.is_some() {
            return Err(self.stop_reason());
        }
        let condition = self.condition(pass);
        if let Some((struck, step)) = self.struck
            && condition != Some(Condition::OnFailure)
        {
            return Err(match (self.wave(struck), self.wave(pass)) {
                (Some(struck), Some(wave)) if struck != wave => {
                    format!("the roll-out stopped in wave {}: {} failed", struck + 1, self.step_text(step))
                }
                _ => format!("{} failed", self.step_text(step)),
            });
        }
        self.condition_holds(pass)
    }

    /// Whether what came before a pass lets it begin, whatever has ended the run since.
    pub(super) fn condition_holds(&self, pass: u32) -> Result<(), String> {
        let condition = self.condition(pass);
        match self.plan.shape {
            Shape::List => self.list_condition(pass, condition),
            Shape::Graph => self.graph_condition(pass, condition),
        }
    }

    fn list_condition(&self, pass: u32, condition: Option<Condition>) -> Result<(), String> {
        match (condition, self.first_failure) {
            (None | Some(Condition::Always), _) | (Some(Condition::OnSuccess), None) => Ok(()),
            (Some(Condition::OnSuccess), Some((step, _))) => Err(format!("{} failed", self.step_text(step))),
            (Some(Condition::OnFailure), _) => {
                // In a roll-out what failed may come later in the list: it answers what comes before it.
                let first = self.plan.entries[self.entry(pass) as usize].first;
                match self.lowest_failure {
                    Some(step) if step < first => Ok(()),
                    Some(_) | None => Err("nothing failed before".to_owned()),
                }
            }
        }
    }

    fn graph_condition(&self, pass: u32, condition: Option<Condition>) -> Result<(), String> {
        let after = &self.plan.passes[pass as usize].after;
        let ends = || after.iter().map(|&before| (before, self.pass_end(before)));
        match condition {
            Some(Condition::Always) => Ok(()),
            None | Some(Condition::OnSuccess) => match ends().find(|(_, end)| *end != EntryEnd::Succeeded) {
                None => Ok(()),
                Some((before, EntryEnd::Failed)) => Err(format!("`{}` failed", self.entry_name(before))),
                Some((before, _)) => Err(format!("`{}` was skipped", self.entry_name(before))),
            },
            Some(Condition::OnFailure) => {
                if ends().any(|(_, end)| end == EntryEnd::Failed) {
                    Ok(())
                } else {
                    Err("no dependency failed".to_owned())
                }
            }
        }
    }

    /// Whether a leaf runs on a node that has come to it. Inside a branch it looks at that node's own walk.
    pub(super) fn leaf_runs(&self, pass: u32, step: u32, walk: u32) -> Result<(), String> {
        if self.stopping.is_some() {
            return Err(self.stop_reason());
        }
        let Walk { failed: walk_failed, begun, .. } = *self.walk(pass, walk);
        match self.plan.steps[step as usize].condition {
            Some(Condition::OnFailure) if walk_failed => Ok(()),
            Some(Condition::OnFailure) => Err("nothing failed before on this node".to_owned()),
            None | Some(Condition::Always | Condition::OnSuccess) => {
                if walk_failed {
                    return Err("an earlier step failed on this node".to_owned());
                }
                match self.struck {
                    // It struck while this pass began, on a node that is offline: the others get their one attempt, but
                    // where they begin one after the other.
                    Some((struck, _)) if !begun && struck == pass && !self.is_bounded(pass) => Ok(()),
                    Some((_, struck)) if !self.is_exempt(step) => {
                        Err(format!("{} failed", self.step_text(struck)))
                    }
                    Some(_) | None => Ok(()),
                }
            }
        }
    }

    pub(super) fn entry(&self, pass: u32) -> u32 {
        self.plan.passes[pass as usize].entry
    }

    pub(super) fn wave(&self, pass: u32) -> Option<u32> {
        self.plan.passes[pass as usize].wave
    }

    pub(super) fn condition(&self, pass: u32) -> Option<Condition> {
        self.plan.entries[self.entry(pass) as usize].condition
    }

    /// Steps that answer failures go on after fail-fast struck.
    pub(super) fn is_exempt(&self, step: u32) -> bool {
        let leaf = &self.plan.steps[step as usize];
        let entry = &self.plan.entries[leaf.entry as usize];
        leaf.condition == Some(Condition::OnFailure) || entry.condition == Some(Condition::OnFailure)
    }

    fn pass_end(&self, pass: u32) -> EntryEnd {
        match self.passes[pass as usize] {
            Stage::Ended(end) => end,
            Stage::Waiting { .. } | Stage::Open(_) => {
                unreachable!("a pass is decided when all that it waits for has ended")
            }
        }
    }

    fn entry_name(&self, pass: u32) -> String {
        let entry = self.entry(pass);
        let plan = &self.plan.entries[entry as usize];
        plan.name.clone().unwrap_or_else(|| format!("tasks[{entry}]"))
    }
}
