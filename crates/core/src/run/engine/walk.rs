//! Decides what follows when a pass's turn comes and when an attempt ends.

use jiff::{SignedDuration, Timestamp};

use super::prepare::Attempt;
use super::progress::{Active, End, Ended, EntryEnd, Open, Progress, Stage, Turn, Walk};
use crate::backend::Params;
use crate::change::Change;
use crate::execution::{Execution, State};
use crate::ids::{ExecutionId, NodeId};
use crate::limits;
use crate::plan::{PlanEntry, Shape};
use crate::run::retry;
use crate::spec::{Condition, Delivery, Strategy};
use crate::work::Origin;

impl Progress {
    /// Decides every pass whose turn has come, until nothing more follows.
    pub(super) fn settle(&mut self, turn: &mut Turn<'_>) {
        if let Some((_, pass)) = self.pausing.take() {
            self.due.insert(pass);
        }
        loop {
            if let Some(pass) = self.next_due(turn) {
                self.decide(pass, turn);
            } else if !self.sweep_line(turn) && !self.use_room(turn) {
                break;
            }
        }
        self.finish();
    }

    fn decide(&mut self, pass: u32, turn: &mut Turn<'_>) {
        if self.has_nothing_to_do(pass) {
            return self.pass_ended(pass, EntryEnd::Succeeded);
        }
        match self.pass_runs(pass) {
            // What was taken over whole needs no room.
            Ok(()) if self.plan.definition.max_parallel.is_some() && !self.is_whole(pass) => {
                self.held.insert(pass);
            }
            Ok(()) => self.open(pass, turn),
            Err(reason) => self.skip_pass(pass, &reason, turn),
        }
    }

    /// The next pass whose turn it is; nothing while a person or the pause between two waves holds it up.
    fn next_due(&mut self, turn: &Turn<'_>) -> Option<u32> {
        if self.paused && self.stopping.is_none() {
            // What was taken over from another run whole begins nothing, and does not hold up the run's end.
            let due: Vec<u32> = self.due.iter().copied().collect();
            let idle = due.into_iter().find(|&pass| self.wave(pass).is_none() && self.is_whole(pass))?;
            return self.due.take(&idle);
        }
        let pass = self.due.pop_first()?;
        if let Some(until) = self.wave_begins(pass)
            && turn.now < until
        {
            self.pausing = Some((until, pass));
            return None;
        }
        Some(pass)
    }

    /// When the pass opens a wave that is to wait for it.
    fn wave_begins(&self, pass: u32) -> Option<Timestamp> {
        self.wave(pass).filter(|wave| *wave > 0 && *wave >= self.waves_begun)?;
        let rollout = self.plan.definition.rollout.as_ref()?;
        if self.stopping.is_some() || self.struck.is_some() {
            return None;
        }
        let pause = SignedDuration::try_from(rollout.pause.0).unwrap_or(SignedDuration::MAX);
        Some(self.last_end? + pause)
    }

    pub(super) fn open(&mut self, pass: u32, turn: &mut Turn<'_>) {
        let open = match self.walks_of(pass) {
            Ok(open) => open,
            Err(error) => return self.fail_pass(pass, error, turn),
        };
        let count = open.open;
        self.passes[pass as usize] = Stage::Open(open);
        if let Some(wave) = self.wave(pass) {
            self.waves_begun = self.waves_begun.max(wave + 1);
        }
        for walk in 0..count {
            match self.joins(pass, walk, turn) {
                Ok(()) => self.advance(pass, walk, turn),
                Err(reason) => {
                    self.skip_leaves(pass, walk, &reason, turn);
                    self.walk_ended(pass, walk);
                }
            }
        }
    }

    /// The walks of a pass that begins: of each node, for each item, or the only one.
    pub(super) fn walks_of(&mut self, pass: u32) -> Result<Open, String> {
        if let Some(items) = self.items_of(pass)? {
            let count = u32::try_from(items.len()).expect("items are bounded");
            self.note_items(pass, &items);
            self.instances += items.len() * self.plan.entries[self.entry(pass) as usize].length as usize;
            let walks = (0..count).map(|item| Walk::new(None, Some(item))).collect();
            return Ok(Open::new(walks, Some(items)));
        }
        Ok(self.plain_walks_of(pass))
    }

    /// The same without items: an entry that is not begun has the only one.
    pub(super) fn plain_walks_of(&self, pass: u32) -> Open {
        let walks = match self.plan.nodes_of_pass(pass) {
            Some(nodes) => nodes.iter().map(|&node| Walk::new(Some(node), None)).collect(),
            None => vec![Walk::new(None, None)],
        };
        Open::new(walks, None)
    }

