//! Decides what follows when an entry's turn comes and when an attempt ends.

use jiff::{SignedDuration, Timestamp};

use super::progress::{Active, End, EntryEnd, Progress, Stage, Turn, Walk};
use crate::change::Change;
use crate::execution::{Execution, State};
use crate::ids::{ExecutionId, NodeId};
use crate::limits;
use crate::plan::Shape;
use crate::run::retry;
use crate::spec::{Condition, Delivery, Strategy};

impl Progress {
    /// Decides every entry whose turn has come, until nothing more follows.
    pub(super) fn settle(&mut self, turn: &mut Turn<'_>) {
        while let Some(entry) = self.due.pop_front() {
            match self.entry_runs(entry) {
                Ok(()) => self.open(entry, turn),
                Err(reason) => self.skip_entry(entry, &reason, turn),
            }
        }
        self.finish();
    }

    fn open(&mut self, entry: u32, turn: &mut Turn<'_>) {
        let walks = self.new_walks(entry);
        let open = u32::try_from(walks.len()).expect("plans are bounded");
        self.entries[entry as usize] = Stage::Open { walks, open, failed: false, ran: false };
        for walk in 0..open {
            match self.joins(entry, walk, turn) {
                Ok(()) => self.advance(entry, walk, turn),
                Err(reason) => {
                    self.skip_leaves(entry, walk, &reason, turn);
                    self.walk_ended(entry);
                }
            }
        }
    }

    pub(super) fn new_walks(&self, entry: u32) -> Vec<Walk> {
        let walk = |node| Walk { node, position: 0, attempt: 0, retries: 0, losses: 0, failed: false };
        match self.plan.nodes_of(entry) {
            Some(nodes) => nodes.iter().map(|&node| walk(Some(node))).collect(),
            None => vec![walk(None)],
        }
    }

    /// Whether a node takes part in an entry that begins.
    fn joins(&self, entry: u32, walk: u32, turn: &Turn<'_>) -> Result<(), String> {
        let Some(node) = self.walk(entry, walk).node else { return Ok(()) };
        if self.plan.entries[entry as usize].condition == Some(Condition::OnFailure) {
            // Also on nodes that failed, as long as they can be reached.
            return if (turn.offline)(self.plan.node(node).id) {
                Err("the node is offline".to_owned())
            } else {
                Ok(())
            };
        }
        match self.left.get(&node) {
            Some(step) => Err(format!("the node failed in {}", self.step_text(*step))),
            None => Ok(()),
        }
    }

    /// Takes a walk to its next attempt, or to its end.
    pub(super) fn advance(&mut self, entry: u32, walk: u32, turn: &mut Turn<'_>) {
        loop {
            let Walk { position, failed, .. } = *self.walk(entry, walk);
            let plan = &self.plan.entries[entry as usize];
            if position == plan.length {
                self.walk_ended(entry);
                return;
            }
            let step = plan.first + position;
            match self.leaf_runs(step, failed) {
                Err(reason) => {
                    self.record(step, walk, 1, State::Skipped { reason, at: turn.now }, turn);
                    self.next_leaf(entry, walk);
                }
                Ok(()) => {
                    self.mark_ran(entry);
                    if self.attempt(step, walk, None, None, turn) {
                        return;
                    }
                    self.instance_failed(step, walk, turn);
                    self.next_leaf(entry, walk);
                }
            }
        }
    }

    /// Creates the next attempt of an instance. False: its node is offline, and a failed attempt was recorded.
    fn attempt(
        &mut self,
        step: u32,
        walk: u32,
        not_before: Option<Timestamp>,
        patience: Option<Timestamp>,
        turn: &mut Turn<'_>,
    ) -> bool {
        let entry = self.entry_of(step);
        let place = self.walk_mut(entry, walk);
        place.attempt += 1;
        let attempt = place.attempt;
        let node = self.pinned(entry, walk);
        if let Some(id) = node
            && patience.is_none()
            && (turn.offline)(id)
        {
            let hostname = self.hostname(step, walk).unwrap_or_default();
            let error = Some(format!("node {hostname} is offline"));
            let state = State::Failed { lease: None, outcome: None, error, at: turn.now };
            self.record(step, walk, attempt, state, turn);
            return false;
        }
        let id = self.record(step, walk, attempt, State::Pending { not_before }, turn);
        self.active.insert(id, Active { step, walk, node, leased: false, patience });
        true
    }

