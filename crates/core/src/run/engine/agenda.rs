//! Owns the decisions that a turn has not made yet, and makes them one after the other while a submission has room.
//!
//! The params of one pass may have hundreds of megabytes. Therefore those of a submission are evaluated only after the
//! former submission is committed. A crash in between loses nothing: the next owner finds walks without records, and
//! decides them.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use super::attempts::Ended;
use super::progress::{Progress, Turn};
use super::restore::Unopened;
use crate::plan::{PassIx, WalkIx};

/// The parts are in the order in which they are decided.
#[derive(Clone, Debug, Default)]
pub(super) struct Agenda {
    /// Walks that the former owner did not get to. They come before the consequences of anything that has ended since.
    unopened: VecDeque<Unopened>,
    /// Attempts that ended and may be followed by another one.
    again: VecDeque<Ended>,
    /// Walks that move on.
    walks: BTreeSet<(PassIx, WalkIx)>,
    pass: Option<Undecided>,
}

/// The rest of a pass that begins or is skipped.
#[derive(Clone, Debug)]
struct Undecided {
    pass: PassIx,
    walks: Range<u32>,
    /// Why the pass is skipped, if it is: one text for all walks.
    skipped: Option<Arc<str>>,
}

impl Agenda {
    fn is_empty(&self) -> bool {
        self.unopened.is_empty() && self.again.is_empty() && self.walks.is_empty() && self.pass.is_none()
    }

    pub(super) fn add_unopened(&mut self, walks: Vec<Unopened>) {
        self.unopened.extend(walks);
    }

    pub(super) fn add_again(&mut self, ended: Vec<Ended>) {
        self.again.extend(ended);
    }

    pub(super) fn add_walks(&mut self, walks: impl IntoIterator<Item = (PassIx, WalkIx)>) {
        self.walks.extend(walks);
    }

    /// Adds the walks of a pass that begins, or is skipped for a reason. There is one such pass at a time.
    pub(super) fn set_pass(&mut self, pass: PassIx, walks: Range<u32>, skipped: Option<String>) {
        debug_assert!(self.pass.is_none(), "passes are decided one after the other");
        self.pass = Some(Undecided { pass, walks, skipped: skipped.map(Arc::from) });
    }
}

impl Progress {
    /// Returns whether decisions are left that follow from the facts so far, apart from the passes that are due.
    pub(super) fn has_agenda(&self) -> bool {
        !self.agenda.is_empty() || self.attempts.has_ended()
    }

    /// Makes the next decision of the agenda; returns false if there is none.
    pub(super) fn decide_next(&mut self, turn: &mut Turn<'_>) -> bool {
        if let Some(unopened) = self.agenda.unopened.pop_front() {
            self.open_late(unopened, turn);
        } else if self.attempts.has_ended() {
            self.follow_ends(turn);
        } else if let Some(ended) = self.agenda.again.pop_front() {
            self.come_again(ended, turn);
        } else if let Some((pass, walk)) = self.agenda.walks.pop_first() {
            self.advance(pass, walk, turn);
        } else {
            return self.decide_walk(turn);
        }
        true
    }

    /// Begins or skips the next walk of the pass that is being decided.
    fn decide_walk(&mut self, turn: &mut Turn<'_>) -> bool {
        let Some(Undecided { pass, walks, skipped }) = &mut self.agenda.pass else { return false };
        let pass = *pass;
        let Some(walk) = walks.next().map(WalkIx) else {
            self.agenda.pass = None;
            return false;
        };
        if let Some(reason) = skipped.clone() {
            self.skip_walk(pass, walk, &reason, turn);
            return true;
        }
        match self.joins(pass, walk, turn) {
            Ok(()) => self.advance(pass, walk, turn),
            Err(reason) => self.skip_walk(pass, walk, &reason, turn),
        }
        true
    }
}