    /// What a pass goes over is no list: its first leaf fails, and what follows it is decided as for any failure.
    fn fail_pass(&mut self, pass: u32, error: String, turn: &mut Turn<'_>) {
        self.passes[pass as usize] = Stage::Open(self.plain_walks_of(pass));
        let step = self.plan.entries[self.entry(pass) as usize].first;
        let state = State::Failed { lease: None, outcome: None, error: Some(error), at: turn.now };
        self.record(pass, step, 0, Attempt::first(), state, turn);
        self.instance_failed(pass, step, 0, turn);
        self.next_leaf(pass, 0);
        self.advance(pass, 0, turn);
    }

    /// Whether a node takes part in a pass that begins.
    fn joins(&self, pass: u32, walk: u32, turn: &Turn<'_>) -> Result<(), String> {
        let Some(node) = self.walk(pass, walk).node else { return Ok(()) };
        if self.condition(pass) == Some(Condition::OnFailure) {
            if self.plan.definition.rollout.is_some() {
                self.answers(pass, walk, node)?;
            }
            // Also on nodes that failed, as long as they can be reached.
            return match (turn.reach)(self.plan.node(node).id).fails(false) {
                Some(why) => Err(format!("the node {why}")),
                None => Ok(()),
            };
        }
        match self.left.get(&node) {
            Some(step) => Err(format!("the node failed in {}", self.step_text(*step))),
            None => Ok(()),
        }
    }

    /// Whether a node of a roll-out has failures to answer: its own, or, once the budget is spent, anybody's.
    fn answers(&self, pass: u32, walk: u32, node: u32) -> Result<(), String> {
        let touched = match self.waves_begun {
            0 => 0,
            begun => self.plan.resolved.waves[begun as usize - 1],
        };
        if walk >= touched {
            return Err("the node was never touched".to_owned());
        }
        let first = self.plan.entries[self.entry(pass) as usize].first;
        let failed = self.left.get(&node).is_some_and(|step| *step < first);
        if failed || self.struck.is_some() {
            Ok(())
        } else {
            Err("nothing failed on this node, and the budget of failures is not spent".to_owned())
        }
    }

    /// Takes a walk to its next attempt, or to its end.
    pub(super) fn advance(&mut self, pass: u32, walk: u32, turn: &mut Turn<'_>) {
        loop {
            let position = self.walk(pass, walk).position;
            let plan = &self.plan.entries[self.entry(pass) as usize];
            if position == plan.length {
                self.walk_ended(pass, walk);
                return;
            }
            let step = plan.first + position;
            if self.is_carried(pass, step, walk) {
                self.mark_ran(pass);
                self.next_leaf(pass, walk);
                continue;
            }
            match self.leaf_runs(pass, step, walk) {
                Err(reason) => {
                    let state = State::Skipped { reason, at: turn.now };
                    self.record(pass, step, walk, Attempt::first(), state, turn);
                    self.next_leaf(pass, walk);
                }
                Ok(()) => {
                    if self.is_bounded(pass) && !self.walk(pass, walk).begun {
                        self.line_up(pass, walk);
                        return;
                    }
                    if self.attempt(pass, step, walk, None, None, turn) {
                        return;
                    }
                    self.instance_failed(pass, step, walk, turn);
                    self.next_leaf(pass, walk);
                }
            }
        }
    }

    /// Whether it succeeded in the run that this one tries again; the record of that is this run's own.
    pub(super) fn is_carried(&self, pass: u32, step: u32, walk: u32) -> bool {
        !self.carried.is_empty()
            && self.carried.contains(&(step, self.pinned(pass, walk), self.walk(pass, walk).item))
    }

    /// Whether all of a pass succeeded in the run that this one tries again, or there is nothing that could.
    fn is_whole(&mut self, pass: u32) -> bool {
        let PlanEntry { first, length, .. } = self.plan.entries[self.entry(pass) as usize];
        if self.plan.entries[self.entry(pass) as usize].each.is_some() {
            return self.has_nothing_to_do(pass);
        }
        let has = |node| (first..first + length).all(|step| self.carried.contains(&(step, node, None)));
        match self.plan.nodes_of_pass(pass) {
            _ if self.carried.is_empty() => false,
            Some(nodes) => nodes.iter().all(|node| has(Some(self.plan.node(*node).id))),
            None => has(None),
        }
    }