    fn record(
        &mut self,
        step: u32,
        walk: u32,
        attempt: u32,
        state: State,
        turn: &mut Turn<'_>,
    ) -> ExecutionId {
        let id = ExecutionId(turn.dice.uuid_at(turn.now));
        let pinned = self.pinned(self.entry_of(step), walk);
        let run = self.run.clone();
        self.add(Execution {
            id,
            run,
            step,
            pinned,
            attempt,
            params: None,
            reused: None,
            created_at: turn.now,
            state,
        });
        id
    }

    /// An attempt ended: again, or on to what follows.
    pub(super) fn ended(&mut self, execution: ExecutionId, end: End, turn: &mut Turn<'_>) {
        if let Some(Active { step, walk, .. }) = self.active.remove(&execution) {
            self.attempt_ended(step, walk, end, turn);
            self.settle(turn);
        }
    }

    pub(super) fn attempt_ended(&mut self, step: u32, walk: u32, end: End, turn: &mut Turn<'_>) {
        let entry = self.entry_of(step);
        match end {
            End::Succeeded => {}
            End::Failed => {
                if self.try_again(step, walk, turn) {
                    return;
                }
                self.instance_failed(step, walk, turn);
            }
            // Cancelled without being asked to (its agent was drained) is as good as lost.
            End::Lost | End::Cancelled => {
                if self.stopping.is_none() {
                    if self.send_again(step, walk, turn) {
                        return;
                    }
                    self.instance_failed(step, walk, turn);
                }
            }
            End::GivenUp => self.instance_failed(step, walk, turn),
            // Withdrawn before it was sent. If an attempt before it failed, the instance did.
            End::Skipped => {
                if self.walk(entry, walk).attempt > 1 {
                    self.instance_failed(step, walk, turn);
                }
            }
        }
        self.next_leaf(entry, walk);
        self.advance(entry, walk, turn);
    }

    fn try_again(&mut self, step: u32, walk: u32, turn: &mut Turn<'_>) -> bool {
        let entry = self.entry_of(step);
        let Some(rule) = self.plan.task(step).retry else { return false };
        let used = self.walk(entry, walk).retries;
        if used >= rule.max || !self.goes_on(step) {
            return false;
        }
        self.walk_mut(entry, walk).retries += 1;
        let pause = SignedDuration::try_from(retry::pause(&rule, used + 1, turn.dice))
            .unwrap_or(SignedDuration::ZERO);
        self.attempt(step, walk, Some(turn.now + pause), None, turn)
    }

    fn send_again(&mut self, step: u32, walk: u32, turn: &mut Turn<'_>) -> bool {
        let entry = self.entry_of(step);
        let again = self.plan.steps[step as usize].delivery == Delivery::AtLeastOnce
            && self.walk(entry, walk).losses < limits::RESENDS_AFTER_LOSS
            && self.goes_on(step);
        if !again {
            return false;
        }
        self.walk_mut(entry, walk).losses += 1;
        // A pinned one waits for its node as long as it would have been allowed to run.
        let wait = SignedDuration::try_from(self.plan.task(step).timeout_or_default().0)
            .unwrap_or(SignedDuration::MAX);
        let patience = self.pinned(entry, walk).map(|_| turn.now + wait);
        self.attempt(step, walk, None, patience, turn)
    }

    /// Whether new attempts of a step may still be made.
    fn goes_on(&self, step: u32) -> bool {
        self.stopping.is_none() && (self.struck.is_none() || self.is_exempt(step))
    }

    /// The last attempt of an instance failed: what the strategy makes of it.
    pub(super) fn instance_failed(&mut self, step: u32, walk: u32, turn: &Turn<'_>) {
        let node = self.note_failure(step, walk);
        self.first_failure.get_or_insert((step, node));
        if self.struck.is_none() && self.strikes(step) {
            self.struck = Some(step);
            self.withdraw(turn);
        }
    }

    /// Whether the failure of this step ends everything.
    pub(super) fn strikes(&self, step: u32) -> bool {
        self.plan.definition.strategy == Strategy::FailFast && !self.is_exempt(step)
    }

