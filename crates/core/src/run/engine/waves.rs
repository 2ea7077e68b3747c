//! Owns how far a roll-out is, and the pause between two waves.

use jiff::{SignedDuration, Timestamp};

use super::progress::{Progress, Turn};
use crate::change::Change;
use crate::plan::{PassIx, Plan};
use crate::run::RolloutProgress;

#[derive(Clone, Debug, Default)]
pub(super) struct Waves {
    /// How many waves have begun.
    begun: u32,
    /// When the last attempt of this run ended: the pause between waves counts from then.
    last_end: Option<Timestamp>,
    /// How far the roll-out is according to the last change that says so.
    recorded: Option<RolloutProgress>,
    /// The pass that waits for its wave to begin, and when the wave begins.
    pausing: Option<(Timestamp, PassIx)>,
}

impl Waves {
    pub(super) fn note_end(&mut self, at: Timestamp) {
        self.last_end = self.last_end.max(Some(at));
    }

    /// Limits the last end to `now`: an agent's clock may be fast, and a wave does not wait for it.
    pub(super) fn forget_future(&mut self, now: Timestamp) {
        self.last_end = self.last_end.min(Some(now));
    }

    /// Records that a pass of `wave` begins.
    pub(super) fn begin(&mut self, wave: Option<u32>) {
        self.begun = self.begun.max(wave.map_or(0, |wave| wave + 1));
    }

    /// Returns how many nodes belong to the waves that have begun.
    pub(super) fn nodes(&self, plan: &Plan) -> u32 {
        self.begun.checked_sub(1).map_or(0, |last| plan.resolved.waves[last as usize])
    }

    pub(super) fn take_pausing(&mut self) -> Option<PassIx> {
        self.pausing.take().map(|(_, pass)| pass)
    }

    pub(super) fn pause_ends(&self) -> Option<Timestamp> {
        self.pausing.map(|(until, _)| until)
    }
}

impl Progress {
    /// Adds to the last suitable one of these changes how far the roll-out is, if no earlier change says so.
    pub(super) fn record_rollout(&mut self, changes: &mut [Change]) {
        let progress = RolloutProgress { wave: self.waves.begun, failed: self.failures.spent() };
        if progress.wave == 0 || self.waves.recorded == Some(progress) {
            return;
        }
        let place = changes.iter_mut().rev().find_map(|change| match change {
            Change::ExecutionsAdded { rollout, .. } | Change::InstanceFailed { rollout, .. } => Some(rollout),
            _ => None,
        });
        if let Some(place) = place {
            *place = Some(progress);
            self.waves.recorded = Some(progress);
        }
    }

    /// Returns the next pass that is due; `None` while the run is paused, or during the pause between two waves.
    pub(super) fn next_due(&mut self, turn: &Turn<'_>) -> Option<PassIx> {
        if self.paused && !self.is_all_stopped() {
            // A pass whose instances were all carried over begins nothing, so it does not delay the run's end.
            let due: Vec<PassIx> = self.passes.due().collect();
            let idle = due.into_iter().find(|&pass| self.wave(pass).is_none() && self.is_whole(pass))?;
            self.passes.remove_due(idle);
            return Some(idle);
        }
        let pass = self.passes.next_due()?;
        if let Some(until) = self.wave_begins(pass)
            && turn.now < until
        {
            self.waves.pausing = Some((until, pass));
            return None;
        }
        Some(pass)
    }

    /// Returns when the wave of a pass may begin, if the pass is the first of its wave and has to wait.
    fn wave_begins(&self, pass: PassIx) -> Option<Timestamp> {
        self.wave(pass).filter(|wave| *wave > 0 && *wave >= self.waves.begun)?;
        let rollout = self.plan.definition.rollout.as_ref()?;
        if self.stopping.is_some() || self.failures.fail_fast().is_some() {
            return None;
        }
        let pause = SignedDuration::try_from(rollout.pause.0).unwrap_or(SignedDuration::MAX);
        Some(self.waves.last_end? + pause)
    }
}