    /// Creates the next attempt of an instance. False: it cannot be sent, and a failed attempt was recorded.
    fn attempt(
        &mut self,
        pass: u32,
        step: u32,
        walk: u32,
        not_before: Option<Timestamp>,
        patience: Option<Timestamp>,
        turn: &mut Turn<'_>,
    ) -> bool {
        self.mark_begun(pass, walk);
        let place = self.walk_mut(pass, walk);
        place.attempt += 1;
        let number = place.attempt;
        let node = self.pinned(pass, walk);
        let gone = node.and_then(|id| (turn.reach)(id).fails(patience.is_some()));
        let attempt = match gone {
            Some(why) => Err(format!("node {} {why}", self.hostname(pass, walk).unwrap_or_default())),
            None => self.prepare(pass, step, walk, number, turn),
        };
        let attempt = match attempt {
            Ok(attempt) => attempt,
            Err(error) => {
                let state = State::Failed { lease: None, outcome: None, error: Some(error), at: turn.now };
                self.record(pass, step, walk, Attempt { number, ..Attempt::first() }, state, turn);
                self.last_end = self.last_end.max(Some(turn.now));
                return false;
            }
        };
        let id = self.record(pass, step, walk, attempt, State::Pending { not_before }, turn);
        self.is_patient |= patience.is_some();
        let mut active =
            Active { pass, step, walk, node, leased: false, patience, not_before, unfit_since: None };
        if node.is_none() {
            active.unfit_since = Some(not_before.unwrap_or(turn.now));
            self.look_soon(turn.now);
        }
        self.active.insert(id, active);
        true
    }

    fn record(
        &mut self,
        pass: u32,
        step: u32,
        walk: u32,
        attempt: Attempt,
        state: State,
        turn: &mut Turn<'_>,
    ) -> ExecutionId {
        let id = ExecutionId(turn.dice.uuid_at(turn.now));
        let Attempt { number, params, limits, cache_key } = attempt;
        self.add(Execution {
            id,
            of: Origin::Step { run: self.run.clone(), step, item: self.walk(pass, walk).item },
            pinned: self.pinned(pass, walk),
            attempt: number,
            params,
            reused: None,
            limits,
            cache_key,
            created_at: turn.now,
            state,
        });
        id
    }

    /// An attempt ended.
    pub(super) fn ended(&mut self, execution: ExecutionId, end: End, turn: &Turn<'_>) {
        if let Some(Active { pass, step, walk, .. }) = self.active.remove(&execution) {
            self.last_end = self.last_end.max(Some(turn.now));
            self.ended.push(Ended { pass, walk, step, end });
        }
    }

    /// An earlier result was used: it succeeded, and nothing was tried.
    pub(super) fn cached(&mut self, execution: ExecutionId, outputs: &Params) {
        self.note_outputs(execution, outputs);
        if let Some(Active { pass, step, walk, .. }) = self.active.remove(&execution) {
            self.ended.push(Ended { pass, walk, step, end: End::Succeeded });
        }
    }

    /// What follows the attempts that ended: they are made again, or their walks go on. `walks` go on as well.
    pub(super) fn follow_ends(&mut self, mut walks: Vec<(u32, u32)>, turn: &mut Turn<'_>) {
        let ended = std::mem::take(&mut self.ended);
        let (mut again, last): (Vec<Ended>, Vec<Ended>) =
            ended.into_iter().partition(|ended| self.may_come_again(ended));
        // What is final comes first: it may strike, and then nothing is tried again.
        for ended in last {
            self.came_to(ended, turn);
            walks.push((ended.pass, ended.walk));
        }
        again.sort_unstable_by_key(|ended| (ended.pass, ended.walk));
        for ended in again {
            let Ended { pass, walk, step, end } = ended;
            let sent = match end {
                End::Failed => self.try_again(pass, step, walk, turn),
                _ => self.send_again(pass, step, walk, turn),
            };
            if !sent {
                self.came_to(ended, turn);
                walks.push((pass, walk));
            }
        }
        walks.sort_unstable();
        for (pass, walk) in walks {
            self.advance(pass, walk, turn);
        }
    }

    /// Whether retries or the delivery rule leave an attempt.
    fn may_come_again(&self, &Ended { pass, walk, step, end }: &Ended) -> bool {
        match end {
            End::Failed => self.has_retries(pass, step, walk),
            End::Lost | End::Cancelled => self.stopping.is_none() && self.has_resends(pass, step, walk),
            End::Succeeded | End::GivenUp | End::Skipped => false,
        }
    }

