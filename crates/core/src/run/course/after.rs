//! Decides what comes between the end of a run's plan and the end of the run: constraints about its time, the hook after
//! it, and actions.

use std::time::Duration;

use super::Course;
use super::effect::{Effect, EffectResult, Occasion};
use crate::run::constraints::{check_hook, check_times};
use crate::run::engine::Turn;
use crate::run::life::{ConstraintKind, Phase};
use crate::run::live::RunEnd;
use crate::run::words::RunState;
use crate::spec::Action;

/// One step after the plan. Each is recorded with one change.
enum Next {
    Times,
    Hook,
    Act(Action, Occasion),
}

impl Course {
    /// Returns the next step after the plan, by what is recorded.
    fn next_after(&self) -> Option<Next> {
        let (last, _) = self.progress.closing()?;
        if self.life.end.is_some() {
            return None;
        }
        let definition = self.definition();
        let times = definition.max_expected().is_some() || definition.max_allowed().is_some();
        let mut steps = times.then_some(Next::Times).into_iter().collect::<Vec<_>>();
        steps.extend(definition.post_run_hook().map(|_| Next::Hook));
        // The actions follow from what was found, which is recorded first.
        if (self.life.done as usize) >= steps.len() {
            if self.life.violation.is_some() {
                let calls = definition.calls_on_violation().cloned();
                steps.extend(calls.map(|action| Next::Act(action, Occasion::Violation)));
            }
            let (actions, occasion) = match last {
                RunState::Completed => (&definition.on_success, Occasion::Success),
                _ => (&definition.on_failure, Occasion::Failure),
            };
            steps.extend(actions.iter().cloned().map(|action| Next::Act(action, occasion)));
        }
        steps.into_iter().nth(self.life.done as usize)
    }

    /// Takes the steps after the plan that need nothing from outside, and ends the run after the last one.
    pub(super) fn follow_plan(&mut self, turn: &Turn<'_>) {
        while self.progress.closing().is_some() && !self.progress.is_unfinished() {
            match self.next_after() {
                Some(Next::Times) => self.check_time(turn),
                Some(Next::Hook | Next::Act(..)) => return,
                None => return self.close(),
            }
        }
    }

    fn check_time(&mut self, turn: &Turn<'_>) {
        let ended_at = *self.plan_ended_at.get_or_insert(turn.now);
        let took = self.started_at.map(|started_at| ended_at.duration_since(started_at));
        let took = took.and_then(|took| Duration::try_from(took).ok()).unwrap_or_default();
        let definition = self.definition();
        let is_allowed_limit = definition.max_allowed().is_some()
            && definition.max_allowed() == definition.time_limit()
            && definition.timeout != definition.max_allowed();
        let is_stopped = is_allowed_limit && self.progress.has_timed_out();
        let results = check_times(definition, took, is_stopped);
        self.life.check(&results, Phase::After);
        self.emit_checked(results, turn.now);
    }

    fn close(&mut self) {
        let Some((last, end)) = self.progress.closing().cloned() else { return };
        match self.life.end.take() {
            Some(ending) => {
                let error = match end.error {
                    Some(error) => format!("{error}; {}", ending.reason),
                    None => ending.reason,
                };
                self.progress.close(RunState::Failed, RunEnd { partial: end.partial, error: Some(error) });
            }
            None => self.progress.close(last, end),
        }
    }

    /// Returns how the plan ended, if it has ended.
    pub(super) fn outcome(&self) -> Option<(RunState, Option<String>)> {
        self.progress.closing().map(|(last, end)| (*last, end.error.clone()))
    }

    /// Returns what is needed from outside before the run can end.
    pub(super) fn effect_after(&self) -> Option<Effect> {
        match self.next_after()? {
            Next::Times => None,
            Next::Hook => {
                let hook = self.definition().post_run_hook()?.clone();
                let (constraint, outcome) = (ConstraintKind::PostRunHook, self.outcome());
                Some(Effect::CallHook { constraint, hook, outcome })
            }
            Next::Act(action, occasion) => self.effect_of(&action, occasion),
        }
    }

    /// Takes in the result of an effect after the plan.
    pub(super) fn effect_done_after(&mut self, result: EffectResult, turn: &Turn<'_>) {
        match (self.next_after(), result) {
            (Some(Next::Hook), EffectResult::Hook(answer)) => {
                let Some(hook) = self.definition().post_run_hook() else { return };
                let checked = check_hook(self.definition(), ConstraintKind::PostRunHook, hook, &answer);
                let results = vec![checked];
                self.life.check(&results, Phase::After);
                self.emit_checked(results, turn.now);
            }
            (Some(Next::Act(action, _)), EffectResult::Done(outcome)) => {
                self.acted(&action, outcome.err(), None, turn);
            }
            // The result belongs to a step that is over.
            _ => {}
        }
        self.follow_plan(turn);
    }
}
