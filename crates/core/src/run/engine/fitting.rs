//! Decides when placed work has waited too long for a node that fits it.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};

use super::progress::{Active, Over, Progress, Turn};
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

    /// What no node has fitted for too long.
    pub(super) fn look_for_nodes(&mut self, turn: &Turn<'_>) -> Vec<Over> {
        self.look_at = None;
        let mut fits: HashMap<u32, Result<(), String>> = HashMap::new();
        let mut over = Vec::new();
        let mut waits = false;
        let (plan, paused) = (&self.plan, self.paused);
        for (&execution, active) in &mut self.active {
            if active.leased || active.node.is_some() {
                continue;
            }
            waits = true;
            let &mut Active { step, pass, walk, .. } = active;
            let fits = fits.entry(step).or_insert_with(|| if paused { Ok(()) } else { (turn.fits)(step) });
            let Err(why) = fits else {
                active.unfit_since = None;
                continue;
            };
            // While a retry is held back it does not wait for a node.
            let from = active.not_before.map_or(turn.now, |at| at.max(turn.now));
            let since = *active.unfit_since.get_or_insert(from);
            let most = plan.definition.placement_timeout(plan.task(step));
            if turn.now >= since && turn.now.duration_since(since) >= signed(most) {
                let error = format!("no node fitted it for {most}: {why}");
                over.push(Over { step, pass, walk, execution, error });
            }
        }
        if waits {
            self.look_soon(turn.now);
        }
        over
    }
}

fn signed(span: Span) -> SignedDuration {
    SignedDuration::try_from(span.0).unwrap_or(SignedDuration::MAX)
}