    /// The last attempt of an instance ended.
    fn came_to(&mut self, Ended { pass, walk, step, end }: Ended, turn: &Turn<'_>) {
        let failed = match end {
            End::Succeeded => false,
            End::Failed | End::GivenUp => true,
            // Cancelled without being asked to (its agent was drained) is as good as lost.
            End::Lost | End::Cancelled => self.stopping.is_none(),
            // Withdrawn before it was sent. If an attempt before it failed, the instance did.
            End::Skipped => self.walk(pass, walk).attempt > 1,
        };
        if failed {
            self.instance_failed(pass, step, walk, turn);
        } else if end != End::Skipped {
            self.mark_ran(pass);
        }
        self.next_leaf(pass, walk);
    }

    /// Whether the retry rule leaves an attempt after a failure.
    pub(super) fn has_retries(&self, pass: u32, step: u32, walk: u32) -> bool {
        self.plan.task(step).retry.is_some_and(|rule| self.walk(pass, walk).retries < rule.max)
    }

    fn try_again(&mut self, pass: u32, step: u32, walk: u32, turn: &mut Turn<'_>) -> bool {
        let Some(rule) = self.plan.task(step).retry else { return false };
        let used = self.walk(pass, walk).retries;
        if !self.has_retries(pass, step, walk) || !self.goes_on(step) {
            return false;
        }
        self.walk_mut(pass, walk).retries += 1;
        let pause = SignedDuration::try_from(retry::pause(&rule, used + 1, turn.dice))
            .unwrap_or(SignedDuration::ZERO);
        self.attempt(pass, step, walk, Some(turn.now + pause), None, turn)
    }

    fn send_again(&mut self, pass: u32, step: u32, walk: u32, turn: &mut Turn<'_>) -> bool {
        if !self.has_resends(pass, step, walk) || !self.goes_on(step) {
            return false;
        }
        self.walk_mut(pass, walk).losses += 1;
        // A pinned one waits for its node as long as it would have been allowed to run.
        let wait = SignedDuration::try_from(self.plan.task(step).timeout_or_default().0)
            .unwrap_or(SignedDuration::MAX);
        let patience = self.pinned(pass, walk).map(|_| turn.now + wait);
        self.attempt(pass, step, walk, None, patience, turn)
    }

    /// Whether the delivery rule leaves an attempt after a loss.
    pub(super) fn has_resends(&self, pass: u32, step: u32, walk: u32) -> bool {
        self.plan.steps[step as usize].delivery == Delivery::AtLeastOnce
            && self.walk(pass, walk).losses < limits::RESENDS_AFTER_LOSS
    }

    /// Whether new attempts of a step may still be made.
    fn goes_on(&self, step: u32) -> bool {
        self.stopping.is_none() && (self.struck.is_none() || self.is_exempt(step))
    }

    /// The last attempt of an instance failed: what the strategy makes of it.
    pub(super) fn instance_failed(&mut self, pass: u32, step: u32, walk: u32, turn: &Turn<'_>) {
        let node = self.note_failure(pass, step, walk);
        if self.count_failure(pass, step, node) {
            self.withdraw(turn);
        }
    }

    /// Counts a failure, in the order in which they happen; answers whether fail-fast strikes with this one.
    pub(super) fn count_failure(&mut self, pass: u32, step: u32, node: Option<u32>) -> bool {
        self.first_failure.get_or_insert((step, node));
        if self.is_exempt(step) {
            return false;
        }
        self.spent.note(node);
        if self.struck.is_some() || self.spent.count() <= self.budget() {
            return false;
        }
        self.struck = Some((pass, step));
        true
    }

    /// How many failures the run survives.
    fn budget(&self) -> u32 {
        self.plan.budget().unwrap_or(match self.plan.definition.strategy() {
            Strategy::FailFast => 0,
            Strategy::Continue => u32::MAX,
        })
    }

    /// Marks walk, pass and node; answers the node.
    pub(super) fn note_failure(&mut self, pass: u32, step: u32, walk: u32) -> Option<u32> {
        let place = self.walk_mut(pass, walk);
        place.failed = true;
        let node = place.node;
        if let Stage::Open(open) = &mut self.passes[pass as usize] {
            open.failed = true;
            open.ran = true;
        }
        self.failures += 1;
        self.lowest_failure = Some(self.lowest_failure.map_or(step, |lowest| lowest.min(step)));
        if let (Shape::List, Some(node)) = (self.plan.shape, node)
            && self.budget() > 0
        {
            self.left.entry(node).or_insert(step);
        }
        node
    }

