//! Decides how much of a run is under way at once: `max_parallel` of the job, and of a `for_each`.
//!
//! A walk that has begun keeps its place until it ends. The others wait, and begin in the order of the job file and of
//! their items or nodes. A pass begins when there is room for one of it: of those that have begun there are records. So
//! the order needs no memory, and is the same after a server was replaced.

use super::progress::{Progress, Stage, Turn};

impl Progress {
    fn run_has_room(&self) -> bool {
        let most = self.plan.definition.max_parallel;
        most.is_none_or(|most| self.active.len() < most as usize)
    }

    fn pass_has_room(&self, pass: u32) -> bool {
        let each = self.plan.entries[self.entry(pass) as usize].each.as_ref();
        let most = each.and_then(|each| each.max_parallel);
        match &self.passes[pass as usize] {
            Stage::Open(open) => most.is_none_or(|most| open.begun < most),
            Stage::Waiting { .. } | Stage::Ended(_) => false,
        }
    }

    /// Whether walks of a pass may have to wait for room.
    pub(super) fn is_bounded(&self, pass: u32) -> bool {
        let each = self.plan.entries[self.entry(pass) as usize].each.as_ref();
        self.plan.definition.max_parallel.is_some() || each.is_some_and(|each| each.max_parallel.is_some())
    }

    /// A walk that could begin waits until there is room.
    pub(super) fn line_up(&mut self, pass: u32, walk: u32) {
        if let Stage::Open(open) = &mut self.passes[pass as usize] {
            open.line.push_back(walk);
            self.lined.insert(pass);
        }
    }

    pub(super) fn mark_begun(&mut self, pass: u32, walk: u32) {
        if let Stage::Open(open) = &mut self.passes[pass as usize]
            && !std::mem::replace(&mut open.walks[walk as usize].begun, true)
        {
            open.begun += 1;
        }
    }

    /// Lets the first begin that waits and for which there is room; answers whether one did.
    pub(super) fn use_room(&mut self, turn: &mut Turn<'_>) -> bool {
        if !self.run_has_room() {
            return false;
        }
        let lined = self.first_in_line();
        let held = self.held.first().copied().filter(|_| !self.paused);
        match (held, lined) {
            (Some(held), lined) if lined.is_none_or(|lined| held < lined) => {
                self.held.remove(&held);
                self.open(held, turn);
            }
            (_, Some(lined)) => {
                if let Some(walk) = self.next_in_line(lined) {
                    self.mark_begun(lined, walk);
                    self.advance(lined, walk, turn);
                }
            }
            (_, None) => return false,
        }
        true
    }

    /// The first pass with walks that wait and may begin.
    fn first_in_line(&mut self) -> Option<u32> {
        while let Some(&pass) = self.lined.first() {
            if self.pass_has_room(pass) {
                return Some(pass);
            }
            self.lined.remove(&pass);
            self.full.insert(pass);
        }
        None
    }

    fn next_in_line(&mut self, pass: u32) -> Option<u32> {
        let next = match &mut self.passes[pass as usize] {
            Stage::Open(open) => open.line.pop_front(),
            Stage::Waiting { .. } | Stage::Ended(_) => None,
        };
        if next.is_none() {
            self.lined.remove(&pass);
        }
        next
    }

    /// The run stopped or fail-fast struck: everything that waits is decided anew. Most of it does not begin any more, and
    /// what does lines up again.
    pub(super) fn sweep_line(&mut self, turn: &mut Turn<'_>) -> bool {
        let now = (self.stopping.is_some(), self.struck.is_some());
        if std::mem::replace(&mut self.swept, now) == now {
            return false;
        }
        self.due.append(&mut self.held);
        let mut passes = std::mem::take(&mut self.lined);
        passes.append(&mut self.full);
        for &pass in &passes {
            let line = match &mut self.passes[pass as usize] {
                Stage::Open(open) => std::mem::take(&mut open.line),
                Stage::Waiting { .. } | Stage::Ended(_) => continue,
            };
            for walk in line {
                self.advance(pass, walk, turn);
            }
        }
        true
    }
}
