//! Owns how much a store in memory holds, and the removal of what it holds too much of.

use downbeat_core::ids::RunId;
use downbeat_core::retention::Excess;
use jiff::Timestamp;

use super::store::State;
use crate::filter::distances;
use crate::port::{Removed, Volume};

impl State {
    pub(super) fn volume(&self) -> Volume {
        let chunks = self.output.values().flatten();
        Volume {
            events: self.events.len() as u64,
            first_seq: self.events.front().map_or(self.last_seq + 1, |event| event.seq),
            output_bytes: chunks.map(|chunk| chunk.text.len() as u64).sum(),
            disk_bytes: None,
        }
    }

    /// Returns the runs that ended before this time, by their end and id.
    pub(super) fn ended_before(&self, before: Timestamp) -> Vec<(Timestamp, RunId)> {
        let end = |(id, run): (&RunId, &downbeat_core::run::RunLive)| Some((run.finished_at()?, id.clone()));
        let mut ended: Vec<_> =
            self.tables.runs.iter().filter_map(end).filter(|(at, _)| *at < before).collect();
        ended.sort_unstable();
        ended
    }

    /// Removes the events before this time up to this number, only from the front: the remaining ones have no gaps.
    pub(super) fn remove_events(&mut self, before: Timestamp, upto: u64) {
        let is_old = |state: &Self, distance: &usize| {
            state.events.get(*distance).is_some_and(|event| event.change.at() < before)
        };
        let places = || distances().filter_map(|distance| usize::try_from(distance).ok());
        while let Some(last) = places().filter(|distance| is_old(self, distance)).last() {
            let wanted = self.events.partition_point(|event| event.seq <= upto);
            self.events.drain(..wanted.min(last + 1));
            if wanted <= last + 1 {
                break;
            }
        }
    }

    /// Removes the output of these runs. Returns how many bytes it had.
    pub(super) fn remove_output(&mut self, runs: impl Iterator<Item = (Timestamp, RunId)>, most: u64) -> u64 {
        let mut removed = 0;
        for (at, run) in runs {
            if removed >= most {
                break;
            }
            let executions = &self.tables.executions;
            self.output.retain(|execution, chunks| {
                let is_kept = executions.get(execution).is_none_or(|execution| *execution.run() != run);
                if !is_kept {
                    removed += chunks.iter().map(|chunk| chunk.text.len() as u64).sum::<u64>();
                }
                is_kept
            });
            self.output_removed = Some((at, run));
        }
        removed
    }

    pub(super) fn prune_excess(&mut self, excess: &Excess, most: u32) -> Removed {
        let ended = self.ended_before(excess.before);
        let count = excess.runs.min(u64::from(most));
        let jobs = ended.into_iter().map(|(_, run)| run).filter(|run| !run.is_debug());
        let runs: Vec<RunId> = jobs.take(count as usize).collect();
        for run in &runs {
            self.remove_run(run);
        }
        let events = self.events.len();
        self.remove_events(excess.before, excess.events_upto);
        let after = self.output_removed.clone();
        let ended = self.ended_before(excess.before).into_iter();
        let ended = ended.filter(|run| after.as_ref().is_none_or(|after| run > after));
        Removed {
            runs: runs.len() as u64,
            events: (events - self.events.len()) as u64,
            output_bytes: self.remove_output(ended, excess.output_bytes),
        }
    }
}
