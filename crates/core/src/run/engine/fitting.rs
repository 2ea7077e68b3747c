//! Decides when placed work has waited too long for a node that fits it.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};

use super::progress::{Progress, Turn};
use crate::change::Change;
use crate::ids::ExecutionId;
use crate::span::Span;

/// How often is looked: often enough for the shortest wait, and seldom enough to cost nothing.
const LOOKS_PER_WAIT: i32 = 8;
const LONGEST: SignedDuration = SignedDuration::from_secs(10);

impl Progress {
    /// Something placed waits: whether nodes fit it is looked at before long.
    pub(super) fn look_soon(&mut self, now: Timestamp) {
        if self.look_at.is_none() {
            self.look_at = Some(now + self.look_pause());
        }
    }

    fn look_pause(&self) -> SignedDuration {
        let definition = &self.plan.definition;
        let tasks = definition.tasks.iter().flat_map(|entry| entry.leaves());
        let shortest = tasks.map(|task| definition.placement_timeout(task)).min().map_or(LONGEST, signed);
        (shortest / LOOKS_PER_WAIT).min(LONGEST)
    }

    /// What no node has fitted for too long fails.
    pub(super) fn look_for_nodes(&mut self, turn: &Turn<'_>) {
        self.look_at = None;
        let mut fits: HashMap<u32, Result<(), String>> = HashMap::new();
        let mut over: Vec<(ExecutionId, String)> = Vec::new();
        let mut waits = false;
        let (plan, paused) = (&self.plan, self.paused);
        for (execution, active) in &mut self.active {
            if active.leased || active.node.is_some() {
                continue;
            }
            waits = true;
            let fits = fits
                .entry(active.step)
                .or_insert_with(|| if paused { Ok(()) } else { (turn.fits)(active.step) });
            let Err(why) = fits else {
                active.unfit_since = None;
                continue;
            };
            let since = *active.unfit_since.get_or_insert(turn.now);
            let most = plan.definition.placement_timeout(plan.task(active.step));
            if turn.now >= since && turn.now.duration_since(since) >= signed(most) {
                over.push((*execution, format!("no node fitted it for {most}: {why}")));
            }
        }
        over.sort_unstable();
        for (execution, error) in over {
            self.emit(Change::ExecutionGivenUp {
                run: self.run.clone(),
                execution,
                epoch: self.epoch,
                error,
                at: turn.now,
            });
        }
        if waits {
            self.look_soon(turn.now);
        }
    }
}

fn signed(span: Span) -> SignedDuration {
    SignedDuration::try_from(span.0).unwrap_or(SignedDuration::MAX)
}