    /// Fail-fast struck: what was not sent yet is not sent. What runs ends by itself, and the pass that it struck in is
    /// what runs: its nodes get their one attempt, however busy they are, but no retry.
    pub(super) fn withdraw(&mut self, turn: &Turn<'_>) {
        let Some((struck, step)) = self.struck else { return };
        let reason = format!("{} failed", self.step_text(step));
        let first_attempt = |active: &Active| self.walk(active.pass, active.walk).attempt == 1;
        let mut waiting: Vec<ExecutionId> = self
            .active
            .iter()
            .filter(|(_, active)| !active.leased && !self.is_exempt(active.step))
            .filter(|(_, active)| active.pass != struck || !first_attempt(active))
            .map(|(id, _)| *id)
            .collect();
        waiting.sort_unstable();
        for execution in waiting {
            self.emit(Change::ExecutionSkipped {
                run: self.run.clone(),
                execution,
                epoch: self.epoch,
                reason: reason.clone(),
                at: turn.now,
            });
        }
    }

    fn skip_pass(&mut self, pass: u32, reason: &str, turn: &mut Turn<'_>) {
        let open = self.plain_walks_of(pass);
        let count = open.open;
        self.passes[pass as usize] = Stage::Open(open);
        for walk in 0..count {
            self.skip_leaves(pass, walk, reason, turn);
            self.walk_ended(pass, walk);
        }
    }

    fn skip_leaves(&mut self, pass: u32, walk: u32, reason: &str, turn: &mut Turn<'_>) {
        let PlanEntry { first, length, .. } = self.plan.entries[self.entry(pass) as usize];
        for step in first..first + length {
            if !self.is_carried(pass, step, walk) {
                let state = State::Skipped { reason: reason.to_owned(), at: turn.now };
                self.record(pass, step, walk, Attempt::first(), state, turn);
            }
        }
    }

    pub(super) fn next_leaf(&mut self, pass: u32, walk: u32) {
        let place = self.walk_mut(pass, walk);
        place.position += 1;
        place.attempt = 0;
        place.retries = 0;
        place.losses = 0;
    }

    /// One walk came to its end; with the last one the pass does, and those that waited for it are due.
    pub(super) fn walk_ended(&mut self, pass: u32, walk: u32) {
        let Stage::Open(open) = &mut self.passes[pass as usize] else { return };
        open.open -= 1;
        open.begun -= u32::from(open.walks[walk as usize].begun);
        if open.open > 0 {
            if self.full.remove(&pass) {
                self.lined.insert(pass);
            }
            return;
        }
        let end = match (open.failed, open.ran) {
            (true, _) => EntryEnd::Failed,
            (false, true) => EntryEnd::Succeeded,
            (false, false) => EntryEnd::Skipped,
        };
        self.pass_ended(pass, end);
    }

    pub(super) fn pass_ended(&mut self, pass: u32, end: EntryEnd) {
        self.passes[pass as usize] = Stage::Ended(end);
        self.remaining -= 1;
        for index in 0..self.plan.passes[pass as usize].before.len() {
            let next = self.plan.passes[pass as usize].before[index];
            if let Stage::Waiting { missing } = &mut self.passes[next as usize] {
                *missing -= 1;
                if *missing == 0 {
                    self.due.insert(next);
                }
            }
        }
    }

    pub(super) fn mark_ran(&mut self, pass: u32) {
        if let Stage::Open(open) = &mut self.passes[pass as usize] {
            open.ran = true;
        }
    }

    pub(super) fn walk(&self, pass: u32, walk: u32) -> &Walk {
        match &self.passes[pass as usize] {
            Stage::Open(open) => &open.walks[walk as usize],
            Stage::Waiting { .. } | Stage::Ended(_) => unreachable!("only open passes are walked"),
        }
    }

    pub(super) fn walk_mut(&mut self, pass: u32, walk: u32) -> &mut Walk {
        match &mut self.passes[pass as usize] {
            Stage::Open(open) => &mut open.walks[walk as usize],
            Stage::Waiting { .. } | Stage::Ended(_) => unreachable!("only open passes are walked"),
        }
    }

    pub(super) fn pinned(&self, pass: u32, walk: u32) -> Option<NodeId> {
        let nodes = self.plan.nodes_of_pass(pass)?;
        Some(self.plan.node(nodes[walk as usize]).id)
    }
}
