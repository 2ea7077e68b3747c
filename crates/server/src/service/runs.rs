//! Cancels a run, pauses it, and resumes it.

use downbeat_core::execution::Status;
use downbeat_core::ids::RunId;
use downbeat_core::{Change, Refusal, limits};
use downbeat_store::{ExecutionFilter, Page};

use super::Service;
use super::find::check_shown;
use crate::caller::Caller;
use crate::error::{Conflict, Error, Result};
use crate::force::Force;

/// How many leases one commit ends.
const LOSSES: u32 = limits::EXECUTIONS_PER_COMMIT as u32;

impl Service {
    /// Requests a run's end. Returns when the request is committed; the run's state shows when it has ended. With
    /// force, the executions that run are lost at once: the server refuses their results, and does not wait
    /// until their agents have stopped them.
    pub async fn cancel(&self, caller: &Caller, run: &RunId, force: Force) -> Result<()> {
        check_shown(run)?;
        let (by, at) = (caller.name().to_owned(), self.now());
        let mut changes = vec![Change::RunCancelRequested { run: run.clone(), by, at }];
        if force == Force::On {
            changes.extend(self.losses(run).await?);
        }
        // In one commit: an execution that is lost before the run is cancelled would be sent again.
        match self.commit(changes).await?.swap_remove(0) {
            Ok(()) => {}
            // If the run is open, its end was requested before.
            Err(_) => self.open_run(caller, run).await.map(drop)?,
        }
        if force == Force::On { self.end_leases(run).await } else { Ok(()) }
    }

    /// Ends the leases of a cancelled run that did not fit into its first commit, or were granted after it was read.
    async fn end_leases(&self, run: &RunId) -> Result<()> {
        for _ in 0..=limits::INSTANCES_PER_RUN / LOSSES as usize {
            let losses = self.losses(run).await?;
            if losses.is_empty() {
                break;
            }
            self.commit(losses).await?;
        }
        Ok(())
    }

    /// Returns the changes that end the leases of a run, for one commit.
    async fn losses(&self, run: &RunId) -> Result<Vec<Change>> {
        let filter = ExecutionFilter {
            run: Some(run.clone()),
            statuses: vec![Status::Leased, Status::Running],
            ..ExecutionFilter::default()
        };
        let mut page = Page::first(LOSSES);
        // A page without rows may be followed by others: a store reads only so many rows for one.
        let held = loop {
            let held = self.parts.store.bare_executions(&filter, &page).await?;
            match held.next {
                Some(next) if held.rows.is_empty() => page.start = next,
                _ => break held.rows,
            }
        };
        let at = self.now();
        let losses = held.into_iter().filter_map(|execution| {
            Some(Change::ExecutionLost {
                of: execution.of.parent(),
                execution: execution.id,
                token: execution.state.lease()?.token,
                silence: None,
                reason: "the run was cancelled by force; the work may still run on its node".to_owned(),
                at,
            })
        });
        Ok(losses.collect())
    }

    /// Starts nothing more of a run until it is resumed. Running executions finish.
    pub async fn pause(&self, caller: &Caller, run: &RunId) -> Result<()> {
        self.set_paused(caller, run, true).await
    }

    pub async fn resume(&self, caller: &Caller, run: &RunId) -> Result<()> {
        self.set_paused(caller, run, false).await
    }

    async fn set_paused(&self, caller: &Caller, id: &RunId, paused: bool) -> Result<()> {
        check_shown(id)?;
        let (by, at) = (caller.name().to_owned(), self.now());
        match self.commit_one(Change::RunPauseSet { run: id.clone(), paused, by, at }).await? {
            Ok(()) => Ok(()),
            Err(Refusal::NotKnownToAll) => Err(Error::OlderServer("pauses")),
            Err(_) => {
                self.open_run(caller, id).await?;
                let id = id.clone();
                Err(if paused { Conflict::RunPaused(id) } else { Conflict::RunNotPaused(id) }.into())
            }
        }
    }
}