    /// Marks walk, entry and node; answers the node.
    pub(super) fn note_failure(&mut self, step: u32, walk: u32) -> Option<u32> {
        let entry = self.entry_of(step);
        let place = self.walk_mut(entry, walk);
        place.failed = true;
        let node = place.node;
        if let Stage::Open { failed, ran, .. } = &mut self.entries[entry as usize] {
            *failed = true;
            *ran = true;
        }
        self.failures += 1;
        if let (Strategy::Continue, Shape::List, Some(node)) =
            (self.plan.definition.strategy, self.plan.shape, node)
        {
            self.left.entry(node).or_insert(step);
        }
        node
    }

    /// Fail-fast struck: what was not sent yet is not sent. What runs ends by itself, and the entry that it struck in
    /// is what runs: its nodes get their one attempt, however busy they are, but no retry.
    pub(super) fn withdraw(&mut self, turn: &Turn<'_>) {
        let Some(struck) = self.struck else { return };
        let reason = format!("{} failed", self.step_text(struck));
        let first_attempt = |active: &Active| self.walk(self.entry_of(active.step), active.walk).attempt == 1;
        let mut waiting: Vec<ExecutionId> = self
            .active
            .iter()
            .filter(|(_, active)| !active.leased && !self.is_exempt(active.step))
            .filter(|(_, active)| {
                self.entry_of(active.step) != self.entry_of(struck) || !first_attempt(active)
            })
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

    fn skip_entry(&mut self, entry: u32, reason: &str, turn: &mut Turn<'_>) {
        let walks = self.new_walks(entry);
        let count = u32::try_from(walks.len()).expect("plans are bounded");
        self.entries[entry as usize] = Stage::Open { walks, open: count, failed: false, ran: false };
        for walk in 0..count {
            self.skip_leaves(entry, walk, reason, turn);
            self.walk_ended(entry);
        }
    }

    fn skip_leaves(&mut self, entry: u32, walk: u32, reason: &str, turn: &mut Turn<'_>) {
        let first = self.plan.entries[entry as usize].first;
        for step in first..first + self.plan.entries[entry as usize].length {
            self.record(step, walk, 1, State::Skipped { reason: reason.to_owned(), at: turn.now }, turn);
        }
    }

    pub(super) fn next_leaf(&mut self, entry: u32, walk: u32) {
        let place = self.walk_mut(entry, walk);
        place.position += 1;
        place.attempt = 0;
        place.retries = 0;
        place.losses = 0;
    }

    /// One walk came to its end; with the last one the entry does, and those that waited for it are due.
    pub(super) fn walk_ended(&mut self, entry: u32) {
        let Stage::Open { open, failed, ran, .. } = &mut self.entries[entry as usize] else { return };
        *open -= 1;
        if *open > 0 {
            return;
        }
        let end = match (*failed, *ran) {
            (true, _) => EntryEnd::Failed,
            (false, true) => EntryEnd::Succeeded,
            (false, false) => EntryEnd::Skipped,
        };
        self.entries[entry as usize] = Stage::Ended(end);
        self.remaining -= 1;
        for index in 0..self.plan.entries[entry as usize].before.len() {
            let next = self.plan.entries[entry as usize].before[index];
            if let Stage::Waiting { missing } = &mut self.entries[next as usize] {
                *missing -= 1;
                if *missing == 0 {
                    self.due.push_back(next);
                }
            }
        }
    }

    pub(super) fn mark_ran(&mut self, entry: u32) {
        if let Stage::Open { ran, .. } = &mut self.entries[entry as usize] {
            *ran = true;
        }
    }

    pub(super) fn walk(&self, entry: u32, walk: u32) -> &Walk {
        match &self.entries[entry as usize] {
            Stage::Open { walks, .. } => &walks[walk as usize],
            Stage::Waiting { .. } | Stage::Ended(_) => unreachable!("only open entries are walked"),
        }
    }

    pub(super) fn walk_mut(&mut self, entry: u32, walk: u32) -> &mut Walk {
        match &mut self.entries[entry as usize] {
            Stage::Open { walks, .. } => &mut walks[walk as usize],
            Stage::Waiting { .. } | Stage::Ended(_) => unreachable!("only open entries are walked"),
        }
    }

    fn pinned(&self, entry: u32, walk: u32) -> Option<NodeId> {
        let node = self.plan.nodes_of(entry)?[walk as usize];
        Some(self.plan.node(node).id)
    }
}
