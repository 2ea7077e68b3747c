//! Decides how much of a run is active at once: `max_parallel` of the job, and of a `for_each`.
//!
//! A walk that has begun keeps its room until it ends. The others wait, and begin in the order of the job file and of
//! their items or nodes. A pass begins when there is room for one of its walks, so a pass that has begun has records.
//! Walks that do not take part are recorded before the first one begins: if one has begun, those without a record wait.
//! Therefore the order need not be stored, and is the same after another server takes over.

use std::collections::BTreeSet;

use super::progress::{Progress, Stop, Turn};
use crate::plan::{PassIx, WalkIx};

#[derive(Clone, Debug, Default)]
pub(super) struct Room {
    /// Passes that may begin when there is room in the run.
    awaiting_room: BTreeSet<PassIx>,
    /// Passes with walks that wait for room in the run.
    lined: BTreeSet<PassIx>,
    /// Passes with walks that wait for room among their own items.
    full: BTreeSet<PassIx>,
    /// Why the run was stopping, and whether fail-fast had been triggered, at the last `sweep_line`.
    swept: (Option<Stop>, bool),
}

impl Room {
    /// Adds a pass that waits for room in the run.
    pub(super) fn add(&mut self, pass: PassIx) {
        self.awaiting_room.insert(pass);
    }

    /// Records that a walk of a pass ended.
    pub(super) fn freed(&mut self, pass: PassIx) {
        if self.full.remove(&pass) {
            self.lined.insert(pass);
        }
    }
}

impl Progress {
    fn run_has_room(&self) -> bool {
        let most = self.plan.definition.max_parallel;
        most.is_none_or(|most| self.attempts.count() < most as usize)
    }

    fn own_bound(&self, pass: PassIx) -> Option<u32> {
        self.plan.entry_of(pass).each.as_ref().and_then(|each| each.max_parallel)
    }

    fn pass_has_room(&self, pass: PassIx) -> bool {
        let most = self.own_bound(pass);
        self.passes.get(pass).is_some_and(|open| most.is_none_or(|most| open.begun() < most))
    }

    /// Returns whether walks of a pass may have to wait for room.
    pub(super) fn is_bounded(&self, pass: PassIx) -> bool {
        self.plan.definition.max_parallel.is_some() || self.own_bound(pass).is_some()
    }

    /// Adds a walk that could begin to those that wait for room.
    pub(super) fn line_up(&mut self, pass: PassIx, walk: WalkIx) {
        if let Some(open) = self.passes.get_mut(pass) {
            open.line.push_back(walk);
            self.room.lined.insert(pass);
        }
    }

    /// Begins the first waiting pass or walk for which there is room; returns whether one began.
    pub(super) fn use_room(&mut self, turn: &mut Turn<'_>) -> bool {
        if !self.run_has_room() {
            return false;
        }
        let lined = self.first_in_line();
        let awaiting = self.room.awaiting_room.first().copied().filter(|_| !self.paused);
        match (awaiting, lined) {
            (Some(pass), lined) if lined.is_none_or(|lined| pass < lined) => {
                self.room.awaiting_room.remove(&pass);
                self.open(pass, turn);
            }
            (_, Some(lined)) => {
                if let Some(walk) = self.next_in_line(lined) {
                    self.passes.mark_begun(lined, walk);
                    self.advance(lined, walk, turn);
                }
            }
            (_, None) => return false,
        }
        true
    }

    /// Returns the first pass with waiting walks that may begin.
    fn first_in_line(&mut self) -> Option<PassIx> {
        while let Some(&pass) = self.room.lined.first() {
            if self.pass_has_room(pass) {
                return Some(pass);
            }
            self.room.lined.remove(&pass);
            self.room.full.insert(pass);
        }
        None
    }

    fn next_in_line(&mut self, pass: PassIx) -> Option<WalkIx> {
        let next = self.passes.get_mut(pass).and_then(|open| open.line.pop_front());
        if next.is_none() {
            self.room.lined.remove(&pass);
        }
        next
    }

    /// Once the run stops or fail-fast is triggered, decides again about everything that waits. Most of it no longer
    /// begins, and the rest lines up again.
    pub(super) fn sweep_line(&mut self) -> bool {
        let now = (self.stopping, self.failures.fail_fast().is_some());
        if std::mem::replace(&mut self.room.swept, now) == now {
            return false;
        }
        self.passes.add_due(std::mem::take(&mut self.room.awaiting_room));
        let mut passes = std::mem::take(&mut self.room.lined);
        passes.append(&mut self.room.full);
        for pass in passes {
            let line = self.passes.get_mut(pass).map(|open| std::mem::take(&mut open.line));
            self.agenda.add_walks(line.unwrap_or_default().into_iter().map(|walk| (pass, walk)));
        }
        true
    }
}
