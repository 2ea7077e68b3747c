//! Decides how much of a run is under way at once: `max_parallel` of the job, and of a `for_each`.

use super::progress::{Progress, Stage, Turn};

impl Progress {
    /// Whether a walk may make its next attempt now.
    pub(super) fn has_room(&self, pass: u32, walk: u32) -> bool {
        self.run_has_room() && (self.walk(pass, walk).begun || self.pass_has_room(pass))
    }

    fn run_has_room(&self) -> bool {
        let most = self.plan.definition.max_parallel;
        most.is_none_or(|most| self.active.len() < most as usize)
    }

    fn pass_has_room(&self, pass: u32) -> bool {
        let most =
            self.plan.entries[self.entry(pass) as usize].each.as_ref().and_then(|each| each.max_parallel);
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

    /// A walk that could go on waits until there is room.
    pub(super) fn line_up(&mut self, pass: u32, walk: u32) {
        self.walk_mut(pass, walk).held_up = true;
        if let Stage::Open(open) = &mut self.passes[pass as usize] {
            if open.line.is_empty() {
                self.lined.push_back(pass);
            }
            open.line.push_back(walk);
        }
    }

    /// Lets walks go on that waited for room; answers whether any did.
    pub(super) fn make_use_of_room(&mut self, turn: &mut Turn<'_>) -> bool {
        if self.lined.is_empty() {
            return false;
        }
        if !self.swept && (self.stopping.is_some() || self.struck.is_some()) {
            self.swept = true;
            return self.sweep_line(turn);
        }
        let mut any = false;
        let mut full = std::collections::VecDeque::new();
        while self.run_has_room()
            && let Some(pass) = self.lined.pop_front()
        {
            let first = match &self.passes[pass as usize] {
                Stage::Open(open) => open.line.front().copied(),
                Stage::Waiting { .. } | Stage::Ended(_) => None,
            };
            let Some(walk) = first else { continue };
            if !self.has_room(pass, walk) {
                full.push_back(pass);
                continue;
            }
            if let Stage::Open(open) = &mut self.passes[pass as usize] {
                open.line.pop_front();
                if !open.line.is_empty() {
                    self.lined.push_front(pass);
                }
            }
            self.advance(pass, walk, turn);
            any = true;
        }
        full.append(&mut self.lined);
        self.lined = full;
        any
    }

    /// Everything that waits is decided anew: most of it does not begin any more, and what does lines up again.
    fn sweep_line(&mut self, turn: &mut Turn<'_>) -> bool {
        for pass in std::mem::take(&mut self.lined) {
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
