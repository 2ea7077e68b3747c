//! Decides what comes between a run's admission and its plan: its constraints, and the actions on a violation.

use jiff::{SignedDuration, Timestamp};

use super::effect::{Effect, EffectResult, Notify, Occasion};
use super::{Before, Course};
use crate::change::Change;
use crate::limits;
use crate::run::constraints::{Facts, Look, Subject, check_facts, check_hook, look};
use crate::run::engine::{Stop, Turn};
use crate::run::life::{Checked, ConstraintKind, Ending, Phase, Queued, Violation, critical, shortened};
use crate::run::words::RunState;
use crate::spec::{Action, ActionKind, Definition, Notification, What};

impl Course {
    pub(super) fn definition(&self) -> &Definition {
        &self.progress.plan().definition
    }

    pub(super) fn subject(&self) -> Subject<'_> {
        Subject { id: self.progress.run(), created_at: self.created_at, is_retry: self.is_retry }
    }

    /// Begins the plan of an admitted run, or the check of its constraints.
    pub(super) fn plan_or_checks(&mut self, started_at: Timestamp, turn: &mut Turn<'_>) {
        if self.progress.state() == RunState::Pending && self.definition().checks_before() {
            self.progress.move_to(&[RunState::ConditionPending, RunState::ConditionRunning]);
            (self.before, self.results) = (Some(Before::Constraint), None);
        } else {
            self.go_on(started_at, turn);
        }
    }

    /// Continues a run that was taken over before its plan.
    pub(super) fn resume_before(&mut self, turn: &mut Turn<'_>) {
        if self.ends_by_action(turn) {
            return;
        }
        match self.before {
            Some(Before::Constraint) if self.progress.state() == RunState::ConditionPending => {
                self.progress.move_to(&[RunState::ConditionRunning]);
            }
            Some(Before::Action) => {
                if self.progress.state() == RunState::ActionPending {
                    self.progress.move_to(&[RunState::ActionRunning]);
                }
                self.act_on_violation(turn);
            }
            // Another run may have ended while no server looked.
            Some(Before::Queue) => self.looks = true,
            Some(Before::Schedule | Before::Admission | Before::Constraint | Before::Retry) | None => {}
        }
    }

    /// Returns what is needed from outside before the plan can start.
    pub(super) fn effect_before(&self, before: Before) -> Option<Effect> {
        let facts = || Effect::ReadFacts { previous: self.definition().requires_previous_success() };
        match before {
            Before::Queue => (self.looks && self.queued_until().is_none()).then(facts),
            Before::Constraint if self.results.is_none() => Some(facts()),
            Before::Constraint => {
                let hook = self.definition().pre_run_hook()?.clone();
                Some(Effect::CallHook { constraint: ConstraintKind::PreRunHook, hook, outcome: None })
            }
            Before::Action => self.effect_of(&self.next_on_violation()?, Occasion::Violation),
            Before::Schedule | Before::Admission | Before::Retry => None,
        }
    }

    /// Takes in the result of an effect before the plan.
    pub(super) fn effect_done_before(&mut self, before: Before, result: EffectResult, turn: &mut Turn<'_>) {
        match (before, result) {
            (Before::Queue, EffectResult::Facts(facts)) => self.look_again(&facts, turn),
            (Before::Constraint, EffectResult::Facts(facts)) => {
                let results = check_facts(self.definition(), self.subject(), &facts);
                let is_clear = {
                    let mut life = self.life.clone();
                    life.check(&results, Phase::Before);
                    life.violation.is_none()
                };
                if is_clear && self.definition().pre_run_hook().is_some() {
                    self.results = Some(results);
                } else {
                    self.conclude(results, turn);
                }
            }
            (Before::Constraint, EffectResult::Hook(answer)) => {
                let mut results = self.results.take().unwrap_or_default();
                if let Some(hook) = self.definition().pre_run_hook() {
                    let constraint = ConstraintKind::PreRunHook;
                    results.push(check_hook(self.definition(), constraint, hook, &answer));
                }
                self.conclude(results, turn);
            }
            (Before::Action, EffectResult::Done(outcome)) => {
                let Some(action) = self.next_on_violation() else { return };
                let kind = action.what.kind();
                let queued = (kind == ActionKind::KillOld).then_some(Queued { until: None });
                self.acted(&action, outcome.err(), queued, turn);
                self.act_on_violation(turn);
            }
            // The result belongs to a stage that is over.
            _ => {}
        }
    }

    /// Decides what follows when all constraints are checked.
    fn conclude(&mut self, results: Vec<Checked>, turn: &mut Turn<'_>) {
        self.results = None;
        self.life.check(&results, Phase::Before);
        self.emit_checked(results, turn.now);
        if self.life.violation.is_some() {
            self.progress.move_to(&[RunState::ActionPending, RunState::ActionRunning]);
            self.before = Some(Before::Action);
            self.act_on_violation(turn);
        } else {
            self.pass_gate(self.definition().max_concurrent_runs());
        }
    }

    /// Moves the run to `starting`, with the guard that there is room. Its plan follows when that is committed.
    fn pass_gate(&mut self, room: Option<u32>) {
        self.progress.move_to(&[RunState::Starting]);
        self.life.start_plan();
        (self.before, self.gate) = (None, Some(room));
    }

    /// Returns the actions on the violation: the calls first, the one that decides last.
    fn actions_on_violation(&self) -> Vec<Action> {
        let skips = |violation: &Violation| violation.skips;
        if self.life.violation.as_ref().is_some_and(skips) {
            return vec![What::Skip.into()];
        }
        let definition = self.definition();
        definition.calls_on_violation().cloned().chain(definition.decision_on_violation()).collect()
    }

    fn next_on_violation(&self) -> Option<Action> {
        self.actions_on_violation().into_iter().nth(self.life.done as usize)
    }

    /// Carries out the actions that need nothing from outside.
    fn act_on_violation(&mut self, turn: &mut Turn<'_>) {
        if self.before != Some(Before::Action) || self.ends_by_action(turn) {
            return;
        }
        if self.life.rounds >= limits::CHECKS_PER_RUN {
            let why = format!("its constraints were violated {} times", limits::CHECKS_PER_RUN);
            return self.give_up(&why, turn);
        }
        if self.life.queued.is_some() {
            return self.queue();
        }
        let message = self.life.violation.as_ref().map(|violation| violation.message.clone());
        let message = message.unwrap_or_default();
        let Some(action) = self.next_on_violation() else {
            // No action decides about the run: it starts anyway.
            return self.pass_gate(None);
        };
        match &action.what {
            What::Notify(_) | What::TriggerJob { .. } | What::KillOld => {}
            What::Skip => {
                let end = Ending { skipped: true, reason: format!("skipped: {message}") };
                self.emit_acted(&action, None, None, Some(end), turn.now);
                self.ends_by_action(turn);
            }
            What::RetryLater { delay } => {
                let until = later(turn.now, delay.0.as_secs());
                self.acted(&action, None, Some(Queued { until: Some(until) }), turn);
                self.queue();
            }
            What::Wait => {
                // No end of a run changes the answer of a hook.
                let is_hook = self
                    .life
                    .violation
                    .as_ref()
                    .is_some_and(|violation| violation.of.contains(&ConstraintKind::PreRunHook));
                let until = is_hook.then(|| later(turn.now, limits::LOOK_AGAIN_S));
                self.acted(&action, None, Some(Queued { until }), turn);
                self.queue();
            }
        }
    }

    /// Records an action. A critical one that failed decides the end of the run.
    pub(super) fn acted(
        &mut self,
        action: &Action,
        error: Option<String>,
        queued: Option<Queued>,
        turn: &Turn<'_>,
    ) {
        let end = error.as_ref().filter(|_| action.critical).map(|error| critical(action.what.kind(), error));
        let queued = queued.filter(|_| end.is_none());
        self.emit_acted(action, error, queued, end, turn.now);
    }

    /// Ends the run if an action decided that.
    fn ends_by_action(&mut self, turn: &mut Turn<'_>) -> bool {
        let Some(Ending { skipped, reason }) = self.life.end.clone() else { return false };
        self.end_before(if skipped { Stop::Skipped } else { Stop::GivenUp }, &reason, turn);
        true
    }

    /// Fails the run before its plan.
    pub(super) fn give_up(&mut self, why: &str, turn: &mut Turn<'_>) {
        self.end_before(Stop::GivenUp, why, turn);
    }

    fn end_before(&mut self, stop: Stop, why: &str, turn: &mut Turn<'_>) {
        (self.before, self.give_up_at) = (None, None);
        self.progress.give_up_run(stop, why, turn);
    }

    /// Returns a run that violates a constraint to `pending`.
    fn queue(&mut self) {
        self.progress.move_to(&[RunState::Pending]);
        // What has changed since the facts were read has to be looked at.
        (self.before, self.looks) = (Some(Before::Queue), self.has_news);
        self.look_at = None;
    }

    pub(super) fn queued_until(&self) -> Option<Timestamp> {
        self.life.queued.and_then(|queued| queued.until)
    }

    /// Another run of the job has ended, or has started.
    pub fn others_moved(&mut self) {
        match self.before {
            Some(Before::Queue) => (self.looks, self.has_news) = (true, true),
            Some(Before::Constraint | Before::Action) => self.has_news = true,
            Some(Before::Schedule | Before::Admission | Before::Retry) | None => {}
        }
    }

    /// The facts are read from now on: earlier news are part of them.
    pub fn reads_facts(&mut self) {
        self.has_news = false;
    }

    fn look_again(&mut self, facts: &Facts, turn: &mut Turn<'_>) {
        self.looks = self.has_news;
        self.look_at = Some(later(turn.now, limits::LOOK_AGAIN_S));
        match look(self.definition(), self.subject(), facts) {
            Look::Wait => {}
            Look::Wake => self.wake(turn.now),
            Look::Replaced(newer) => {
                let end = Ending {
                    skipped: true,
                    reason: format!("skipped: run {newer} replaced it while it waited"),
                };
                self.emit_acted(&What::Skip.into(), None, None, Some(end), turn.now);
                self.ends_by_action(turn);
            }
        }
    }

    /// Ends the wait: the run needs admission again.
    fn wake(&mut self, now: Timestamp) {
        self.life.queued = None;
        self.before = Some(Before::Admission);
        let (run, epoch) = (self.progress.run().clone(), self.progress.epoch());
        self.changes.push(Change::RunWoken { run, epoch, at: now });
    }

    /// Makes the decisions before the plan that depend only on the time.
    pub(super) fn time_passed_before(&mut self, before: Before, turn: &mut Turn<'_>) {
        if self.give_up_at.is_some_and(|at| at <= turn.now) {
            let deadline = self.definition().deadline.unwrap_or_default();
            let why = match &self.life.violation {
                Some(violation) => format!("not started within {deadline}: {}", violation.message),
                None => format!("not started within {deadline}"),
            };
            return self.give_up(&why, turn);
        }
        if before != Before::Queue {
            return;
        }
        match self.queued_until() {
            Some(until) if until <= turn.now => self.wake(turn.now),
            Some(_) => {}
            None => {
                if self.look_at.is_some_and(|at| at <= turn.now) {
                    (self.looks, self.look_at) = (true, None);
                }
            }
        }
    }

    /// Returns when [`time_passed_before`](Self::time_passed_before) has something to decide.
    pub(super) fn next_tick_before(&self, before: Before) -> Option<Timestamp> {
        let queued = self.queued_until().or(self.look_at).filter(|_| before == Before::Queue);
        self.give_up_at.into_iter().chain(queued).chain(self.retry_at).min()
    }

    pub(super) fn emit_checked(&mut self, results: Vec<Checked>, at: Timestamp) {
        let (run, epoch) = (self.progress.run().clone(), self.progress.epoch());
        self.changes.push(Change::RunChecked { run, epoch, results, at });
    }

    fn emit_acted(
        &mut self,
        action: &Action,
        error: Option<String>,
        queued: Option<Queued>,
        end: Option<Ending>,
        at: Timestamp,
    ) {
        self.life.act(error.is_some(), queued, end.as_ref());
        let (run, epoch) = (self.progress.run().clone(), self.progress.epoch());
        let target = match &action.what {
            What::TriggerJob { job, .. } => Some(job.clone()),
            // The rest of the URL may be a secret.
            What::Notify(Notification::Webhook { url, .. } | Notification::Slack { url, .. }) => {
                Some(host(url).to_owned())
            }
            What::Notify(Notification::Email { to, .. }) => Some(shortened(&to.join(", "))),
            What::Skip | What::RetryLater { .. } | What::KillOld | What::Wait => None,
        };
        let action = action.what.kind();
        self.changes.push(Change::RunActed { run, epoch, action, target, error, queued, end, at });
    }

    /// Returns what an action needs from outside. The key follows from the run and the place of the action.
    pub(super) fn effect_of(&self, action: &Action, occasion: Occasion) -> Option<Effect> {
        let (run, rounds, done) = (self.progress.run(), self.life.rounds, self.life.done);
        let place = if self.before.is_some() { "before" } else { "after" };
        let key = format!("action\n{run}\n{place}\n{rounds}\n{done}");
        match &action.what {
            What::Notify(notification) => {
                let violation = self.life.violation.as_ref().map(|violation| violation.message.clone());
                let (state, error) = self.outcome().unwrap_or((self.progress.state(), None));
                let error = if occasion == Occasion::Violation { violation.or(error) } else { error };
                Some(Effect::Notify(Box::new(Notify {
                    notification: notification.clone(),
                    occasion,
                    state,
                    error,
                    started_at: self.started_at,
                    finished_at: self.plan_ended_at,
                    is_critical: action.critical,
                    epoch: self.progress.epoch(),
                    place: key,
                })))
            }
            What::TriggerJob { job, params } => {
                Some(Effect::StartJob { job: job.clone(), params: params.clone(), key })
            }
            What::KillOld => Some(Effect::CancelOld),
            What::Skip | What::RetryLater { .. } | What::Wait => None,
        }
    }
}

/// Returns host and port of a URL.
fn host(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    authority.rsplit('@').next().unwrap_or_default()
}

fn later(now: Timestamp, seconds: u64) -> Timestamp {
    let span = SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
    now.saturating_add(span).unwrap_or(Timestamp::MAX)
}
